// Computes the memory of a micro-batch on a GPU from shapes. TrainPass allocates, and memory plans print, these
// numbers.
#pragma once

#include "train/device/train_weights.h"

namespace nibble {

struct TrainScratch {
    int64_t kept = 0;       // buffers from forward to backward, and buffers shared by all blocks
    int64_t together = 0;   // scratch memory of the largest part of a pass
    int64_t logits = 0;     // part of `together`, of the head
    int64_t workspace = 0;  // bytes for GEMMs and two-stage sums; part of `kept`
    int64_t pages = 0;      // K and V of one block of each kind

    // `attention`: bytes of its workspace if known; 0: computed for one document per row.
    static Result<TrainScratch> make(const TrainWeights& weights, const TrainPassShape& shape, const DeviceInfo& device,
                                     int64_t attention = 0);
    // The number of documents of a micro-batch, and of tokens in their pages, for which memory is planned.
    static int64_t documents(const TrainPassShape& shape);
    static int64_t page_tokens(const TrainPassShape& shape);
    // Rows of logits that exist at a time.
    static int64_t slab(int64_t tokens, int64_t vocab);
};

}  // namespace nibble
