#include "model/batch.h"

#include "model/sequence.h"

#include <algorithm>

namespace nibble {

Batch::Batch(std::vector<Segment> segments) : segments_(std::move(segments)) {
    for (const Segment& s : segments_) {
        starts_.push_back(rows());
        const int64_t first = s.position >= 0 ? s.position : s.sequence ? s.sequence->position() : 0;
        const auto n = static_cast<int64_t>(s.tokens.size());
        for (int64_t i = 0; i < n; ++i) positions_.push_back(first + i);
        wanted_ += std::clamp<int64_t>(n - s.logits_from, 0, n);
    }
}

bool Batch::whole() const {
    return std::ranges::all_of(segments_, [](const Segment& s) { return s.sequence == nullptr; });
}

Status check(const Batch& batch, int64_t logits, int64_t vocab) {
    if (logits != batch.wanted() * vocab)
        return fail("the buffer has {} logits; the batch asks for {} rows of {}", logits, batch.wanted(), vocab);
    const auto segments = batch.segments();
    for (size_t s = 0; s < segments.size(); ++s) {
        if (segments[s].tokens.empty()) return fail("segment {} of the batch has no tokens", s);
        for (size_t other = 0; other < s && segments[s].sequence; ++other)
            if (segments[other].sequence == segments[s].sequence) return fail("a sequence occurs twice in a batch");
    }
    return Ok{};
}

std::vector<BatchPiece> whole_batches(std::span<const std::vector<int32_t>> texts, int64_t rows) {
    std::vector<BatchPiece> out;
    std::vector<Segment> open;
    int64_t start = 0, count = 0;
    const auto close = [&] {
        if (open.empty()) return;
        out.push_back({start, Batch(std::move(open))});
        open.clear();
        start += count;
        count = 0;
    };
    for (const std::vector<int32_t>& text : texts) {
        const auto n = static_cast<int64_t>(text.size());
        if (count + n > rows) close();
        open.push_back({.tokens = text});
        count += n;
    }
    close();
    return out;
}

}  // namespace nibble
