// The backward pass of TrainPass.
#include "kernels/loss_cuda.h"
#include "train/device/train_pass.h"
#include "train/device/train_scratch.h"

#include <algorithm>

namespace nibble {

Status TrainPass::head(float* log_probs, float* gradient, float* of_vectors) {
    DeviceStep& step = *kinds_[0].step;
    const DeviceScope scope(step);
    const size_t part = weights_.head_part();
    if (units_) NIBBLE_CHECK(mark("wait"));
    NIBBLE_CHECK(enter(part, gradient != nullptr));
    NIBBLE_CHECK(mark("head and loss"));
    TrainWork work = work_of(step, part, of_vectors);
    const int64_t vocab = weights_.config().vocab, most = TrainScratch::slab(shape_.tokens(), vocab);
    // Gradients overwrite the logits.
    NIBBLE_TRY(std::byte * logits, step.scratch.allocate(2 * most * vocab));
    const bool taught = gradient && teaching_.head;
    std::byte* teacher = nullptr;
    if (taught) {
        NIBBLE_TRY(teacher, step.scratch.allocate(2 * most * vocab));
    }
    for (int64_t at = 0; at < tokens_; at += most) {
        const int64_t rows = std::min(most, tokens_ - at);
        const std::byte* x = normed_ + 2 * at * hidden();
        NIBBLE_CHECK(weights_.head().forward_rounded(x, rows, logits, work));
        const int32_t* labels = upload_.at<int32_t>(labels_) + at;
        const float* slopes = gradient ? slope_upload_.at<float>(slopes_) + at : nullptr;
        if (taught) {
            const std::byte* of_teacher = teaching_.rows + 2 * at * teaching_.head->cols;
            NIBBLE_CHECK(teaching_.head->forward_rounded({.x = of_teacher}, rows, teacher, step).within("the teacher"));
            NIBBLE_CHECK(cuda::teacher_loss({.rows = rows,
                                             .vocab = vocab,
                                             .logits = logits,
                                             .teacher = teacher,
                                             .labels = labels,
                                             .weights = slopes,
                                             .cross_entropy = teaching_.cross_entropy,
                                             .losses = log_probs + at,
                                             .d_logits = logits},
                                            stream_));
        } else {
            const cuda::LabelLoss loss{.rows = rows,
                                       .vocab = vocab,
                                       .logits = logits,
                                       .labels = labels,
                                       .slopes = slopes,
                                       .log_probs = log_probs + at,
                                       .d_logits = gradient ? logits : nullptr};
            NIBBLE_CHECK(drawn_.raw() ? cuda::label_loss(loss, stream_)
                                      : cuda::drawn_label_loss(loss, drawn_, stream_));
        }
        if (!gradient) continue;
        NIBBLE_CHECK(weights_.head().backward(logits, x, rows, dx_ + 2 * at * hidden(), gradient, at > 0, work));
    }
    return leave(part, gradient != nullptr);
}

Status TrainPass::log_probs(float* out) { return head(out, nullptr, nullptr); }

Status TrainPass::backward(float* gradient, float* log_probs) {
    const FlatLayout& flat = weights_.flat();
    const float eps = weights_.config().norm_eps;
    if (units_) NIBBLE_CHECK(units_->begin_back(gradient));
    float* const of_vectors = units_ ? units_->of_vectors() : gradient;
    NIBBLE_TRY(float* of_head, gradient_of(weights_.head_part(), gradient));
    NIBBLE_CHECK(head(log_probs, of_head, of_vectors));
    if (units_ && !flat.tied) NIBBLE_CHECK(units_->reduce(weights_.head_part()));
    NIBBLE_CHECK(cuda::norm_backward({.tokens = tokens_,
                                      .width = hidden(),
                                      .x = last_stream_,
                                      .weight = weights_.norm(),
                                      .dy = dx_,
                                      .dx = d_stream_,
                                      .rows = dy_,
                                      .dweight = gradient_at(of_vectors, weights_.place(weights_.config().norm)),
                                      .eps = eps,
                                      .workspace = workspace_},
                                     stream_));
    for (size_t b = weights_.layers().size(); b-- > 0;) {
        NIBBLE_TRY(float* of_block, gradient_of(1 + b, gradient));
        NIBBLE_CHECK(block_backward(b, of_block, of_vectors));
        NIBBLE_CHECK(leave_gradient(1 + b));
    }
    NIBBLE_CHECK(mark("embedding back"));
    if (flat.embedding.at < 0) return Ok{};  // frozen
    float* rows = of_head + flat.embedding.at;
    if (!flat.tied) {
        NIBBLE_TRY(rows, gradient_of(0, gradient));
        rows += flat.embedding.at;
        NIBBLE_CHECK(fill_device(reinterpret_cast<std::byte*>(rows), 0, 4 * flat.embedding.elements(), stream_));
    }
    NIBBLE_CHECK(cuda::embedding_backward({.unique = unique_,
                                           .width = hidden(),
                                           .ids = upload_.at<int32_t>(ids_),
                                           .begin = upload_.at<int32_t>(begin_),
                                           .order = upload_.at<int32_t>(order_),
                                           .dx = d_stream_,
                                           .scale = weights_.config().embedding_scale,
                                           .dw = rows},
                                          stream_));
    NIBBLE_CHECK(leave_gradient(0));
    return units_ ? units_->reduce_vectors() : Status(Ok{});
}

Status TrainPass::block_backward(size_t b, float* gradient, float* of_vectors) {
    const DeviceLayer& layer = weights_.layers()[b];
    const Kept& kept = kept_[b];
    const float eps = weights_.config().norm_eps;
    const TrainMixer& mixer = weights_.mixer(b);
    if (units_) NIBBLE_CHECK(mark("wait"));
    NIBBLE_CHECK(enter(1 + b, true));
    NIBBLE_CHECK(mark("back", static_cast<int64_t>(b)));
    TrainWork work = work_of(b, true, of_vectors);
    if (shape_.recompute == Recompute::block) {
        NIBBLE_TRY(float* amax, amax_for(b));
        NIBBLE_CHECK(cuda::add_norm({.tokens = tokens_,
                                     .width = hidden(),
                                     .h = kept.stream,
                                     .weight = layer.norm,
                                     .eps = eps,
                                     .out = {kept.x},
                                     .amax = amax},
                                    step_of(b).overlap, stream_));
        NIBBLE_CHECK(block_forward(b, true, false, amax));
    }
    if (kept.out)
        NIBBLE_CHECK(cuda::norm_backward({.tokens = tokens_,
                                          .width = hidden(),
                                          .x = kept.out,
                                          .weight = layer.post_norm,
                                          .dy = dy_,
                                          .rows = dy_,
                                          .dweight = gradient_at(of_vectors, weights_.place(layer.config.post_norm)),
                                          .eps = eps,
                                          .workspace = workspace_},
                                         stream_));
    NIBBLE_CHECK(mixer.backward(kept.x, kept.rest, dy_, dx_, gradient, work));
    return cuda::norm_backward({.tokens = tokens_,
                                .width = hidden(),
                                .x = kept.stream,
                                .weight = layer.norm,
                                .dy = dx_,
                                .dx = d_stream_,
                                .add = true,
                                .rows = b > 0 ? dy_ : nullptr,
                                .dweight = gradient_at(of_vectors, weights_.place(layer.config.norm)),
                                .eps = eps,
                                .workspace = workspace_},
                               stream_);
}

}  // namespace nibble
