// A step of reinforcement learning as a line of the run's log (run/log.h) and as a line for people.
#pragma once

#include "base/json.h"
#include "rl/policy_trainer.h"

#include <optional>
#include <string>

namespace nibble {

// NeMo RL's names where it has the number: means over the tokens in the loss. `seconds`: of the whole step.
Json to_json(const RlStep& step, const std::optional<RlValidation>& validation, double seconds);
// What the line of a validated step has in addition.
void add_validation(const RlValidation& validation, Json& line);
std::string step_text(const RlStep& step, const std::optional<RlValidation>& validation, double seconds);

// Of a run: the shares of steps that handing weights over and renewing scales took.
class RlShares {
public:
    void add(const RlStep& step, double seconds);
    std::string text() const;  // empty: no step

private:
    int64_t steps_ = 0;
    double seconds_ = 0, handover_ = 0, recalibrate_ = 0;
};

}  // namespace nibble
