#include "device/program.h"

#include <cstdio>

namespace nibble::bench {
namespace {

Result<bool> run(const ProgramOptions& options, const std::function<void(Run&)>& check,
                 const std::function<Status(Run&)>& time) {
    NIBBLE_TRY(const DeviceChoice choice, parse_device(options.device));
    NIBBLE_TRY(const DeviceInfo info, open_device(choice));
    fmt::print("{}: {} multiprocessors\n", info.name, info.multiprocessors);
    NIBBLE_TRY(Stream stream, Stream::create(info.index));
    NIBBLE_TRY(DeviceArena arena, DeviceArena::create(info.index, options.memory_gib << 30));
    Report report;
    report.json["device"] = info.name;
    Kit kit(stream, info, arena, options.seed);
    Run run(kit, report);
    if (!options.no_check) {
        check(run);
        fmt::print("{}\n", run.good() ? "all checks passed" : "CHECKS FAILED");
        std::fflush(stdout);
    }
    if (!options.no_timing) NIBBLE_CHECK(time(run));
    NIBBLE_CHECK(report.write(options.json));
    return run.good();
}

}  // namespace

void ProgramOptions::add_to(CLI::App& app, const std::string& what_is_small) {
    app.add_option("--device", device, "cuda or cuda:N");
    app.add_option("--json", json, "write the results here");
    app.add_option("--memory", memory_gib, "GiB of device memory");
    app.add_option("--seed", seed, "of the checked data");
    app.add_flag("--small", small, what_is_small);
    app.add_flag("--no-check", no_check);
    app.add_flag("--no-timing", no_timing);
}

void Run::show(std::string_view what, const Result<std::vector<Check>>& checks) {
    if (!checks) {
        fmt::print("{}: {}\n", what, checks.error().message());
        report.check(fmt::format("{}: {}", what, checks.error().message()), 0, 1);
        good_ = false;
        return;
    }
    for (const Check& c : *checks) {
        good_ = good_ && c.wrong == 0 && c.compared > 0;
        report.check(c.name, c.compared, c.wrong, c.worst);
        fmt::print("{:<68} {:>11} compared {:>8} wrong{}{}\n", c.name, c.compared, c.wrong,
                   c.worst > 0 ? fmt::format("  worst {:.2e}", c.worst) : "", c.wrong ? "  " + c.first : "");
    }
    std::fflush(stdout);
}

int run_program(std::string_view name, const ProgramOptions& options, const std::function<void(Run&)>& check,
                const std::function<Status(Run&)>& time) {
    const Result<bool> good = run(options, check, time);
    if (good) return *good ? 0 : 1;
    fmt::print(stderr, "{}: {}\n", name, good.error().message());
    return 1;
}

}  // namespace nibble::bench
