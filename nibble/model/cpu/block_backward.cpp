#include "model/cpu/block.h"
#include "model/gradients.h"

#include <algorithm>

namespace nibble {

// y = x + post_norm(mixer(norm(x))): dy goes straight to x and, through the mixer, once more.
Status Block::backward(const Batch& batch, const float* x, float* dy, Workspace& work, Observer* observer,
                       GradientSink* sink) const {
    if (!batch.whole()) return fail("{}: a backward pass needs whole texts", config_.prefix);
    const Arena::Scope scope(work.arena);
    const int64_t rows = batch.rows(), n = hidden_;
    float* normed = work.arena.floats(rows * n);
    float* d_normed = work.arena.floats(rows * n);
    work.parallel_rows(rows, n, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i)
            work.elementwise->rms_norm(x + i * n, norm_.data(), n, eps_, work.bf16(), normed + i * n);
    });
    const float* d_mixed = dy;
    if (!post_norm_.empty()) {
        float* mixed = work.arena.floats(rows * n);
        float* d = work.arena.floats(rows * n);
        NIBBLE_CHECK(mixer_->forward(batch, normed, mixed, work, nullptr));
        NIBBLE_CHECK(norm_backward({.x = mixed, .stride = n, .rows = rows, .eps = eps_}, post_norm_, dy, d, n, false,
                                   config_.post_norm, work, sink));
        d_mixed = d;
    }
    NIBBLE_CHECK(mixer_->backward(batch, normed, d_mixed, d_normed, work, observer, sink));
    return norm_backward({.x = x, .stride = n, .rows = rows, .eps = eps_}, norm_, d_normed, dy, n, true, config_.norm,
                         work, sink);
}

}  // namespace nibble
