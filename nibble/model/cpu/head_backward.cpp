#include "kernels/unpack.h"
#include "model/cpu/model.h"
#include "model/gradients.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

constexpr int64_t rows_at_once = 256;  // 128 MiB of logits with a vocabulary of 128k

// Returns the first label whose cumulated probability (FP64, ascending) exceeds u; u has 53 bits of draw `row`.
int32_t sample(const float* p, int64_t n, const PhiloxStream& stream, int64_t row) {
    const PhiloxBlock bits = stream.block(static_cast<uint64_t>(row));
    const double u = static_cast<double>((uint64_t{bits.word[0]} << 32 | bits.word[1]) >> 11) * 0x1p-53;
    double total = 0;
    for (int64_t j = 0; j < n; ++j) total += p[j];
    double sum = 0;
    for (int64_t j = 0; j < n; ++j) {
        sum += p[j];
        if (sum > u * total) return static_cast<int32_t>(j);
    }
    return static_cast<int32_t>(n - 1);
}

}  // namespace

Result<double> Head::backward(const float* x, int64_t rows, const Labels& labels, float* dx, Workspace& work,
                              Observer* observer, GradientSink* sink) const {
    if (logit_cap_ > 0) return fail("a backward pass through soft caps of logits is not supported");
    const Arena::Scope scope(work.arena);
    const int64_t n = linear_.cols, vocab = linear_.rows;
    std::optional<PackedMatrix> back;  // packed once for all rows
    if (!work.bytes) back = transposed(linear_.weight, *work.pool);
    float* normed = work.arena.floats(rows_at_once * n);
    float* d_normed = work.arena.floats(rows_at_once * n);
    float* logits = work.arena.floats(rows_at_once * vocab);
    std::vector<double> losses(static_cast<size_t>(rows));
    std::vector<int32_t> numbers;
    for (int64_t begin = 0; begin < rows; begin += rows_at_once) {
        const int64_t count = std::min(rows_at_once, rows - begin);
        const float* in = x + begin * n;
        work.parallel_rows(count, n, [&](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; ++i) norm_.apply(in + i * n, normed + i * n, work);
        });
        if (work.bytes)  // not rounded: this is a distribution and its gradient, not the model's output
            work.bytes->forward(linear_.weight, normed, count, n, {logits, vocab}, *work.pool);
        else
            NIBBLE_CHECK(linear_.forward(normed, count, logits, work, nullptr));
        scale_logits(logits, count, work, !work.bytes && work.bf16());
        // Replaces the logits by the gradient p - onehot of -log p.
        work.parallel_rows(count, 8 * vocab, [&](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; ++i) {
                float* p = logits + i * vocab;
                work.gradient->softmax(p, vocab, p);
                const int32_t label =
                    labels.sampled ? sample(p, vocab, *labels.sampled, begin + i) : labels.given[begin + i];
                if (label < 0) {
                    std::fill_n(p, vocab, 0.0f);
                    continue;
                }
                losses[begin + i] = -std::log(double{p[label]});
                p[label] -= 1.0f;
                for (int64_t j = 0; j < vocab; ++j) p[j] *= labels.scale * logit_scale_;
            }
        });
        numbers.resize(static_cast<size_t>(count));
        for (int64_t i = 0; i < count; ++i) numbers[i] = static_cast<int32_t>(begin + i);
        NIBBLE_CHECK(report_gradient(linear_, normed, logits, vocab, count, work, observer, sink, numbers));
        if (back)
            work.matmul->matmul(*back, {.x = logits, .rows = count, .stride = vocab}, {d_normed, n}, *work.pool);
        else
            input_gradient(linear_.weight, logits, count, vocab, d_normed, work);
        NIBBLE_CHECK(norm_backward(norm_, in, count, d_normed, dx + begin * n, false, norm_name_, work, sink));
    }
    if (work.bytes) work.bytes->forget();
    double sum = 0;
    for (const double loss : losses) sum += loss;
    return sum;
}

}  // namespace nibble
