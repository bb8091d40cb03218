// Bytes that a micro-batch takes on a GPU, from shapes: what TrainPass allocates and what a memory plan prints are the
// same numbers.
#pragma once

#include "train/device/train_weights.h"

namespace nibble {

struct TrainScratch {
    int64_t kept = 0;       // from forward to the way back, and what every block shares
    int64_t together = 0;   // of the largest part of a pass
    int64_t logits = 0;     // of that, of the head
    int64_t workspace = 0;  // of GEMMs and of sums in two stages; part of `kept`
    int64_t pages = 0;      // K and V of one block of every kind

    // `attention`: bytes of its workspace, where they are known; 0: those of one document a row.
    static Result<TrainScratch> make(const TrainWeights& weights, const TrainPassShape& shape, const DeviceInfo& device,
                                     int64_t attention = 0);
    // Documents of a micro-batch that need no more memory than planned, and tokens in their pages.
    static int64_t documents(const TrainPassShape& shape);
    static int64_t page_tokens(const TrainPassShape& shape);
    // Rows of logits that exist at once.
    static int64_t slab(int64_t tokens, int64_t vocab);
};

}  // namespace nibble
