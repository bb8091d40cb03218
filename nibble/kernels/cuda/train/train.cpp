#include "base/checked.h"
#include "kernels/cuda/elementwise/elementwise_launch.h"
#include "kernels/cuda/train/train_launch.h"
#include "kernels/train_cuda.h"
#include "tensor/cuda/call.h"

#include <initializer_list>

namespace nibble::cuda {
namespace {

constexpr int64_t most_back_width = 16384;

cudaStream_t queue_of(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

Status check_rows(std::string_view what, int64_t tokens, int64_t width) {
    if (tokens < 1 || width < 8 || width % 8)
        return fail("{}: {} rows of {}; widths are multiples of 8", what, tokens, width);
    return Ok{};
}

Status check_aligned(std::string_view what, std::initializer_list<const void*> pointers) {
    for (const void* p : pointers)
        if (reinterpret_cast<uintptr_t>(p) % 16) return fail("{}: device pointers must be 16-byte aligned", what);
    return Ok{};
}

Status check_heads(std::string_view what, const RopeRows& r) {
    if (r.tokens < 1 || r.q_heads < 1 || r.kv_heads < 1 || r.tokens * (r.q_heads + 2 * r.kv_heads) > INT32_MAX ||
        r.dim < 8 || r.dim > 256 || r.dim % 8 || r.rope_dims > r.dim || r.rope_dims % 2)
        return fail("{}: {} tokens, {} and {} heads of {}, {} of them rotated", what, r.tokens, r.q_heads, r.kv_heads,
                    r.dim, r.rope_dims);
    return check_aligned(what, {r.qkv, r.cos, r.sin, r.q, r.k, r.v});
}

}  // namespace

Status prepare_training(const DeviceInfo& device) {
    const CurrentDevice current(device.index);
    NIBBLE_CHECK(current.status());
    NIBBLE_CHECK(cuda_status(prepare_attention_backward(), "attention_backward: cudaFuncSetAttribute"));
    NIBBLE_CHECK(cuda_status(prepare_label_loss(), "label_loss: cudaFuncSetAttribute"));
    return cuda_status(prepare_teacher_loss(), "teacher_loss: cudaFuncSetAttribute");
}

int64_t norm_backward_workspace(int64_t width) { return int64_t{4} * sum_parts * width; }

Status norm_backward(const NormBackward& n, const Stream& stream) {
    NIBBLE_CHECK(check_rows("norm_backward", n.tokens, n.width));
    NIBBLE_CHECK(check_aligned("norm_backward", {n.x, n.weight, n.dy, n.dx, n.rows, n.dweight, n.workspace}));
    if (n.add && !n.dx) return fail("norm_backward: nothing to add to");
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
        return fail("rope_backward: gradients of norms that are not there, or no room for them");
    return cuda_status(launch_rope_backward(r, d_qkv, dq_norm, dk_norm, workspace, queue_of(stream)),
                       "rope_backward: kernel launch");
}

bool has_attention_backward(int dim) { return dim == 64 || dim == 96 || dim == 128 || dim == 192 || dim == 256; }

// AttentionBackArgs' terms of queries.
int64_t attention_backward_workspace(int64_t tokens, int q_heads) {
    return 4 * round_up<int64_t>(tokens, 64) * (2 * q_heads + 1);
}

Status attention_backward(const AttentionBackward& a, const Stream& stream) {
    if (!has_attention_backward(a.dim))
        return fail("attention_backward: heads of {} dimensions have no kernel (64, 96, 128, 192, 256)", a.dim);
    if (a.tokens < 1 || a.kv_heads < 1 || a.q_heads < a.kv_heads || a.q_heads % a.kv_heads || a.q_heads > 65535)
        return fail("attention_backward: {} tokens, {} heads on {}", a.tokens, a.q_heads, a.kv_heads);
    if (!a.log_sums) return fail("attention_backward: no logarithms of sums");
    if (a.d_stride % 8) return fail("attention_backward: rows lie {} apart, not a multiple of 8", a.d_stride);
    NIBBLE_CHECK(check_aligned("attention_backward", {a.q, a.k, a.v, a.o, a.d_o, a.dq, a.dk, a.dv, a.workspace}));
    return cuda_status(launch_attention_backward(a, on_hopper(), queue_of(stream)),
                       "attention_backward: kernel launch");
}

Status label_loss(const LabelLoss& l, const Stream& stream) {
    NIBBLE_CHECK(check_rows("label_loss", l.rows, l.vocab));
    NIBBLE_CHECK(check_aligned("label_loss", {l.logits, l.d_logits}));
    if (l.vocab > softmax_most_vocab)
        return fail("label_loss: a vocabulary of {}, at most {}", l.vocab, softmax_most_vocab);
    if (l.d_logits && !l.slopes) return fail("label_loss: a gradient without slopes");
    return cuda_status(launch_label_loss(l, queue_of(stream)), "label_loss: kernel launch");
}

Status teacher_loss(const TeacherLoss& l, const Stream& stream) {
    NIBBLE_CHECK(check_rows("teacher_loss", l.rows, l.vocab));
    NIBBLE_CHECK(check_aligned("teacher_loss", {l.logits, l.teacher, l.d_logits}));
    if (l.vocab > softmax_most_vocab)
        return fail("teacher_loss: a vocabulary of {}, at most {}", l.vocab, softmax_most_vocab);
    if (!l.teacher || !l.weights || !l.losses || !l.d_logits) return fail("teacher_loss: a pointer is missing");
    return cuda_status(launch_teacher_loss(l, queue_of(stream)), "teacher_loss: kernel launch");
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

Status add_gradient(float* to, const float* from, int64_t count, const Stream& stream) {
    NIBBLE_CHECK(check_rows("add_gradient", 1, count));
    NIBBLE_CHECK(check_aligned("add_gradient", {to, from}));
    return cuda_status(launch_add_gradient(to, from, count, queue_of(stream)), "add_gradient: kernel launch");
}

Status sum_gradients(float* to, const float* a, const float* b, int64_t count, const Stream& stream) {
    NIBBLE_CHECK(check_rows("sum_gradients", 1, count));
    NIBBLE_CHECK(check_aligned("sum_gradients", {to, a, b}));
    return cuda_status(launch_sum_gradients(to, a, b, count, queue_of(stream)), "sum_gradients: kernel launch");
}

Status section_squares(const float* x, int64_t count, int first, int sections, double* parts, const Stream& stream) {
    if (sections == 0) return Ok{};
    if (count != 0) NIBBLE_CHECK(check_rows("section_squares", 1, count));
    NIBBLE_CHECK(check_aligned("section_squares", {x}));
    if (first < 0 || sections < 0 || first + sections > square_sections)
        return fail("section_squares: sections {} to {} of {}", first, first + sections, square_sections);
    return cuda_status(
        launch_section_squares(x, count, section_elements(count), first, sections, parts, queue_of(stream)),
        "section_squares: kernel launch");
}

Status sum_sections(const double* parts, int count, double* sum, const Stream& stream) {
    return cuda_status(launch_sum_sections(parts, count, sum, queue_of(stream)), "sum_sections: kernel launch");
}

Status clip_factor(const double* squares, double limit, float* clip, const Stream& stream) {
    return cuda_status(launch_clip_factor(squares, limit, clip, queue_of(stream)), "clip_factor: kernel launch");
}

Status adamw_update(const AdamW& a, const Stream& stream) {
    NIBBLE_CHECK(check_rows("adamw_update", 1, a.count));
    NIBBLE_CHECK(check_aligned("adamw_update", {a.master, a.m, a.v, a.gradient, a.published}));
    return cuda_status(launch_adamw(a, queue_of(stream)), "adamw_update: kernel launch");
}

}  // namespace nibble::cuda
