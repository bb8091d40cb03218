// What commands share on a terminal: progress (a bar with rate and time left on a terminal, plain lines elsewhere),
// warnings, and Ctrl-C as a request to stop at the next safe point.
#pragma once

#include "base/progress.h"

#include <memory>
#include <string>
#include <string_view>

namespace nibble {

// A line to stderr. Where it cannot be written (a full disk, a pipe that nobody reads) it is lost: fmt::print throws
// there, and a remark or a line of the log must not end what it tells of.
void say(std::string_view line);

// Hooks that only print notes and warnings, for commands without progress. `quiet`: warnings only.
JobHooks printing_hooks(bool quiet);

// One line of progress: "quantize  42 %  1.13/2.69 GB  1.94 GB/s  1.0 s left  model.layers.3..."; at most `width`
// columns.
std::string progress_line(const Progress& progress, double seconds, int width);

// Prints to stderr. Warnings always; progress unless `quiet`; notes unless `no_notes`.
class Console {
public:
    explicit Console(bool quiet = false) : Console(quiet, quiet) {}
    Console(bool quiet, bool no_notes);
    ~Console();
    Console(const Console&) = delete;
    Console& operator=(const Console&) = delete;

    // Installs the Ctrl-C handler for the life of the console: the first one asks to stop, the second one kills.
    JobHooks hooks();
    // Ends the current progress line, if any.
    void end_line();

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace nibble
