#include "model/loss.h"

#include "kernels/token_filter.h"
#include "model/gradients.h"

#include <algorithm>
#include <atomic>
#include <cmath>

namespace nibble {
namespace {

constexpr int64_t slab_rows = 256;  // 128 MiB of logits with a vocabulary of 128k

Status check_labels(std::span<const int32_t> labels, int64_t vocab) {
    for (size_t i = 0; i < labels.size(); ++i)
        if (labels[i] < -1 || labels[i] >= vocab)
            return fail("row {}: label {} is not in the vocabulary of {}", i, labels[i], vocab);
    return Ok{};
}

// Rows [begin, begin + count) of x, normalized, and their logits.
struct Slab {
    float* normed;
    float* logits;
};

class Slabs {
public:
    Slabs(const Head& head, const SamplingParams& sampling, int64_t rows, Workspace& work)
        : head_(head), sampling_(sampling), work_(work) {
        const int64_t most = std::min(slab_rows, rows);
        slab_.normed = work.arena.floats(most * hidden());
        slab_.logits = work.arena.floats(most * vocab());
    }
    int64_t hidden() const { return head_.linear().cols; }
    int64_t vocab() const { return head_.linear().rows; }

    // Writes log_probs [count] of the labels. Leaves in the slab the logits after temperature and filters.
    Result<Slab> compute(const float* x, int64_t begin, int64_t count, std::span<const int32_t> labels,
                         std::span<float> log_probs) {
        const int64_t n = hidden(), v = vocab();
        work_.parallel_rows(count, n, [&](int64_t first, int64_t last) {
            head_.normalize(x + (begin + first) * n, last - first, slab_.normed + first * n, work_);
        });
        NIBBLE_CHECK(head_.project(slab_.normed, count, slab_.logits, work_, nullptr));
        std::atomic<int64_t> bad{count};
        work_.parallel_rows(count, 4 * v, [&](int64_t first, int64_t last) {
            std::vector<float> all(static_cast<size_t>(v));
            TokenFilter filter;
            for (int64_t i = first; i < last; ++i) {
                float* logits = slab_.logits + i * v;
                if (work_.elementwise->first_nonfinite(logits, v) >= 0)
                    for (int64_t least = bad; i < least && !bad.compare_exchange_weak(least, i);) {
                    }
                filter.restrict({logits, static_cast<size_t>(v)}, sampling_);
                const int32_t label = labels[static_cast<size_t>(begin + i)];
                if (label >= 0) work_.elementwise->log_softmax(logits, v, all.data());
                log_probs[static_cast<size_t>(begin + i)] = label < 0 ? 0.0f : all[static_cast<size_t>(label)];
            }
        });
        if (bad < count) return fail("lm_head: a logit of row {} is not finite", begin + bad);
        return slab_;
    }

private:
    const Head& head_;
    SamplingParams sampling_;
    Workspace& work_;
    Slab slab_{};
};

}  // namespace

Status label_log_probs(const Head& head, const float* x, std::span<const int32_t> labels,
                       const SamplingParams& sampling, std::span<float> log_probs, Workspace& work) {
    const Arena::Scope scope(work.arena);
    const int64_t rows = std::ssize(labels);
    NIBBLE_CHECK(check_labels(labels, head.linear().rows));
    Slabs slabs(head, sampling, rows, work);
    for (int64_t begin = 0; begin < rows; begin += slab_rows)
        NIBBLE_CHECK(slabs.compute(x, begin, std::min(slab_rows, rows - begin), labels, log_probs));
    return Ok{};
}

Status label_gradient(const Head& head, const float* x, std::span<const int32_t> labels, const SamplingParams& sampling,
                      std::span<const float> slopes, float* dx, std::span<float> log_probs, Workspace& work,
                      GradientSink* sink) {
    const Arena::Scope scope(work.arena);
    const int64_t rows = std::ssize(labels), n = head.linear().cols, vocab = head.linear().rows;
    NIBBLE_CHECK(check_labels(labels, vocab));
    Slabs slabs(head, sampling, rows, work);
    float* d_normed = work.arena.floats(std::min(slab_rows, rows) * n);
    for (int64_t begin = 0; begin < rows; begin += slab_rows) {
        const int64_t count = std::min(slab_rows, rows - begin);
        NIBBLE_TRY(const Slab slab, slabs.compute(x, begin, count, labels, log_probs));
        // Replaces the logits by slope / temperature * (onehot - p).
        work.parallel_rows(count, 8 * vocab, [&](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; ++i) {
                float* p = slab.logits + i * vocab;
                const auto row = static_cast<size_t>(begin + i);
                if (labels[row] < 0 || slopes[row] == 0.0f) {
                    std::fill_n(p, vocab, 0.0f);
                    continue;
                }
                work.gradient->softmax(p, vocab, p);
                p[labels[row]] -= 1.0f;
                const float slope = slopes[row] / sampling.temperature * head.logit_scale();
                for (int64_t j = 0; j < vocab; ++j) p[j] *= -slope;
            }
        });
        NIBBLE_CHECK(linear_backward(head.linear(), slab.normed, slab.logits, count, d_normed, work, nullptr, sink));
        NIBBLE_CHECK(norm_backward(head.last_norm(), x + begin * n, count, d_normed, dx + begin * n, false,
                                   head.norm_name(), work, sink));
    }
    return Ok{};
}

