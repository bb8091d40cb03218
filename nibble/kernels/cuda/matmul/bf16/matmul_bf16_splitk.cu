// Products of exact operands with few rows (routers) for any number of tokens: K in eight chunks with one warp each, so
// that one token does not wait for a chain over all of K on a few multiprocessors. Operands go from L1 to registers,
// because only one tile of tokens uses a thread block's rows. With one token the first weights are loaded before the
// previous kernel ends.
#include "kernels/cuda/matmul/matmul_epilogue.cuh"
#include "kernels/cuda/matmul/w4a16/w4a16_decode.cuh"
#include "kernels/cuda/primitives/ptx.cuh"

namespace nibble::cuda {
namespace {

constexpr int chunks = 8, chunked_threads = 32 * chunks;
constexpr int batch_tiles = 6;  // blocks of 64 columns whose weights are in registers

template <int Tiles>  // tiles of eight tokens
__global__ void __launch_bounds__(chunked_threads) matmul_bf16_splitk_kernel(const __grid_constant__ ProductArgs args) {
    __shared__ float sums[chunks][16][8 * Tiles];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int g = lane / 4, c = lane % 4, row_tile = static_cast<int>(blockIdx.x);
    const int first_token = static_cast<int>(blockIdx.y) * (8 * Tiles),
              count = min(8 * Tiles, args.tokens - first_token);
    const int chunk_tiles = (args.k_tiles + chunks - 1) / chunks;
    const int first = min(warp * chunk_tiles, args.k_tiles), last = min(first + chunk_tiles, args.k_tiles);
    const uint8_t* weights = args.tiles + int64_t{row_tile / 4} * args.k_tiles * operand_tile_bytes +
                             row_tile % 4 * operand_row_tile_bytes + 128 * g + 4 * c;
    uint32_t a[batch_tiles][4][4];  // [block][k-step]
    const auto load_weights = [&](int from) {
#pragma unroll
        for (int t = 0; t < batch_tiles; ++t)
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
                for (int r = 0; r < 4; ++r) {  // rows g, g + 8; then the other eight columns
                    const int chunk16 = (2 * j + r / 2) ^ g;
                    if (from + t < last)
                        a[t][j][r] = *reinterpret_cast<const uint32_t*>(
                            weights + int64_t{from + t} * operand_tile_bytes + 1024 * (r % 2) + 16 * chunk16);
                }
    };
    if (args.overlap) overlap_next();
    load_weights(first);
    if (args.overlap) wait_for_previous();
    const uint8_t* x[Tiles];
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
        const int token =
            first_token +
            min(8 * t + g, count - 1);  // absent tokens read a present one: their columns are never stored
        x[t] = args.x + (args.rows ? args.rows[token] : token) * args.x_stride + 4 * c;
    }
    float acc[Tiles][4] = {};
    for (int from = first; from < last; from += batch_tiles) {
        if (from > first) load_weights(from);
#pragma unroll
        for (int t = 0; t < batch_tiles; ++t) {
            if (from + t >= last) break;
            const int column = 64 * (from + t);
            uint32_t b[4][Tiles][2];
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
                for (int i = 0; i < 2 * Tiles; ++i) {
                    const int at = column + 16 * j + 8 * (i % 2);
                    b[j][i / 2][i % 2] = at < args.k ? *reinterpret_cast<const uint32_t*>(x[i / 2] + 2 * at) : 0;
                }
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
                for (int i = 0; i < Tiles; ++i) multiply_add(acc[i], a[t][j], b[j][i][0], b[j][i][1]);
        }
    }
#pragma unroll
    for (int t = 0; t < Tiles; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[warp][g + 8 * (e / 2)][8 * t + 2 * c + e % 2] = acc[t][e];
    __syncthreads();
    for (int o = static_cast<int>(threadIdx.x); o < 16 * count; o += chunked_threads) {
        const int token = o / 16, row = row_tile * 16 + o % 16, at = first_token + token;
        if (row >= args.n) continue;
        float parts[chunks];
#pragma unroll
        for (int i = 0; i < chunks; ++i) parts[i] = sums[i][o % 16][token];
        const RowFactors factors(args, 0, row);
        const float factor = factors.scale * token_factor(args, args.rows ? args.rows[at] : at);
        args.y[at * args.y_stride + row] = product_output(tree_sum(parts), factor, factors.bias);
    }
}

template <int Tiles>
cudaError_t launch(const ProductArgs& args, cudaStream_t stream) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = {static_cast<unsigned>(args.row_tiles),
                      static_cast<unsigned>((args.tokens + 8 * Tiles - 1) / (8 * Tiles)), 1};
    config.blockDim = chunked_threads;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = args.overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, matmul_bf16_splitk_kernel<Tiles>, args);
}

}  // namespace

cudaError_t launch_matmul_bf16_splitk(const ProductArgs& args, cudaStream_t stream) {
    return args.tokens <= 8 ? launch<1>(args, stream) : launch<4>(args, stream);
}

}  // namespace nibble::cuda
