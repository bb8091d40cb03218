// Counts requests in EngineStats: times, lengths and the reasons of their ends.
#pragma once

#include "engine/choice.h"
#include "engine/engine.h"

namespace nibble {

class RequestCounts {
public:
    explicit RequestCounts(EngineStats& stats) : stats_(stats) {}

    // Counts the latency of tokens that a step has added to `choice` at time `now`.
    void add_tokens(Choice& choice, EngineClock::time_point now);
    // Counts a choice that ends with `event`. The event of the request's last choice gets the report.
    void add_finished(Job& job, AnswerEvent& event);
    // Returns the moving average of the time from a request's first step to its end.
    double service_seconds() const { return service_seconds_; }

private:
    void add_request(Job& job, EngineClock::time_point now);

    EngineStats& stats_;
    double service_seconds_ = 0;  // 0: no request has finished
};

}  // namespace nibble
