// W4A16 for one token and matrices with few records per multiprocessor, with work in units (w4a16_units.cuh). For
// example, rows of 11 records have six chunks of two records and two empty ones, which matmul_w4a16_m8_kernel would
// also assign to warps.
#include "kernels/cuda/matmul/w4a16/w4a16_norm.cuh"
#include "kernels/cuda/matmul/w4a16/w4a16_units.cuh"

#include <algorithm>

namespace nibble::cuda {
namespace {

using namespace token;

// Shared memory: x, ring buffers and their barriers, sums, a row to normalize.
template <int Slots>
__global__ void __launch_bounds__(1024, 1) matmul_w4a16_m1_kernel(const __grid_constant__ GemvArgs args) {
    extern __shared__ __align__(128) uint8_t shared[];
    if (static_cast<int>(blockIdx.x) >= args.blocks) return side_rows(args, shared);
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    const int warp = thread / 32, lane = thread % 32, warps = threads / 32;
    const uint32_t base = shared_address(shared);
    const Ring<Slots> ring(base + args.x_pitch, warp, warps);
    const Share share = args.paired ? Share(args.row_tiles / 2, static_cast<int>(blockIdx.x), args.blocks)
                                    : Share(args.row_tiles, static_cast<int>(blockIdx.x), args.blocks);
    const int turn = args.paired ? 2 : 1, first_tile = share.first * turn, tiles = share.count * turn;
    const int active = args.active, units = tiles * active;
    const Divisor by_active(active);
    auto* const sums = reinterpret_cast<float*>(shared + args.x_pitch + warps * Ring<Slots>::bytes);
    const auto locate = [&](int unit) {
        const int tile = by_active.quotient(unit), first = (unit - tile * active) * args.chunk_records;
        return Unit{
            args.records + (int64_t{first_tile + tile} * args.row_records + first) * w4a16::record_bytes,
            min(args.chunk_records, args.row_records - first),
            static_cast<uint32_t>(first) * (2 * w4a16::record_cols),
        };
    };
    Cursor cursor(warp, warps);
    if (lane == 0) {
        ring.init();
        for (uint32_t s = 0; s < Slots && cursor.find(warps, units, locate); ++s) cursor.request(ring, s);
    }
    float2 norm_weight[norm_pairs];
    if (args.norm.h) load_norm_weight(args, norm_weight);
    if (args.overlap) {
        overlap_next();
        wait_for_previous();
    }
    if (args.norm.h) {
        normed_input(args, sums + 16 * args.tiles * active, reinterpret_cast<uint32_t*>(shared), norm_weight);
    } else {
        const int row_bytes = args.row_records * (2 * w4a16::record_cols);
        for (int at = 16 * thread; at < row_bytes; at += 16 * threads) {
            const bool present = static_cast<uint32_t>(at) < args.x_bytes;
            copy16_or_zero(base + at, args.x + (present ? at : 0), present);
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
    }
    __syncthreads();
    multiply_units(ring, cursor, shared, base, warp, warps, units, locate, args.scale_bits, sums);
    __syncthreads();
    const auto output = [&](int row) {
        return w4a16_output(row_sum(sums, row / 16 * active, active, row % 16), args.factors,
                            min(first_tile * 16 + row, args.n - 1));
    };
    const int rows = tiles * 16;
    if (args.gated && !args.paired) {
        for (int row = thread; row < rows; row += threads)
            if (const int out = first_tile * 16 + row; out < args.n)
                args.gated[out] = bf16_from_float(act(args.activation, rounded(output(row))));
    } else if (args.gated) {
        for (int place = thread; place < rows / 2; place += threads) {
            const int row = place / 16 * 32 + place % 16;
            if (first_tile * 16 + row >= args.n) continue;
            const float gate = act(args.activation, rounded(output(row)));
            args.gated[first_tile * 8 + place] = bf16_from_float(gate * rounded(output(row + 16)));
        }
    } else {
        for (int row = thread; row < rows; row += threads)
            if (const int out = first_tile * 16 + row; out < args.n) args.y[out] = output(row);
    }
}

template <int Slots>
cudaError_t launch(const GemvArgs& args, const TokenShape& shape, cudaStream_t stream) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<unsigned>(args.blocks + args.side.row_tiles);
    config.blockDim = static_cast<unsigned>(32 * shape.warps);
    config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = args.overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, matmul_w4a16_m1_kernel<Slots>, args);
}

}  // namespace

int token_ring_bytes(int warps, int slots) { return warps * slots * (w4a16::record_bytes + 8); }

cudaError_t launch_matmul_w4a16_m1(const GemvArgs& args, const TokenShape& shape, cudaStream_t stream) {
    switch (shape.slots) {
        case 1:
            return launch<1>(args, shape, stream);
        case 2:
            return launch<2>(args, shape, stream);
        case 3:
            return launch<3>(args, shape, stream);
        case 4:
            return launch<4>(args, shape, stream);
        default:
            return cudaErrorInvalidValue;
    }
}

cudaError_t prepare_matmul_w4a16_m1(int64_t bytes) {
    for (const auto kernel :
         {matmul_w4a16_m1_kernel<1>, matmul_w4a16_m1_kernel<2>, matmul_w4a16_m1_kernel<3>, matmul_w4a16_m1_kernel<4>})
        if (const cudaError_t code = allow_shared_memory(kernel, bytes)) return code;
    return cudaSuccess;
}

}  // namespace nibble::cuda
