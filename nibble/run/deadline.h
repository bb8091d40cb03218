// A job's limit of time, foreseen: a run saves and ends before the step that would end too late.
#pragma once

#include "base/error.h"

#include <chrono>
#include <string_view>

namespace nibble {

// "DD:HH:MM:SS" as NeMo RL writes it; leading parts may be missing ("30:00": 30 minutes), the last one may have
// decimals. Error: something else, or 0.
Result<double> seconds_of_limit(std::string_view text);

class RunDeadline {
public:
    using Clock = std::chrono::steady_clock;
    // `seconds` behind `start` the state must be saved; 0: no limit.
    RunDeadline(double seconds, Clock::time_point start) : seconds_(seconds), start_(start), last_(Clock::now()) {}

    // Behind a step, with all that was done between it and the one before. Whether another one, as long as the mean of
    // those so far, would end behind the limit.
    bool is_due(Clock::time_point now = Clock::now());

private:
    double seconds_, sum_ = 0;
    int64_t steps_ = 0;
    Clock::time_point start_, last_;
};

}  // namespace nibble
