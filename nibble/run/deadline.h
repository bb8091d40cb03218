// Ends a run in time for a job's time limit: the run saves and ends before the step that would exceed the limit.
#pragma once

#include "base/error.h"

#include <chrono>
#include <string_view>

namespace nibble {

// Parses "DD:HH:MM:SS" as in NeMo RL. Leading parts may be missing ("30:00": 30 minutes), and the last part may have
// decimals. Error: any other text, or 0.
Result<double> seconds_of_limit(std::string_view text);

class RunDeadline {
public:
    using Clock = std::chrono::steady_clock;
    // The state must be saved within `seconds` after `start`; 0: no limit.
    RunDeadline(double seconds, Clock::time_point start) : seconds_(seconds), start_(start), last_(Clock::now()) {}

    // Call it after each step and the work that follows it. Returns true if another step of mean duration would end
    // after the limit.
    bool is_due(Clock::time_point now = Clock::now());

private:
    double seconds_, sum_ = 0;
    int64_t steps_ = 0;
    Clock::time_point start_, last_;
};

}  // namespace nibble
