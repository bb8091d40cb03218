// gpu_quantize: checks every quantization kernel of the CUDA backend bit for bit against kernels/ref, then times it
// against a device-to-device copy. Prints a table, writes JSON with --json. Exit status 1 when a check fails or the
// device does.
#include "base/json.h"
#include "gpu/check.h"
#include "gpu/timing.h"
#include "tensor/device.h"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <fstream>

namespace nibble::bench {
namespace {

struct Config {
    std::string device = "cuda", json;
    CheckOptions check;
    TimingOptions timing;
    bool no_check = false, no_timing = false;
    int64_t memory_gib = 24;
};

Result<bool> run(const Config& config, Json& report) {
    NIBBLE_TRY(const DeviceChoice choice, parse_device(config.device));
    NIBBLE_TRY(const DeviceInfo info, open_device(choice));
    fmt::print("{}: compute capability {}.{}, {} multiprocessors, {} GiB\n", info.name, info.major, info.minor,
               info.multiprocessors, info.memory_bytes >> 30);
    report["device"] = info.name;
    NIBBLE_TRY(Stream stream, Stream::create(info.index));
    NIBBLE_TRY(DeviceArena arena, DeviceArena::create(info.index, config.memory_gib << 30));

    bool good = true;
    if (!config.no_check) {
        NIBBLE_TRY(const auto results, check_all(stream, arena, config.check));
        report["checks"] = Json::array();
        for (const CheckResult& r : results) {
            good = good && r.mismatches == 0 && r.cases > 0;
            fmt::print("{:<58} {:>4} cases {:>11} elements {:>9} differ{}\n", r.name, r.cases, r.elements, r.mismatches,
                       r.mismatches ? "  " + r.first : "");
            report["checks"].push_back(
                {{"name", r.name}, {"cases", r.cases}, {"elements", r.elements}, {"mismatches", r.mismatches}});
        }
        good = good && !results.empty();
    }
    if (!config.no_timing) {
        NIBBLE_TRY(const auto timings, time_all(stream, arena, config.timing));
        fmt::print("{:<44} {:>10} {:>9} {:>7} {:>9} {:>9} {:>7}\n", "", "elements", "ms", "spread", "GB/s", "BF16 GB/s",
                   "of copy");
        report["timings"] = Json::array();
        for (const Timing& t : timings) {
            fmt::print("{:<44} {:>10} {:>9.4f} {:>6.1f}% {:>9.0f} {:>9.0f} {:>6.1f}%\n", t.name, t.elements,
                       t.milliseconds, 100 * t.spread, t.rate() / 1e9, t.bf16_rate() / 1e9, 100 * t.fraction_of_copy);
            report["timings"].push_back({{"name", t.name},
                                         {"elements", t.elements},
                                         {"bytes", t.bytes},
                                         {"milliseconds", t.milliseconds},
                                         {"spread", t.spread},
                                         {"gb_per_second", t.rate() / 1e9},
                                         {"fraction_of_copy", t.fraction_of_copy}});
        }
    }
    return good;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
    using namespace nibble;
    bench::Config config;
    CLI::App app{"Checks and times the CUDA quantization kernels"};
    app.add_option("--device", config.device, "cuda or cuda:N");
    app.add_option("--json", config.json, "write the results here");
    app.add_option("--filter", config.check.filter, "only checks and timings whose name contains this");
    app.add_option("--elements", config.check.elements, "elements per check");
    app.add_option("--seed", config.check.seed, "of the checked data");
    app.add_option("--log2", config.timing.log2_elements, "sizes to time");
    app.add_option("--repeats", config.timing.repeats, "timed runs");
    app.add_option("--memory", config.memory_gib, "GiB of device memory");
    app.add_flag("--no-check", config.no_check);
    app.add_flag("--no-timing", config.no_timing);
    CLI11_PARSE(app, argc, argv);
    config.timing.filter = config.check.filter;

    Json report;
    const auto good = bench::run(config, report);
    if (!good) {
        fmt::print(stderr, "gpu_quantize: {}\n", good.error().message());
        return 1;
    }
    if (!config.json.empty()) {
        std::ofstream out(config.json);
        out << report.dump(1) << "\n";
        if (!out.flush()) {
            fmt::print(stderr, "gpu_quantize: cannot write {}\n", config.json);
            return 1;
        }
    }
    fmt::print("{}\n", *good ? "all checks passed" : "CHECKS FAILED");
    return *good ? 0 : 1;
}
