// Terminal output that commands share: progress (a bar with rate and remaining time on a terminal, plain lines
// elsewhere), warnings, and Ctrl-C as a request to stop at the next safe point.
#pragma once

#include "base/progress.h"

#include <memory>
#include <string>
#include <string_view>

namespace nibble {

// Prints a line to stderr. A line that cannot be written (a full disk, a closed pipe) is dropped: fmt::print would
// throw, and a note or log line must not end the program.
void say(std::string_view line);

// Returns hooks that print notes and warnings, for commands without progress. `quiet`: only warnings.
JobHooks printing_hooks(bool quiet);

// Returns one line of progress of at most `width` columns: "quantize  42 %  1.13/2.69 GB  1.94 GB/s  1.0 s left
// model.layers.3...".
std::string progress_line(const Progress& progress, double seconds, int width);

// Prints to stderr: warnings always, progress unless `quiet`, notes unless `no_notes`.
class Console {
public:
    explicit Console(bool quiet = false) : Console(quiet, quiet) {}
    Console(bool quiet, bool no_notes);
    ~Console();
    Console(const Console&) = delete;
    Console& operator=(const Console&) = delete;

    // Installs the Ctrl-C handler for the lifetime of the console: the first Ctrl-C requests a stop, the second one
    // kills the process.
    JobHooks hooks();
    // Ends the current progress line, if any.
    void end_line();

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace nibble
