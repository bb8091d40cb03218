// Formats an RL step as a line of the run's log (run/log.h) and as a line for the terminal.
#pragma once

#include "base/json.h"
#include "rl/policy_trainer.h"

#include <optional>
#include <string>

namespace nibble {

// Uses NeMo RL's names where it has the same number. Losses and errors are means over the tokens in the loss.
// `seconds`: of the whole step.
Json to_json(const RlStep& step, const std::optional<RlValidation>& validation, double seconds);
// Adds the validation's fields to a step's line.
void add_validation(const RlValidation& validation, Json& line);
std::string step_text(const RlStep& step, const std::optional<RlValidation>& validation, double seconds);

// Sums, over a run, the shares of time spent on handing over weights and on renewing cache scales.
class RlShares {
public:
    void add(const RlStep& step, double seconds);
    std::string text() const;  // empty if there was no step

private:
    int64_t steps_ = 0;
    double seconds_ = 0, handover_ = 0, recalibrate_ = 0;
};

}  // namespace nibble
