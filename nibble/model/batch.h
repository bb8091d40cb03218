// The rows of one forward pass: segments of sequences, one after the other. A sequence holds what its past left behind:
// pages of the KV cache for attention, conv and SSM states for Mamba-2.
#pragma once

#include "architecture/model_config.h"
#include "base/error.h"

#include <cstdint>
#include <span>
#include <vector>

namespace nibble {

class Sequence;  // model/sequence.h

struct Segment {
    Sequence* sequence = nullptr;     // nullptr: a whole text that leaves no state (evaluation, calibration, training)
    std::span<const int32_t> tokens;  // the next tokens of the sequence, at least one
    int64_t logits_from = 0;          // rows [logits_from, tokens.size()) want logits
    int64_t position = -1;            // of the first token; -1: where the sequence stands, 0 without one
};

class Batch {
public:
    // A sequence occurs at most once. Positions are read here: make the batch right before its forward pass.
    explicit Batch(std::vector<Segment> segments);
    std::span<const Segment> segments() const { return segments_; }
    int64_t rows() const { return static_cast<int64_t>(positions_.size()); }  // tokens of all segments
    int64_t wanted() const { return wanted_; }                                // rows that want logits
    bool whole() const;                                                       // every segment without a sequence

    // Row at which segment i starts; its first token's position in the sequence.
    int64_t row(size_t segment) const { return starts_[segment]; }
    int64_t position(size_t segment) const { return positions_[static_cast<size_t>(starts_[segment])]; }
    std::span<const int64_t> positions() const { return positions_; }  // of every row

private:
    std::vector<Segment> segments_;
    std::vector<int64_t> starts_, positions_;
    int64_t wanted_ = 0;
};

// What forward passes ask of a batch: every segment has tokens, no sequence occurs twice, room for the wanted logits.
Status check(const Batch& batch, int64_t logits, int64_t vocab);

// Whole texts of at most `rows` tokens together; a longer one is a batch of its own. The texts outlive the batches.
struct BatchPiece {
    int64_t row;  // of its first token, over all texts
    Batch batch;
};
std::vector<BatchPiece> whole_batches(std::span<const std::vector<int32_t>> texts, int64_t rows);

}  // namespace nibble
