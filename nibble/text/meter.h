// Limits the work of one text in a template or tokenizer. Files and texts are untrusted: every loop over data pays
// steps, every created string or list pays bytes, and a caller may set a deadline and a cancel flag. All engines of
// nibble/text take a Meter; without one they use limits that follow from the size of the text.
//
//   Meter meter({.steps = 1'000'000, .bytes = 1 << 20, .deadline = steady_clock::now() + 2s, .cancel = &flag});
//   auto ids = tokenizer.encode(text, {}, meter);   // Error: "the limit of 1000000 steps is reached"
//
// One step is about 10 to 100 ns of work: one evaluation, one symbol, or 64 bytes read. The same input costs the same
// number of steps on every machine. Bytes count everything ever created, not what is alive: an upper bound of memory
// without bookkeeping.
#pragma once

#include "base/error.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace nibble {

struct MeterLimits {
    static constexpr int64_t unlimited = int64_t{1} << 60;

    int64_t steps = unlimited;
    int64_t bytes = unlimited;
    int depth = 1000;            // limit of nested evaluations
    int64_t tokens = unlimited;  // limit of tokens of one encoded text
    std::optional<std::chrono::steady_clock::time_point> deadline = {};
    const std::atomic<bool>* cancel = nullptr;  // may be null; outlives the meter

    // Default limits for a text of `size` bytes: a fixed part plus far more per byte than any tokenizer in use needs.
    static MeterLimits for_text(size_t size) {
        const auto n = static_cast<int64_t>(std::min<size_t>(size, size_t{1} << 40));
        return {.steps = 20'000'000 + 64 * n, .bytes = (int64_t{128} << 20) + 128 * n};
    }
};

// Used by one thread at a time. After a limit is reached, every further payment fails.
class Meter {
public:
    explicit Meter(const MeterLimits& limits)
        : limits_(limits), steps_(limits.steps), bytes_(limits.bytes), poll_below_(next_poll()) {}
    Meter(const Meter&) = delete;
    Meter& operator=(const Meter&) = delete;

    // Returns false if a limit is reached. Precondition: n >= 0.
    bool pay_steps(int64_t n) {
        steps_ -= std::min(n, steps_ + 1);
        return steps_ >= poll_below_ || poll();
    }
    bool pay_bytes(int64_t n) {
        bytes_ -= std::min(n, bytes_ + 1);
        if (bytes_ < 0) stop(Limit::bytes);
        return pay_steps(n / 64 + 1);
    }
    // Pays steps for `size` bytes that are only read.
    bool pay_look(size_t size) { return pay_steps(1 + static_cast<int64_t>(size / 64)); }

    // Enters and leaves a level of nesting. enter() returns false if it is too deep; leave() must be called in either
    // case.
    bool enter() {
        if (++depth_ > limits_.depth) stop(Limit::depth);
        return limit_ == Limit::none;
    }
    void leave() { --depth_; }

    // Returns false if a text has more tokens than the limit: `made` of them, or at least as many.
    bool allow_tokens(int64_t made) {
        if (made > limits_.tokens) stop(Limit::tokens);
        return limit_ == Limit::none;
    }
    bool too_many_tokens() const { return limit_ == Limit::tokens; }

    bool ok() const { return limit_ == Limit::none; }
    // Returns an error that names the limit. Precondition: !ok().
    Error error() const;
    Status status() const {
        if (!ok()) return error();
        return Ok{};
    }

    const MeterLimits& limits() const { return limits_; }
    int64_t steps_used() const { return limits_.steps - steps_; }

private:
    enum class Limit : uint8_t { none, steps, bytes, depth, tokens, deadline, cancel };
    static constexpr int64_t poll_every = 4096;

    int64_t next_poll() const {
        const bool watched = limits_.deadline || limits_.cancel;
        return watched ? std::max<int64_t>(0, steps_ - poll_every) : 0;
    }
    void stop(Limit limit) {
        if (limit_ == Limit::none) limit_ = limit;
        steps_ = bytes_ = -1;
        poll_below_ = 0;
    }
    bool poll();

    MeterLimits limits_;
    int64_t steps_, bytes_, poll_below_;
    int depth_ = 0;
    Limit limit_ = Limit::none;
};

}  // namespace nibble