namespace {

// Returns L of one row and replaces the logits by `scale` times the gradient of L. `log_p`, `q`: scratch of one
// vocabulary each.
float distil_row(float* logits, const float* teacher, int64_t vocab, int32_t label, float weight, float share,
                 float scale, float* log_p, float* q, Workspace& work) {
    work.elementwise->log_softmax(logits, vocab, log_p);
    work.elementwise->log_softmax(teacher, vocab, q);
    std::vector<float> log_q(q, q + vocab);
    work.gradient->softmax(teacher, vocab, q);
    double divergence = 0;
    for (int64_t j = 0; j < vocab; ++j)
        if (q[j] > 0) divergence += double{q[j]} * (double{log_q[static_cast<size_t>(j)]} - double{log_p[j]});
    work.gradient->softmax(logits, vocab, logits);
    const float rest = 1 - share;
    for (int64_t j = 0; j < vocab; ++j)
        logits[j] = scale * (weight * (logits[j] - (rest * q[j] + (j == label ? share : 0.0f))));
    return static_cast<float>(double{rest} * divergence - double{share} * double{log_p[label]});
}

}  // namespace

Status distillation_gradient(const Head& head, const float* x, const LossTeacher& teacher,
                             std::span<const int32_t> labels, std::span<const float> weights, float* dx,
                             std::span<float> losses, Workspace& work, GradientSink* sink) {
    const Arena::Scope scope(work.arena), teacher_scope(teacher.work.arena);
    const int64_t rows = std::ssize(labels), n = head.linear().cols, vocab = head.linear().rows;
    if (teacher.head.linear().rows != vocab)
        return fail("the teacher has a vocabulary of {}, the model one of {}", teacher.head.linear().rows, vocab);
    NIBBLE_CHECK(check_labels(labels, vocab));
    Slabs slabs(head, {}, rows, work), teacher_slabs(teacher.head, {}, rows, teacher.work);
    float* d_normed = work.arena.floats(std::min(slab_rows, rows) * n);
    std::vector<float> unused(static_cast<size_t>(rows));
    for (int64_t begin = 0; begin < rows; begin += slab_rows) {
        const int64_t count = std::min(slab_rows, rows - begin);
        NIBBLE_TRY(const Slab slab, slabs.compute(x, begin, count, labels, unused));
        NIBBLE_TRY(const Slab asked,
                   teacher_slabs.compute(teacher.x, begin, count, labels, unused).within("the teacher"));
        work.parallel_rows(count, 16 * vocab, [&](int64_t first, int64_t last) {
            std::vector<float> log_p(static_cast<size_t>(vocab)), q(log_p.size());
            for (int64_t i = first; i < last; ++i) {
                const auto row = static_cast<size_t>(begin + i);
                float* logits = slab.logits + i * vocab;
                if (labels[row] < 0) {
                    losses[row] = 0;
                    std::fill_n(logits, vocab, 0.0f);
                    continue;
                }
                losses[row] = distil_row(logits, asked.logits + i * vocab, vocab, labels[row], weights[row],
                                         teacher.cross_entropy, head.logit_scale(), log_p.data(), q.data(), work);
            }
        });
        NIBBLE_CHECK(linear_backward(head.linear(), slab.normed, slab.logits, count, d_normed, work, nullptr, sink));
        NIBBLE_CHECK(norm_backward(head.last_norm(), x + begin * n, count, d_normed, dx + begin * n, false,
                                   head.norm_name(), work, sink));
    }
    return Ok{};
}

}  // namespace nibble
