// Does the training forward give the log-probabilities that the engine serves? The same weights and products, the
// tokens in other company: whole documents in one piece, in chunks, token by token, and several documents together.
#pragma once

#include "train/train_engine.h"

#include <array>
#include <string_view>

namespace nibble {

struct ForwardWay {
    std::string_view name;  // "prefill", "chunks", "token by token", "together"
    int64_t labels = 0, mismatches = 0;
    double apart = 0;  // the largest difference
};

struct ForwardCheck {
    std::array<ForwardWay, 4> ways;
    bool promised = false;  // the recipe's scales see one row at a time: no mismatch is allowed
    int64_t mismatches() const {
        int64_t sum = 0;
        for (const ForwardWay& way : ways) sum += way.mismatches;
        return sum;
    }
};

// Log-probabilities of all labels of a batch, compared bit for bit with those of `engine`: the trainer's own model, or
// one that was read from an export of it.
Result<ForwardCheck> check_forward(TrainEngine& trainer, const TrainBatch& batch);
Result<ForwardCheck> check_forward(TrainEngine& trainer, const TrainBatch& batch, const LanguageModel& engine);

}  // namespace nibble
