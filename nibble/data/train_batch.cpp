#include "data/train_batch.h"

#include <cmath>
#include <utility>

namespace nibble {

Status check(const TrainBatch& b, int64_t vocab) {
    if (b.rows <= 0 || b.seq <= 0)
        return fail("a batch must have rows and tokens, but has {} rows of {} tokens", b.rows, b.seq);
    const int64_t n = b.size();
    if (std::ssize(b.tokens) != n || std::ssize(b.labels) != n || (!b.weights.empty() && std::ssize(b.weights) != n))
        return fail("a batch of {} x {} has {} tokens, {} labels and {} weights", b.rows, b.seq, b.tokens.size(),
                    b.labels.size(), b.weights.size());
    for (int64_t i = 0; i < n; ++i) {
        const auto at = static_cast<size_t>(i);
        if (b.tokens[at] < 0 || b.tokens[at] >= vocab)
            return fail("row {}, position {}: token {} is not in the vocabulary of {}", i / b.seq, i % b.seq,
                        b.tokens[at], vocab);
        if (b.labels[at] < -1 || b.labels[at] >= vocab)
            return fail("row {}, position {}: label {} is not in the vocabulary of {}", i / b.seq, i % b.seq,
                        b.labels[at], vocab);
        if (!b.weights.empty() && !std::isfinite(b.weights[at]))
            return fail("row {}, position {}: weight {} is not finite", i / b.seq, i % b.seq, b.weights[at]);
    }
    int64_t row = 0, last = -1;
    for (const int64_t begin : b.documents) {
        if (begin <= last || begin >= n) return fail("documents of a batch begin at {} after {}", begin, last);
        if (begin > row * b.seq) return fail("row {} of a batch begins within a document", row);
        if (begin == row * b.seq) ++row;
        last = begin;
    }
    if (row != b.rows) return fail("row {} of a batch begins within a document", row);
    return Ok{};
}

TrainBatch next_token_batch(std::vector<int32_t> tokens, int64_t rows, int64_t seq) {
    TrainBatch b{.rows = rows, .seq = seq};
    for (int64_t r = 0; r < rows; ++r) {
        const auto from = tokens.begin() + r * (seq + 1);
        b.tokens.insert(b.tokens.end(), from, from + seq);
        b.labels.insert(b.labels.end(), from + 1, from + seq + 1);
        b.documents.push_back(r * seq);
    }
    return b;
}

}  // namespace nibble
