// Sources of batches. A source is deterministic: its output follows from its position, which checkpoints store.
#pragma once

#include "base/json.h"
#include "data/train_batch.h"

#include <memory>
#include <string>
#include <vector>

namespace nibble {

class BatchSource {
public:
    virtual ~BatchSource() = default;
    // Returns the next `rows` rows.
    virtual Result<TrainBatch> next(int64_t rows) = 0;
    virtual Json place() const = 0;
    virtual Status set_place(const Json& place) = 0;
};

// Creates rows of uniformly random tokens, one document each. Like MaxText's synthetic data, but every row is
// different.
std::unique_ptr<BatchSource> synthetic_source(int64_t vocab, int64_t seq, uint64_t seed);

// Creates windows of seq + 1 tokens from one text, without overlap, in an order that is drawn again for every pass;
// `shuffle` false: in order. Error: the text is shorter than one window.
Result<std::unique_ptr<BatchSource>> window_source(std::vector<int32_t> tokens, int64_t seq, uint64_t seed,
                                                   bool shuffle);

}  // namespace nibble
