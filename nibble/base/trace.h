// Records what ran when as spans of time, in the format of chrome://tracing and ui.perfetto.dev ("Trace Event Format",
// complete events). A null trace costs one comparison. Spans of one lane nest by their times.
#pragma once

#include "base/json.h"

#include <chrono>
#include <mutex>
#include <string>
#include <vector>

namespace nibble {

class Trace {
public:
    using Clock = std::chrono::steady_clock;

    // Spans are kept only while recording, at most `most` of them, which bounds a trace that is never stopped.
    explicit Trace(size_t most = size_t{1} << 20) : most_(most) {}
    void record(bool on) { recording_ = on; }
    bool recording() const { return recording_; }

    // Thread-safe. `lane` is a row of the viewer: "host", "GPU".
    void add(std::string name, std::string_view lane, Clock::time_point begin, Clock::time_point end);
    int64_t spans() const;

    // Returns {"traceEvents": [...]} with times in microseconds since the first span.
    Json to_json() const;

private:
    struct Event {
        std::string name;
        size_t lane;
        Clock::time_point begin, end;
    };
    const size_t most_;
    bool recording_ = false;
    mutable std::mutex mutex_;
    std::vector<std::string> lanes_;
    std::vector<Event> events_;
};

// Adds a span from here to the end of the scope, if the trace is not null and is recording.
class TraceSpan {
public:
    TraceSpan(Trace* trace, std::string_view name, int64_t number = -1)
        : trace_(trace && trace->recording() ? trace : nullptr) {
        if (!trace_) return;
        name_ = number < 0 ? std::string(name) : std::string(name) + " " + std::to_string(number);
        begin_ = Trace::Clock::now();
    }
    ~TraceSpan() {
        if (trace_) trace_->add(std::move(name_), "host", begin_, Trace::Clock::now());
    }
    TraceSpan(const TraceSpan&) = delete;
    TraceSpan& operator=(const TraceSpan&) = delete;

private:
    Trace* trace_;
    std::string name_;
    Trace::Clock::time_point begin_;
};

}  // namespace nibble
