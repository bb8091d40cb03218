// Runs an untrusted program with bubblewrap (Debian package bubblewrap): no network, no processes except its own
// threads, no files except the system's programs (read-only) and an empty /tmp, and limits of time, memory, files and
// output. Missing requirements (bwrap, user namespaces) are errors when the sandbox is opened.
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
    double seconds = 10;                      // wall-clock time; afterwards the program is killed
    int64_t memory_bytes = int64_t{1} << 29;  // address space
    int64_t file_bytes =
        int64_t{1} << 24;  // size of /tmp and of a single file; the number of empty files is limited only by time
    int64_t output_bytes = int64_t{1} << 20;  // a program that writes more is killed
};

struct SandboxRun {
    int exit_status = -1;  // -1: ended by a signal
    bool timed_out = false, flooded = false;
    std::string output;  // standard output; standard error is discarded
    bool ended_well() const { return exit_status == 0 && !timed_out && !flooded; }
};

class Sandbox {
public:
    // Runs a trivial program as a test. `bwrap`: path of bubblewrap; empty: Debian's. Error: the missing requirement,
    // in one line.
    static Result<Sandbox> open(const std::filesystem::path& bwrap = {});

    // Runs `command`: the path of a program in /usr and its arguments. Thread-safe. Error: the sandbox itself failed.
    Result<SandboxRun> run(std::span<const std::string> command, std::string_view input,
                           const SandboxLimits& limits) const;

private:
    Sandbox() = default;
    // `errors`: includes standard error, also bubblewrap's, in the output.
    Result<SandboxRun> run(std::span<const std::string> command, std::string_view input, const SandboxLimits& limits,
                           bool errors) const;
    std::string shell_ = "/bin/sh", bwrap_;
    std::vector<std::string> root_;  // arguments that build the file system
};

}  // namespace nibble
