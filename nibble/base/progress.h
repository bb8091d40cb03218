// How a job reports to its caller and how the caller stops it. Library code never prints and installs no signal
// handler: it calls these functions and reads the stop flag. The command line prints what they receive and sets the
// flag on Ctrl-C; another caller passes its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string_view>

namespace nibble {

struct Progress {
    std::string_view phase;  // "quantize", "verify" ...
    std::string_view item;   // current tensor or file
    int64_t done = 0, total = 0;
    std::string_view unit = {};  // unit of done and total: "items"; empty: bytes
};

// Functions may be empty. A job calls them from one thread at a time, but not always from the thread that started it.
// An error of kind `cancelled` follows the stop flag.
struct JobHooks {
    std::function<void(const Progress&)> progress;
    std::function<void(std::string_view)> warn;         // a line about something that may be wrong
    const std::atomic<bool>* stop_requested = nullptr;  // once true, the job stops at the next safe point
    std::function<void(std::string_view)> note = {};    // a line worth knowing: what was skipped, resumed or found

    bool should_stop() const { return stop_requested && stop_requested->load(std::memory_order_relaxed); }
    void emit_warning(std::string_view line) const {
        if (warn) warn(line);
    }
    void emit_note(std::string_view line) const {
        if (note) note(line);
    }
};

}  // namespace nibble
