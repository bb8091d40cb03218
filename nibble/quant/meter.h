// Counts processed bytes, calls the progress hook at most every 50 ms, and samples memory use at the same time. The
// hooks are never called concurrently.
#pragma once

#include "base/progress.h"

#include <atomic>
#include <chrono>
#include <mutex>

namespace nibble {

// Memory use in bytes, from /proc/self/status: RssAnon, and the high-water mark of all resident pages. Zero if the
// system does not report them.
struct MemoryUse {
    int64_t anonymous = 0, peak_resident = 0;
};
MemoryUse memory_use();

// Unit of calibration progress: every token counts once per layer, and once more where linears are solved after a
// layer, so that the estimated time includes the solver.
inline constexpr std::string_view token_layers = "tokens x layers";

class ProgressMeter {
public:
    // `unit`: unit of the count; empty: bytes.
    ProgressMeter(const JobHooks& hooks, std::string_view phase, int64_t total, std::string_view unit = {})
        : hooks_(hooks), phase_(phase), total_(total), unit_(unit) {}

    // Thread-safe. `item`: the current tensor or module.
    void add(int64_t bytes, std::string_view item);
    void warn(std::string_view text);
    // Makes the last report (everything done) and takes the last memory sample.
    void finish();

    int64_t done() const { return done_; }
    double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }
    int64_t peak_anonymous() const { return peak_anonymous_; }

private:
    using Clock = std::chrono::steady_clock;
    void tell(std::string_view item);

    const JobHooks& hooks_;
    const std::string_view phase_;
    const int64_t total_;
    const std::string_view unit_;
    const Clock::time_point begin_ = Clock::now();
    std::atomic<int64_t> done_{0};
    std::atomic<int64_t> next_ms_{0};
    std::mutex mutex_;
    int64_t peak_anonymous_ = 0;
};

}  // namespace nibble
