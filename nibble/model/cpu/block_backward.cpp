#include "model/cpu/block.h"
#include "model/cpu/trainable.h"
#include "model/gradients.h"

#include <algorithm>

namespace nibble {

// y = x + scale * post_norm(mixer(norm(x))), so dx is the sum of dy and of the gradient through the mixer.
Status Block::backward(const Batch& batch, const float* x, float* dy, Workspace& work, Observer* observer,
                       GradientSink* sink) const {
    NIBBLE_CHECK(check_backward(config_));
    if (!batch.whole()) return fail("{}: a backward pass needs whole texts", config_.prefix);
    const Arena::Scope scope(work.arena);
    const int64_t rows = batch.rows(), n = hidden_;
    const float* in = normed(x, rows, work);
    float* d_in = work.arena.floats(rows * n);
    const float* d_mixed = dy;
    if (config_.residual_scale != 1.0f) {
        float* scaled = work.arena.floats(rows * n);
        work.parallel_rows(rows, n, [&](int64_t first, int64_t last) {
            for (int64_t i = first * n; i < last * n; ++i) scaled[i] = config_.residual_scale * dy[i];
        });
        d_mixed = scaled;
    }
    if (!post_norm_.empty()) {
        float* mixed = work.arena.floats(rows * n);
        float* d = work.arena.floats(rows * n);
        NIBBLE_CHECK(mixer_->forward(batch, in, mixed, work, nullptr));
        NIBBLE_CHECK(norm_backward(post_norm_, mixed, rows, d_mixed, d, false, config_.post_norm, work, sink));
        d_mixed = d;
    }
    NIBBLE_CHECK(mixer_->backward(batch, in, d_mixed, d_in, work, observer, sink));
    if (norm_.empty()) {
        work.elementwise->add(d_in, rows * n, false, dy);
        return Ok{};
    }
    return norm_backward(norm_, x, rows, d_in, dy, true, config_.norm, work, sink);
}

}  // namespace nibble
