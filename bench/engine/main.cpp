// gpu_engine: checks the kernels of a forward pass, then times those that `nibble bench` does not.
#include "bench/graph_time.h"
#include "device/report.h"
#include "engine/check.h"
#include "engine/timing.h"

#include <CLI/CLI.hpp>

#include <cstdio>

namespace nibble::bench {
namespace {

struct Options {
    std::string device = "cuda", json, only;
    int64_t memory_gib = 24;
    uint64_t seed = 1;
    bool small = false, no_check = false, no_timing = false;
};

Result<bool> run(const Options& options) {
    NIBBLE_TRY(const DeviceChoice choice, parse_device(options.device));
    NIBBLE_TRY(const DeviceInfo info, open_device(choice));
    fmt::print("{}: {} multiprocessors\n", info.name, info.multiprocessors);
    NIBBLE_TRY(Stream stream, Stream::create(info.index));
    NIBBLE_TRY(DeviceArena arena, DeviceArena::create(info.index, options.memory_gib << 30));
    Report report;
    report.json["device"] = info.name;
    bool good = true;
    const Kit kit(stream, info, arena, options.seed);
    const auto show = [&](const Result<std::vector<Check>>& checks, std::string_view what) {
        if (!checks) {
            fmt::print("{}: {}\n", what, checks.error().message());
            good = false;
            return;
        }
        for (const Check& c : *checks) {
            good = good && c.wrong == 0 && c.compared > 0;
            report.check(c.name, c.compared, c.wrong, c.worst);
            fmt::print("{:<58} {:>9} compared {:>7} wrong{}{}\n", c.name, c.compared, c.wrong,
                       c.worst > 0 ? fmt::format("  worst {:.2e}", c.worst) : "", c.wrong ? "  " + c.first : "");
        }
        std::fflush(stdout);
    };
    if (!options.no_check) {
        const auto wanted = [&](std::string_view name) { return options.only.empty() || options.only == name; };
        if (wanted("elementwise")) show(check_elementwise(kit), "elementwise");
        if (wanted("inputs")) show(check_inputs(kit), "inputs");
        if (wanted("inputs")) show(check_code_rows(kit), "rows as codes");
        if (wanted("products")) show(check_products(kit, options.small), "products");
        if (wanted("grouped")) show(check_grouped(kit, options.small), "grouped");
        if (wanted("chains")) show(check_chains(kit), "chains");
        if (wanted("expert_codes")) show(check_expert_codes(kit, options.small), "experts as codes");
        if (wanted("experts")) show(check_experts(kit), "experts");
        if (wanted("mamba")) show(check_mamba(kit), "mamba");
        if (wanted("observers")) show(check_observers(kit), "observers");
        if (wanted("sampling")) show(check_sampling(kit), "sampling");
        if (wanted("scaled_mm")) show(check_scaled_mm(kit), "scaled_mm");
        fmt::print("{}\n", good ? "all checks passed" : "CHECKS FAILED");
        std::fflush(stdout);
    }
    if (!options.no_timing && (options.only.empty() || options.only == "chains"))
        NIBBLE_CHECK(time_chains(kit, report));
    NIBBLE_CHECK(report.write(options.json));
    return good;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
    nibble::bench::Options options;
    CLI::App app{"Checks the kernels of a forward pass, then times them"};
    app.add_option("--device", options.device, "cuda or cuda:N");
    app.add_option("--json", options.json, "write the results here");
    app.add_option("--memory", options.memory_gib, "GiB of device memory");
    app.add_option("--seed", options.seed, "of the checked data");
    app.add_option(
        "--only", options.only,
        "checks of one of elementwise, inputs, products, grouped, chains, expert_codes, experts, mamba, observers, "
        "sampling, scaled_mm");
    app.add_flag("--small", options.small, "few tokens only");
    app.add_flag("--no-check", options.no_check);
    app.add_flag("--no-timing", options.no_timing);
    CLI11_PARSE(app, argc, argv);
    const auto good = nibble::bench::run(options);
    if (!good) {
        fmt::print(stderr, "gpu_engine: {}\n", good.error().message());
        return 1;
    }
    return *good ? 0 : 1;
}
