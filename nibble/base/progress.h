// What a long job tells its caller. Libraries never print: they call the sink they were given, and look at the stop
// flag.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string_view>

namespace nibble {

struct Progress {
    std::string_view phase;  // "quantize", "verify" ...
    std::string_view item;   // what is in hand: a tensor or file name
    int64_t done = 0, total = 0;
    std::string_view unit = {};  // of both: "items"; empty: bytes
};

struct JobHooks {
    std::function<void(const Progress&)> progress;      // may be empty; called from one thread at a time
    std::function<void(std::string_view)> warn;         // may be empty
    const std::atomic<bool>* stop_requested = nullptr;  // set by Ctrl-C; the job stops at the next safe point

    bool should_stop() const { return stop_requested && stop_requested->load(std::memory_order_relaxed); }
};

}  // namespace nibble
