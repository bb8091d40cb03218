// The rows of one forward pass: segments of sequences, one after the other. A sequence holds what its past left behind:
// pages of the KV cache for attention, conv and SSM states for Mamba-2.
#pragma once

#include "base/error.h"
#include "model/config.h"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace nibble {

class Sequence;  // model/sequence.h: position, page tables, states; made by a KvPool, which owns the pages

struct Segment {
    Sequence* sequence = nullptr;     // nullptr: a whole text that leaves no state (evaluation, calibration, training)
    std::span<const int32_t> tokens;  // the next tokens of the sequence
    int64_t logits_from = 0;          // rows [logits_from, tokens.size()) want logits
};

class Batch {
public:
    explicit Batch(std::vector<Segment> segments);
    std::span<const Segment> segments() const;
    int64_t rows() const;    // tokens of all segments
    int64_t wanted() const;  // rows that want logits
    bool whole() const;      // every segment without a sequence

private:
    std::vector<Segment> segments_;
    int64_t rows_ = 0, wanted_ = 0;
};

}  // namespace nibble
