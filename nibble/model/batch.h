// The rows of one forward pass: the tokens of several sequences, one segment after the other. A sequence holds the
// state of the tokens before: pages of the KV cache for attention, convolution and SSM states for Mamba-2.
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
    int64_t logits_from = 0;          // logits are computed for rows [logits_from, tokens.size())
    int64_t position = -1;            // position of the first token; -1: Sequence::position(), or 0 without a sequence
};

class Batch {
public:
    // Each sequence occurs at most once. The constructor reads the sequences' positions, so create the batch right
    // before its forward pass.
    explicit Batch(std::vector<Segment> segments);
    std::span<const Segment> segments() const { return segments_; }
    // tokens of all segments
    int64_t rows() const { return static_cast<int64_t>(positions_.size()); }
    int64_t wanted() const { return wanted_; }  // rows whose logits are computed
    bool whole() const;                         // returns true if no segment has a sequence

    // Return the first row of segment i, and the position of its first token.
    int64_t row(size_t segment) const { return starts_[segment]; }
    int64_t position(size_t segment) const { return positions_[static_cast<size_t>(starts_[segment])]; }
    std::span<const int64_t> positions() const { return positions_; }  // [rows()]

private:
    std::vector<Segment> segments_;
    std::vector<int64_t> starts_, positions_;
    int64_t wanted_ = 0;
};

// Checks the preconditions of a forward pass. Errors: an empty segment, a sequence that occurs twice, a `logits` array
// (number of floats) that is not [wanted(), vocab].
Status check(const Batch& batch, int64_t logits, int64_t vocab);

// Packs whole texts into batches of at most `rows` rows; a longer text becomes a batch of its own. The texts must
// outlive the batches.
struct BatchPiece {
    int64_t row;  // number of the batch's first row, counted over all texts
    Batch batch;
};
std::vector<BatchPiece> whole_batches(std::span<const std::vector<int32_t>> texts, int64_t rows);

}  // namespace nibble
