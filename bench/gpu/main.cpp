// gpu_quantize: checks every quantization kernel of the CUDA backend bit for bit against kernels/ref, then times it
// against a device-to-device copy. Prints a table, writes JSON with --json. Exit status 1 when a check fails or the
// device does.
#include "base/json.h"
#include "cli/bench_device.h"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <fstream>

int main(int argc, char** argv) {
    using namespace nibble;
    bench::DeviceBench config;
    std::string json;
    bool no_check = false, no_timing = false;
    CLI::App app{"Checks and times the CUDA quantization kernels"};
    app.add_option("--device", config.device, "cuda or cuda:N");
    app.add_option("--json", json, "write the results here");
    app.add_option("--filter", config.check.filter, "only checks and timings whose name contains this");
    app.add_option("--elements", config.check.elements, "elements per check");
    app.add_option("--seed", config.check.seed, "of the checked data");
    app.add_option("--log2", config.timing.log2_elements, "sizes to time");
    app.add_option("--repeats", config.timing.repeats, "timed runs");
    app.add_option("--memory", config.memory_gib, "GiB of device memory");
    app.add_flag("--no-check", no_check);
    app.add_flag("--no-timing", no_timing);
    CLI11_PARSE(app, argc, argv);
    config.timing.filter = config.check.filter;
    config.checks = !no_check, config.times = !no_timing;

    Json report;
    const auto good = bench::run_device_bench(config, stdout, report);
    if (!good) {
        fmt::print(stderr, "gpu_quantize: {}\n", good.error().message());
        return 1;
    }
    if (!json.empty()) {
        std::ofstream out(json);
        out << report.dump(1) << "\n";
        if (!out.flush()) {
            fmt::print(stderr, "gpu_quantize: cannot write {}\n", json);
            return 1;
        }
    }
    fmt::print("{}\n", *good ? "all checks passed" : "CHECKS FAILED");
    return *good ? 0 : 1;
}
