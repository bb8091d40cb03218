// Where batches come from. A source is deterministic: what it hands out follows from its place, which is a value that a
// checkpoint keeps.
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
    // The next `rows` rows.
    virtual Result<TrainBatch> next(int64_t rows) = 0;
    virtual Json place() const = 0;
    virtual Status set_place(const Json& place) = 0;
};

// Rows of tokens drawn from the vocabulary, uniformly; one document each. As MaxText's synthetic data, but another row
// every time.
std::unique_ptr<BatchSource> synthetic_source(int64_t vocab, int64_t seq, uint64_t seed);

// Windows of seq + 1 tokens of one text. The text's windows, one after the other without overlap, in an order that is
// drawn anew for every pass; `shuffle` false: in order. Error: a text shorter than one window.
Result<std::unique_ptr<BatchSource>> window_source(std::vector<int32_t> tokens, int64_t seq, uint64_t seed,
                                                   bool shuffle);

}  // namespace nibble
