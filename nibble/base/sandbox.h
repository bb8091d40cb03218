// A program that nobody trusts, run by bubblewrap (Debian package bubblewrap): no network, no processes beside its own
// threads, no files but the system's programs (read-only) and an empty /tmp, limits of time, memory, files and output.
// What is not to be had (no bwrap, no user namespaces) is an error when the sandbox is opened, not later.
#pragma once

#include "base/error.h"

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

struct SandboxLimits {
    double seconds = 10;                      // by the clock; whatever runs then is killed
    int64_t memory_bytes = int64_t{1} << 29;  // address space
    int64_t file_bytes = int64_t{1} << 24;    // of /tmp together, and of a file; how many empty ones, only time limits
    int64_t output_bytes = int64_t{1} << 20;  // more than that, and the program is killed
};

struct SandboxRun {
    int exit_status = -1;  // -1: a signal ended it
    bool timed_out = false, flooded = false;
    std::string output;  // what it wrote to standard output; standard error goes nowhere
    bool ended_well() const { return exit_status == 0 && !timed_out && !flooded; }
};

class Sandbox {
public:
    // Tries a program that does nothing. `bwrap`: bubblewrap's program; empty: where Debian has it. Error: what is
    // missing, in one line.
    static Result<Sandbox> open(const std::filesystem::path& bwrap = {});

    // `command`: a program by its path in /usr and its arguments. Thread-safe. Error: the sandbox itself failed.
    Result<SandboxRun> run(std::span<const std::string> command, std::string_view input,
                           const SandboxLimits& limits) const;

private:
    Sandbox() = default;
    // `errors`: standard error goes to the output, bubblewrap's own included.
    Result<SandboxRun> run(std::span<const std::string> command, std::string_view input, const SandboxLimits& limits,
                           bool errors) const;
    std::string shell_ = "/bin/sh", bwrap_;
    std::vector<std::string> root_;  // arguments that make the file system
};

}  // namespace nibble
