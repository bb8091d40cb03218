#include "kernels/elementwise_backward_cuda.h"

#include "kernels/cuda/elementwise/elementwise_backward_launch.h"
#include "kernels/cuda/elementwise/elementwise_launch.h"
#include "kernels/cuda/primitives/launch_checks.h"

namespace nibble::cuda {
namespace {

constexpr int64_t most_back_width = 16384;

Status check_heads(std::string_view what, const RopeRows& r) {
    if (r.tokens < 1 || r.q_heads < 1 || r.kv_heads < 1 || r.tokens * (r.q_heads + 2 * r.kv_heads) > INT32_MAX ||
        r.dim < 8 || r.dim > 256 || r.dim % 8 || r.rope_dims > r.dim || r.rope_dims % 2)
        return fail("{}: {} tokens, {} and {} heads of {}, {} of them rotated", what, r.tokens, r.q_heads, r.kv_heads,
                    r.dim, r.rope_dims);
    return check_aligned(what, {r.qkv, r.cos, r.sin, r.q, r.k, r.v});
}

}  // namespace

int64_t norm_backward_workspace(int64_t width) { return int64_t{4} * sum_parts * width; }

Status norm_backward(const NormBackward& n, const Stream& stream) {
    NIBBLE_CHECK(check_rows("norm_backward", n.tokens, n.width));
    NIBBLE_CHECK(check_aligned("norm_backward", {n.x, n.weight, n.dy, n.dx, n.rows, n.dweight, n.workspace}));
    if (n.add && !n.dx) return fail("norm_backward: add needs dx");
    if (n.width > most_back_width) return fail("norm_backward: width {} is more than {}", n.width, most_back_width);
    return cuda_status(launch_norm_backward(n, queue_of(stream)), "norm_backward: kernel launch");
}

int64_t column_sums_workspace(int64_t width) { return int64_t{4} * column_parts * width; }

Status column_sums(const ColumnSums& c, const Stream& stream) {
    if (c.tokens < 1 || c.width < 1 || !c.x == !c.wide) return fail("column_sums: {} rows of {}", c.tokens, c.width);
    return cuda_status(launch_column_sums(c, queue_of(stream)), "column_sums: kernel launch");
}

Status activate_backward(const ActivateBackward& a, const Stream& stream) {
    NIBBLE_CHECK(check_rows("activate_backward", a.tokens, a.width));
    NIBBLE_CHECK(check_aligned("activate_backward", {a.in, a.d_mid, a.d_in, a.mid}));
    return cuda_status(launch_activate_backward({.in = a.in,
                                                 .d_mid = a.d_mid,
                                                 .d_in = a.d_in,
                                                 .mid = a.mid,
                                                 .tokens = a.tokens,
                                                 .width = a.width,
                                                 .activation = static_cast<int>(a.activation),
                                                 .gated = a.gated},
                                                queue_of(stream)),
                       "activate_backward: kernel launch");
}

Status rope_rows(const RopeRows& r, const Stream& stream) {
    NIBBLE_CHECK(check_heads("rope_rows", r));
    if (!r.qkv || !r.q || !r.k || !r.v) return fail("rope_rows: a pointer is missing");
    const KvDims dims{r.dim, r.dim};
    const RopeArgs rope{.cache = {.kv_heads = r.kv_heads, .dims = dims},
                        .rotary = {r.positions, r.cos, r.sin, r.rope_dims, r.interleaved},
                        .q_norm = r.q_norm,
                        .k_norm = r.k_norm,
                        .q = reinterpret_cast<uint16_t*>(r.q),
                        .tokens = r.tokens,
                        .qkv_stride = int64_t{r.q_heads + 2 * r.kv_heads} * r.dim,
                        .q_heads = r.q_heads,
                        .eps = r.eps};
    return cuda_status(launch_rope_rows({.rope = rope,
                                         .qkv = reinterpret_cast<const uint16_t*>(r.qkv),
                                         .k = reinterpret_cast<uint16_t*>(r.k),
                                         .v = reinterpret_cast<uint16_t*>(r.v)},
                                        queue_of(stream)),
                       "rope_rows: kernel launch");
}

int64_t rope_backward_workspace(int dim) { return int64_t{2} * 4 * sum_parts * dim; }

Status rope_backward(const RopeRows& r, std::byte* d_qkv, float* dq_norm, float* dk_norm, std::byte* workspace,
                     const Stream& stream) {
    NIBBLE_CHECK(check_heads("rope_backward", r));
    NIBBLE_CHECK(check_aligned("rope_backward", {d_qkv}));
    if ((dq_norm && !r.q_norm) || (dk_norm && !r.k_norm) || ((dq_norm || dk_norm) && !workspace))
        return fail("rope_backward: gradients of norms need the norms and a workspace");
    return cuda_status(launch_rope_backward(r, d_qkv, dq_norm, dk_norm, workspace, queue_of(stream)),
                       "rope_backward: kernel launch");
}

Status embedding_backward(const EmbeddingBackward& e, const Stream& stream) {
    NIBBLE_CHECK(check_rows("embedding_backward", e.unique, e.width));
    NIBBLE_CHECK(check_aligned("embedding_backward", {e.dx, e.dw}));
    return cuda_status(launch_embedding_backward(e, queue_of(stream)), "embedding_backward: kernel launch");
}

Status scale_rows(const std::byte* from, int64_t count, float scale, std::byte* to, const Stream& stream) {
    return cuda_status(launch_scale_rows(from, count, scale, to, queue_of(stream)), "scale_rows: kernel launch");
}

Status add_one(float* x, int64_t count, const Stream& stream) {
    return cuda_status(launch_add_one(x, count, queue_of(stream)), "add_one: kernel launch");
}

}  // namespace nibble::cuda
