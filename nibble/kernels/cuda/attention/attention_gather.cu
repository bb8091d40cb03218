// Copies keys and values of runs of 128 positions to the layout of the prefill kernel's wgmma, [run][KV head][keys,
// values]: keys [dims / 64][128 positions][64 dims], values [2][dims][64 positions], rows of 128 swizzled bytes.
// Positions inside a tile of 16 and dimensions inside 32 are in the order of the other kernel's lanes, so every k-step
// has the same operands. FP8 codes become the FP16 values of the other kernel. The additional reads cost less than 1 %
// at 16k tokens.
#include "kernels/cuda/attention/attention_order.cuh"
#include "kernels/cuda/primitives/elementwise.cuh"

namespace nibble::cuda {
namespace {

// Each thread copies 16 bytes: eight dimensions of a row (keys) or eight positions (values).
template <class Kv, int Dims>
__global__ void __launch_bounds__(256) attention_gather_kernel(const __grid_constant__ AttentionArgs args) {
    constexpr KvDims dims{Dims, Dims};
    constexpr int half_bytes = run_tokens * Dims * 2, chunks = half_bytes / 16;
    constexpr int bytes = kv_element_bytes(Kv::type), steps = 4 / bytes;  // steps: k-steps of a panel of K
    start(args.overlap);
    const AttentionCounts& counts = *reinterpret_cast<const AttentionCounts*>(args.work);
    const int32_t* list = args.work + counts.gathers_at;
    for (int item = static_cast<int>(blockIdx.x); item < counts.gathers * args.kv_heads;
         item += static_cast<int>(gridDim.x)) {
        const int head = item % args.kv_heads;
        const int32_t* at = list + item / args.kv_heads * gather_words;
        const AttentionGather run{at[0], at[1], at[2], at[3], at[4]};
        uint8_t* out = args.scratch + (int64_t{run.scratch} * args.kv_heads + head) * (2 * half_bytes);
        const int page_tiles = args.page_tokens / kv_tile_tokens;
        // Returns the tile of 16 positions, or null if no query sees any of it.
        const auto tile_at = [&](int i) -> const uint8_t* {
            const int position = run.position + i * kv_tile_tokens, tile = position / kv_tile_tokens;
            if (position > run.last || position + kv_tile_tokens <= run.first) return nullptr;
            const int page = args.table[run.table * args.table_pitch + tile / page_tiles];
            return args.pages + page * args.page_stride +
                   int64_t{head * page_tiles + tile % page_tiles} * kv_tile_bytes(Kv::type, dims);
        };
        for (int i = static_cast<int>(threadIdx.x); i < 2 * chunks; i += 256) {
            uint4 v{0, 0, 0, 0};
            uint32_t to;
            if (i < chunks) {  // keys: lane-order pairs at 16 c of a panel's row, c = 0 ... 3
                const int block = i / (8 * run_tokens), row = i / 8 % run_tokens, chunk = i % 8;
                const int step = 4 * block + chunk / 2;
                to = block * (128 * run_tokens) + row * 128 + (chunk ^ row % 8) * 16;
                if (const uint8_t* tile = tile_at(row / 16)) {
                    const uint8_t* from =
                        tile + step / steps * 1024 + row % 16 * 64 + (step % steps * 4 + chunk % 2 * 2) * bytes;
                    v = {Kv::load_two(from), Kv::load_two(from + 16), Kv::load_two(from + 32), Kv::load_two(from + 48)};
                }
            } else {
                const int d = (i - chunks) / 8 % Dims, block = (i - chunks) / (8 * Dims), chunk = i % 8;
                to = half_bytes + (block * Dims + d) * 128 + (chunk ^ d % 8) * 16;
                const int at_tile = 4 * block + chunk / 2;
                if (const uint8_t* tile = tile_at(at_tile)) {
                    const uint8_t* from = tile + k_tile_bytes(Kv::type, dims) + v_offset(Kv::type, chunk % 2 * 2, d);
                    uint32_t word[4];
#pragma unroll
                    for (int c = 0; c < 4; ++c) {
                        word[c] = Kv::load_two(from + 16 * c);
                        // Positions after the last may have any contents.
                        const int left =
                            run.last + 1 - (run.position + at_tile * kv_tile_tokens + 4 * c + 2 * (chunk % 2));
                        word[c] &= left >= 2 ? 0xFFFFFFFFu : left == 1 ? 0xFFFFu : 0u;
                    }
                    v = {word[0], word[1], word[2], word[3]};
                }
            }
            *reinterpret_cast<uint4*>(out + to) = v;
        }
    }
}

}  // namespace

cudaError_t launch_gather(const AttentionArgs& args, KvType type, int dims, int blocks, cudaStream_t stream) {
    const auto kernel = type == KvType::bf16
                            ? (dims == 64 ? attention_gather_kernel<Bf16Kv, 64> : attention_gather_kernel<Bf16Kv, 128>)
                            : (dims == 64 ? attention_gather_kernel<E4m3Kv, 64> : attention_gather_kernel<E4m3Kv, 128>);
    return launch_kernel(kernel, dim3(static_cast<unsigned>(blocks)), 256, 0, args, stream);
}

}  // namespace nibble::cuda
