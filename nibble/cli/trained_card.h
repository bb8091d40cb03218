// The model card of the folders that `train` and `rl` write.
#pragma once

#include "checkpoint/model_card.h"

namespace nibble {

struct TrainedCard {
    std::filesystem::path output;  // the run's folder; the last line of its log says what was measured
    std::filesystem::path base;    // the checkpoint the run began with; empty: random numbers
    std::string how;               // "training", "reinforcement learning"
    std::string precision;
    int64_t steps = 0;
    std::string command;
};

// codes: of the policy or model in the codes of its last step, instead of its BF16 weights.
ModelCard trained_card(const TrainedCard& run, bool codes);

}  // namespace nibble
