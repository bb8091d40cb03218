// The backward pass of causal attention on Hopper: the two kernels of attention_backward.cu with wgmma, for heads of 64
// and 128 dimensions. Each warpgroup has 64 rows and waits only for the copy engine, which loads the other side in
// tiles of 64 rows. Heads are adjacent in the grid, so the longest blocks of all heads run first.
//
// Sums run over tiles in ascending order, heads first, the same in every launch.
#include "kernels/cuda/attention/attention_backward_launch.h"
#include "kernels/cuda/attention/sm90_attention_backward.cuh"

namespace nibble::cuda {
namespace {

// Encodes the tensor map of x [tokens, heads, dim].
bool encode(CUtensorMap& map, const AttentionBackward& a, const std::byte* x, int heads) {
    const auto panels = static_cast<cuuint64_t>(a.dim / 64);
    return encode_3d(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, x,
                     {64, static_cast<cuuint64_t>(a.tokens), panels * static_cast<cuuint64_t>(heads)},
                     {128 * panels * static_cast<cuuint64_t>(heads), 128}, {64, 64, static_cast<cuuint32_t>(panels)},
                     CU_TENSOR_MAP_SWIZZLE_128B);
}

}  // namespace

cudaError_t prepare_attention_backward_wide() {
    if (const cudaError_t code = prepare_dq_wide()) return code;
    return prepare_dkv_wide();
}

cudaError_t launch_attention_backward_wide(const AttentionBackArgs& args, cudaStream_t stream) {
    if (!map_encoder()) return cudaErrorNotSupported;
    const AttentionBackward& a = args.a;
    AttentionBackMaps maps{};
    if (!encode(maps.q, a, a.q, a.q_heads) || !encode(maps.d_o, a, a.d_o, a.q_heads) ||
        !encode(maps.k, a, a.k, a.kv_heads) || !encode(maps.v, a, a.v, a.kv_heads))
        return cudaErrorInvalidValue;
    if (const cudaError_t code = launch_dq_wide(args, maps, stream)) return code;
    return launch_dkv_wide(args, maps, stream);
}

}  // namespace nibble::cuda
