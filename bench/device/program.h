// The frame of a program that checks a GPU's kernels, then times them.
#pragma once

#include "bench/kit.h"
#include "device/report.h"

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::bench {

struct ProgramOptions {
    std::string device = "cuda", json;
    int64_t memory_gib = 24;
    uint64_t seed = 1;
    bool small = false, no_check = false, no_timing = false;

    // `small`: what the flag leaves out.
    void add_to(CLI::App& app, const std::string& small);
};

// An open device and what has been found on it.
class Run {
public:
    Run(Kit& kit, Report& report) : kit(kit), report(report) {}

    // Prints checks and notes them in the report; an error counts as a failed check and the rest goes on.
    void show(std::string_view what, const Result<std::vector<Check>>& checks);
    bool good() const { return good_; }

    Kit& kit;
    Report& report;

private:
    bool good_ = true;
};

// The program's exit status: 1 where a check fails or the device does. Errors go to standard error.
int run_program(std::string_view name, const ProgramOptions& options, const std::function<void(Run&)>& check,
                const std::function<Status(Run&)>& time);

}  // namespace nibble::bench
