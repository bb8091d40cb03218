// Checks that the training forward pass gives the log-probabilities that the engine serves. Weights and products are
// the same, but tokens are grouped differently: whole documents, chunks, token by token, several documents together.
#pragma once

#include "train/train_engine.h"

#include <array>
#include <string_view>

namespace nibble {

// Adds to `mismatches` and `apart` (the largest difference) if two log-probabilities differ in any bit.
void count_difference(float got, float want, int64_t& mismatches, double& apart);

struct ForwardWay {
    std::string_view name;  // "prefill", "chunks", "token by token", "together"
    int64_t labels = 0, mismatches = 0;
    double apart = 0;  // largest difference
};

struct ForwardCheck {
    std::array<ForwardWay, 4> ways;
    bool promised = false;  // the recipe's scales depend on one row at a time: no mismatch is allowed
    int64_t mismatches() const {
        int64_t sum = 0;
        for (const ForwardWay& way : ways) sum += way.mismatches;
        return sum;
    }
};

// Compares the log-probabilities of all labels of a batch, bit for bit, with those of `engine`: the trainer's own model
// (without the argument), or a model that was loaded from its export.
Result<ForwardCheck> check_forward(TrainEngine& trainer, const TrainBatch& batch);
Result<ForwardCheck> check_forward(TrainEngine& trainer, const TrainBatch& batch, const LanguageModel& engine);

}  // namespace nibble
