// gpu_attention: checks paged decode attention, then times it against the bytes of keys and values it reads.
#include "attention/check.h"
#include "bench/attention.h"
#include "device/report.h"

#include <CLI/CLI.hpp>

#include <cstdio>

namespace nibble::bench {
namespace {

using cuda::KvType;

struct Config {
    std::string device = "cuda", json;
    int64_t memory_gib = 24;
    uint64_t seed = 1;
    int repeats = 15, page_tokens = 16;
    std::vector<std::string> shapes{"1x1024", "1x4096", "1x32768", "16x1024", "16x4096", "64x4096"};
    bool small = false, tiny = false, no_check = false, no_timing = false;
};

Result<KernelRow> time_shape(const AttentionShape& shape, Kit& kit, const Noise<uint16_t>& noise, int repeats,
                             Report& report) {
    NIBBLE_TRY(const KernelRow row, attention_row(kit, shape, noise, repeats));
    if (row.check.wrong) return fail("{} {}: {}", row.kernel, row.shape, row.check.first);
    const double tb = row.bytes / row.time.us * 1e-6, tf = row.operations / row.time.us * 1e-6;
    fmt::print("{} {:<20} {:>10.2f} us {:>5.2f} TB/s {:>4.0f} TF\n", row.kernel, row.shape, row.time.us, tb, tf);
    std::fflush(stdout);
    report.timing({{"kernel", row.kernel},
                   {"shape", row.shape},
                   {"sequences", shape.sequences},
                   {"tokens", shape.tokens},
                   {"page_tokens", shape.page_tokens},
                   {"us", row.time.us},
                   {"tb_per_second", tb},
                   {"tflops", tf}});
    return row;
}

Status time_all(const Config& config, Kit& kit, Report& report) {
    NIBBLE_TRY(const auto noise, attention_noise(kit));
    for (const std::string& text : config.shapes) {
        AttentionShape shape{.page_tokens = config.page_tokens};
        if (std::sscanf(text.c_str(), "%dx%d", &shape.sequences, &shape.tokens) != 2)
            return fail("--shape {}: expected SEQUENCESxTOKENS", text);
        NIBBLE_TRY(const KernelRow wide, time_shape(shape, kit, noise, config.repeats, report));
        shape.type = KvType::e4m3;
        NIBBLE_TRY(const KernelRow narrow, time_shape(shape, kit, noise, config.repeats, report));
        fmt::print("attention bf16 / e4m3 {:>10} {:.2f}\n", text, wide.time.us / narrow.time.us);
    }
    for (const auto& [tokens, head] : {std::pair{512, 128}, {4096, 128}, {16384, 128}, {16384, 64}})
        NIBBLE_CHECK(time_shape({.prefill = true, .tokens = tokens, .head_dim = head, .page_tokens = 64}, kit, noise, 5,
                                report));
    return Ok{};
}

Result<bool> run(const Config& config) {
    NIBBLE_TRY(const DeviceChoice choice, parse_device(config.device));
    NIBBLE_TRY(const DeviceInfo info, open_device(choice));
    fmt::print("{}: {} multiprocessors\n", info.name, info.multiprocessors);
    NIBBLE_TRY(Stream stream, Stream::create(info.index));
    NIBBLE_TRY(DeviceArena arena, DeviceArena::create(info.index, config.memory_gib << 30));
    Report report;
    report.json["device"] = info.name;
    bool good = true;
    if (!config.no_check) {
        NIBBLE_TRY(const auto checks, check_attention(stream, info, arena, config.seed,
                                                      config.tiny    ? AttentionChecks::tiny
                                                      : config.small ? AttentionChecks::small
                                                                     : AttentionChecks::all));
        for (const Check& c : checks) {
            good = good && c.wrong == 0 && c.compared > 0;
            report.check(c.name, c.compared, c.wrong, c.worst);
            fmt::print("{:<68} {:>9} compared {:>7} wrong{}{}\n", c.name, c.compared, c.wrong,
                       c.worst > 0 ? fmt::format("  worst {:.2e}", c.worst) : "", c.wrong ? "  " + c.first : "");
        }
        fmt::print("{}\n", good ? "all checks passed" : "CHECKS FAILED");
        std::fflush(stdout);
    }
    if (!config.no_timing) {
        Kit kit(stream, info, arena, config.seed);
        NIBBLE_CHECK(time_all(config, kit, report));
    }
    NIBBLE_CHECK(report.write(config.json));
    return good;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
    nibble::bench::Config config;
    CLI::App app{"Checks and times paged decode attention"};
    app.add_option("--device", config.device, "cuda or cuda:N");
    app.add_option("--json", config.json, "write the results here");
    app.add_option("--memory", config.memory_gib, "GiB of device memory");
    app.add_option("--seed", config.seed, "of the checked data");
    app.add_option("--repeats", config.repeats, "timed runs")->check(CLI::Range(1, 1000));
    app.add_option("--page", config.page_tokens, "tokens of a page in timed runs");
    app.add_option("--shape", config.shapes, "SEQUENCESxTOKENS to time");
    app.add_flag("--small", config.small, "short sequences only");
    app.add_flag("--tiny", config.tiny, "a few launches of every kernel: for racecheck");
    app.add_flag("--no-check", config.no_check);
    app.add_flag("--no-timing", config.no_timing);
    CLI11_PARSE(app, argc, argv);
    const auto good = nibble::bench::run(config);
    if (!good) {
        fmt::print(stderr, "gpu_attention: {}\n", good.error().message());
        return 1;
    }
    return *good ? 0 : 1;
}
