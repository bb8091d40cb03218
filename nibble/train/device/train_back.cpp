// The way back of TrainPass.
#include "train/device/train_back.h"

#include "train/device/train_pass.h"
#include "train/device/train_scratch.h"

#include <algorithm>

namespace nibble {

Result<BackSizes> BackSizes::make(const TrainWeights& weights, const TrainPassShape& shape) {
    const int64_t n = shape.tokens();
    BackSizes s{.shared = std::max(cuda::back_workspace_bytes, cuda::norm_backward_workspace(weights.config().hidden))};
    for (const DeviceLayer& layer : weights.layers()) {
        const auto* a = std::get_if<AttentionConfig>(&layer.config.mixer);
        if (!a) continue;
        if (!cuda::has_attention_backward(a->head_dim))
            return fail("--device cuda does not train heads of {} dimensions yet ({})", a->head_dim,
                        layer.config.prefix);
        s.attention = std::max(s.attention, cuda::attention_backward_workspace(n, a->heads));
        s.shared = std::max(s.shared, cuda::rope_backward_workspace(a->head_dim));
    }
    return s;
}

Result<const cuda::BackPlan*> BackPlans::of(int64_t tokens, int64_t rows, int64_t cols) {
    const auto key = std::make_tuple(tokens, rows, cols);
    if (const auto found = plans_.find(key); found != plans_.end()) return &found->second;
    NIBBLE_TRY(cuda::BackPlan plan, cuda::plan_back_products({.tokens = tokens, .rows = rows, .cols = cols}, device_));
    return &plans_.emplace(key, std::move(plan)).first->second;
}

Status TrainPass::linear_backward(const FlatMatrix& w, const std::byte* dy, const std::byte* x, std::byte* dx,
                                  float* gradient, int64_t tokens, bool add) {
    NIBBLE_TRY(const cuda::BackPlan* plan, plans_.of(tokens, w.rows, w.cols));
    NIBBLE_CHECK(cuda::back_input_gradient(*plan, dy, weights_.published(w), dx, workspace_, stream_).within(w.name));
    return cuda::back_weight_gradient(*plan, dy, x, gradient + w.at, add, workspace_, stream_).within(w.name);
}

Status TrainPass::head(float* log_probs, float* gradient) {
    DeviceStep& step = *kinds_[0].step;
    const DeviceScope scope(step);
    const int64_t vocab = weights_.config().vocab, most = TrainScratch::slab(shape_.tokens(), vocab);
    NIBBLE_TRY(float* logits, step.scratch.allocate_array<float>(most * vocab));
    NIBBLE_TRY(std::byte * d_logits, step.scratch.allocate(2 * most * vocab));
    for (int64_t at = 0; at < tokens_; at += most) {
        const int64_t rows = std::min(most, tokens_ - at);
        const std::byte* x = normed_ + 2 * at * hidden();
        NIBBLE_CHECK(weights_.head().forward({.x = x}, rows, logits, vocab, step));
        NIBBLE_CHECK(cuda::label_loss({.rows = rows,
                                       .vocab = vocab,
                                       .logits = logits,
                                       .labels = upload_.at<int32_t>(labels_) + at,
                                       .slopes = gradient ? slope_upload_.at<float>(slopes_) + at : nullptr,
                                       .log_probs = log_probs + at,
                                       .d_logits = gradient ? d_logits : nullptr},
                                      stream_));
        if (!gradient) continue;
        NIBBLE_CHECK(
            linear_backward(weights_.flat().head, d_logits, x, dx_ + 2 * at * hidden(), gradient, rows, at > 0));
    }
    return Ok{};
}

Status TrainPass::log_probs(float* out) { return head(out, nullptr); }

Status TrainPass::backward(float* gradient, float* log_probs) {
    const FlatLayout& flat = weights_.flat();
    const float eps = weights_.config().norm_eps;
    NIBBLE_CHECK(head(log_probs, gradient));
    NIBBLE_CHECK(cuda::norm_backward({.tokens = tokens_,
                                      .width = hidden(),
                                      .x = last_stream_,
                                      .weight = weights_.norm(),
                                      .dy = dx_,
                                      .dx = d_stream_,
                                      .dweight = gradient + weights_.place(weights_.config().norm),
                                      .eps = eps,
                                      .workspace = workspace_},
                                     stream_));
    for (size_t b = weights_.layers().size(); b-- > 0;) NIBBLE_CHECK(block_backward(b, gradient));
    float* rows = gradient + flat.embedding.at;
    if (!flat.tied)
        NIBBLE_CHECK(fill_device(reinterpret_cast<std::byte*>(rows), 0, 4 * flat.embedding.elements(), stream_));
    return cuda::embedding_backward({.unique = unique_,
                                     .width = hidden(),
                                     .ids = upload_.at<int32_t>(ids_),
                                     .begin = upload_.at<int32_t>(begin_),
                                     .order = upload_.at<int32_t>(order_),
                                     .dx = d_stream_,
                                     .scale = 1.0f,
                                     .dw = rows},
                                    stream_);
}

Status TrainPass::block_backward(size_t b, float* gradient) {
    const DeviceLayer& layer = weights_.layers()[b];
    const Kept& kept = kept_[b];
    const float eps = weights_.config().norm_eps;
    if (shape_.recompute == Recompute::block) {
        NIBBLE_CHECK(cuda::add_norm(
            {.tokens = tokens_, .width = hidden(), .h = kept.stream, .weight = layer.norm, .eps = eps, .out = {kept.x}},
            step_of(b).overlap, stream_));
        NIBBLE_CHECK(block_forward(b, kept, nullptr));
    }
    NIBBLE_CHECK(cuda::to_rows(d_stream_, 0, tokens_, hidden(), {dy_}, step_of(b).overlap, stream_));
    NIBBLE_CHECK(attention(b) ? attention_backward(b, kept, gradient) : mlp_backward(b, kept, gradient));
    return cuda::norm_backward({.tokens = tokens_,
                                .width = hidden(),
                                .x = kept.stream,
                                .weight = layer.norm,
                                .dy = dx_,
                                .dx = d_stream_,
                                .add = true,
                                .dweight = gradient + weights_.place(layer.config.norm),
                                .eps = eps,
                                .workspace = workspace_},
                               stream_);
}

Status TrainPass::mlp_backward(size_t b, const Kept& kept, float* gradient) {
    DeviceStep& step = step_of(b);
    const DeviceScope scope(step);
    const DeviceMlp& m = *mlp(b);
    const std::vector<FlatMatrix>& units = weights_.flat().units[b];
    NIBBLE_TRY(std::byte * mid, step.scratch.allocate(m.mid_bytes(tokens_)));
    NIBBLE_TRY(std::byte * d_mid, step.scratch.allocate(m.mid_bytes(tokens_)));
    NIBBLE_TRY(std::byte * d_in, step.scratch.allocate(2 * tokens_ * m.in().rows));
    NIBBLE_TRY(const cuda::BackPlan* out, plans_.of(tokens_, units[1].rows, units[1].cols));
    NIBBLE_CHECK(cuda::back_input_gradient(*out, dy_, weights_.published(units[1]), d_mid, workspace_, stream_)
                     .within(units[1].name));
    NIBBLE_CHECK(cuda::activate_backward({.activation = m.config().activation,
                                          .gated = m.config().gated,
                                          .tokens = tokens_,
                                          .width = m.config().intermediate,
                                          .in = kept.wide,
                                          .d_mid = d_mid,
                                          .d_in = d_in,
                                          .mid = mid},
                                         stream_));
    NIBBLE_CHECK(cuda::back_weight_gradient(*out, dy_, mid, gradient + units[1].at, false, workspace_, stream_)
                     .within(units[1].name));
    return linear_backward(units[0], d_in, kept.x, dx_, gradient, tokens_, false);
}

Status TrainPass::attention_backward(size_t b, const Kept& kept, float* gradient) {
    DeviceStep& step = step_of(b);
    const DeviceScope scope(step);
    const DeviceAttention& a = *attention(b);
    const AttentionConfig& c = a.config();
    const std::vector<FlatMatrix>& units = weights_.flat().units[b];
    const std::string& prefix = weights_.layers()[b].config.prefix;
    const int64_t width = a.in().rows, q_cols = int64_t{c.heads} * c.head_dim,
                  kv_cols = int64_t{c.kv_heads} * c.head_dim;
    NIBBLE_TRY(std::byte * d_heads, step.scratch.allocate(2 * tokens_ * q_cols));
    NIBBLE_TRY(std::byte * q, step.scratch.allocate(2 * tokens_ * q_cols));
    NIBBLE_TRY(std::byte * k, step.scratch.allocate(2 * tokens_ * kv_cols));
    NIBBLE_TRY(std::byte * v, step.scratch.allocate(2 * tokens_ * kv_cols));
    NIBBLE_TRY(std::byte * d_qkv, step.scratch.allocate(2 * tokens_ * width));
    NIBBLE_TRY(std::byte * workspace, step.scratch.allocate(back_.attention));
    NIBBLE_CHECK(linear_backward(units[1], dy_, kept.heads, d_heads, gradient, tokens_, false));
    const DeviceRotary rotary = step.rotary_of(c.rope);
    const cuda::RopeRows rope{.tokens = tokens_,
                              .q_heads = c.heads,
                              .kv_heads = c.kv_heads,
                              .dim = c.head_dim,
                              .qkv = kept.wide,
                              .q_norm = a.q_norm(),
                              .k_norm = a.k_norm(),
                              .eps = weights_.config().norm_eps,
                              .rope_dims = c.rope.dims,
                              .interleaved = c.rope.interleaved,
                              .positions = step.positions,
                              .cos = rotary.cos,
                              .sin = rotary.sin,
                              .q = q,
                              .k = k,
                              .v = v};
    NIBBLE_CHECK(cuda::rope_rows(rope, stream_));
    NIBBLE_CHECK(cuda::attention_backward({.tokens = tokens_,
                                           .q_heads = c.heads,
                                           .kv_heads = c.kv_heads,
                                           .dim = c.head_dim,
                                           .scale = c.scale,
                                           .window = c.window,
                                           .first = upload_.at<int32_t>(first_),
                                           .q = q,
                                           .k = k,
                                           .v = v,
                                           .o = kept.heads,
                                           .d_o = d_heads,
                                           .d_stride = width,
                                           .dq = d_qkv,
                                           .dk = d_qkv + 2 * q_cols,
                                           .dv = d_qkv + 2 * (q_cols + kv_cols),
                                           .workspace = workspace},
                                          stream_));
    float* dq_norm = c.qk_norm ? gradient + weights_.place(prefix + ".q_norm.weight") : nullptr;
    float* dk_norm = c.qk_norm ? gradient + weights_.place(prefix + ".k_norm.weight") : nullptr;
    NIBBLE_CHECK(cuda::rope_backward(rope, d_qkv, dq_norm, dk_norm, workspace_, stream_));
    return linear_backward(units[0], d_qkv, kept.x, dx_, gradient, tokens_, false);
}

}  // namespace nibble
