#include "kernels/cuda/elementwise_launch.h"
#include "kernels/elementwise_cuda.h"
#include "tensor/cuda/call.h"

namespace nibble::cuda {
namespace {

cudaStream_t raw(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

constexpr int64_t most_tokens = 65535;  // the second dimension of a grid

Status usable(std::string_view what, int64_t tokens, int64_t width, int64_t multiple, const RowsOut& out) {
    if (tokens < 1 || tokens > most_tokens)
        return fail("{}: {} tokens, 1 to {} are supported", what, tokens, most_tokens);
    if (width < multiple || width % multiple) return fail("{}: width {} is no multiple of {}", what, width, multiple);
    if (out.tile_tokens && width % 64) return fail("{}: width {} is no multiple of 64", what, width);
    return Ok{};
}

}  // namespace

Status embed(const std::byte* table, const int32_t* tokens, int64_t count, int64_t width, std::byte* h, bool overlap,
             const Stream& stream) {
    NIBBLE_CHECK(usable("embed", count, width, 8, {}));
    return cuda_status(launch_embed({.table = reinterpret_cast<const uint4*>(table),
                                     .tokens = tokens,
                                     .h = reinterpret_cast<uint4*>(h),
                                     .count = count,
                                     .width = width,
                                     .overlap = overlap},
                                    raw(stream)),
                       "embed: kernel launch");
}

Status add_norm(const AddNorm& a, bool overlap, const Stream& stream) {
    NIBBLE_CHECK(usable("add_norm", a.tokens, a.width, 16, a.out));
    if (a.width > most_norm_width) return fail("add_norm: width {} is more than {}", a.width, most_norm_width);
    return cuda_status(launch_add_norm({.h = reinterpret_cast<uint16_t*>(a.h),
                                        .update = a.update,
                                        .weight = a.weight,
                                        .out = reinterpret_cast<uint8_t*>(a.out.data),
                                        .tokens = a.tokens,
                                        .width = static_cast<int>(a.width),
                                        .tile_tokens = a.out.tile_tokens,
                                        .eps = a.eps,
                                        .overlap = overlap},
                                       raw(stream)),
                       "add_norm: kernel launch");
}

Status activate(Activation activation, bool gated, const float* in, int64_t tokens, int64_t width, const RowsOut& out,
                bool overlap, const Stream& stream) {
    NIBBLE_CHECK(usable("activate", tokens, width, 8, out));
    return cuda_status(launch_activate({.in = in,
                                        .out = reinterpret_cast<uint8_t*>(out.data),
                                        .tokens = tokens,
                                        .width = static_cast<int>(width),
                                        .tile_tokens = out.tile_tokens,
                                        .activation = static_cast<int>(activation),
                                        .gated = gated,
                                        .overlap = overlap},
                                       raw(stream)),
                       "activate: kernel launch");
}

Status rope_append(const RopeAppend& r, const KvCache& cache, bool overlap, const Stream& stream) {
    const KvShape& shape = cache.shape;
    if (r.tokens < 1 || r.q_heads < 1 || shape.kv_heads < 1 || shape.page_tokens % kv_tile_tokens)
        return fail("rope_append: {} tokens, {} and {} heads, pages of {}", r.tokens, r.q_heads, shape.kv_heads,
                    shape.page_tokens);
    return cuda_status(launch_rope({.qkv = r.qkv,
                                    .positions = r.positions,
                                    .slots = r.slots,
                                    .cos = r.cos,
                                    .sin = r.sin,
                                    .q = reinterpret_cast<uint16_t*>(r.q),
                                    .pages = reinterpret_cast<uint8_t*>(cache.pages),
                                    .k_scales = cache.k_scales,
                                    .v_scales = cache.v_scales,
                                    .tokens = r.tokens,
                                    .page_bytes = shape.page_bytes(),
                                    .q_heads = r.q_heads,
                                    .kv_heads = shape.kv_heads,
                                    .page_tokens = shape.page_tokens,
                                    .overlap = overlap},
                                   shape.type, raw(stream)),
                       "rope_append: kernel launch");
}

Status argmax(const float* logits, int64_t tokens, int64_t width, int32_t* index, bool overlap, const Stream& stream) {
    NIBBLE_CHECK(usable("argmax", tokens, width, 1, {}));
    return cuda_status(launch_argmax({logits, index, tokens, width, overlap}, raw(stream)), "argmax: kernel launch");
}

}  // namespace nibble::cuda
