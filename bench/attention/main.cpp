// gpu_attention: checks paged decode attention, then times it against the bytes of keys and values it reads.
#include "attention/check.h"
#include "bench/attention.h"
#include "device/program.h"

#include <cstdio>

namespace nibble::bench {
namespace {

using cuda::KvType;

struct Config {
    int repeats = 15, page_tokens = 16;
    std::vector<std::string> shapes{"1x1024", "1x4096", "1x32768", "16x1024", "16x4096", "64x4096"};
    bool tiny = false;
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

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
    using namespace nibble::bench;
    ProgramOptions options;
    Config config;
    CLI::App app{"Checks and times paged decode attention"};
    options.add_to(app, "short sequences only");
    app.add_option("--repeats", config.repeats, "timed runs")->check(CLI::Range(1, 1000));
    app.add_option("--page", config.page_tokens, "tokens of a page in timed runs");
    app.add_option("--shape", config.shapes, "SEQUENCESxTOKENS to time");
    app.add_flag("--tiny", config.tiny, "a few launches of every kernel: for racecheck");
    CLI11_PARSE(app, argc, argv);
    const AttentionChecks checks = config.tiny     ? AttentionChecks::tiny
                                   : options.small ? AttentionChecks::small
                                                   : AttentionChecks::all;
    return run_program(
        "gpu_attention", options,
        [&](Run& run) {
            run.show("attention", check_attention(run.kit.stream, run.kit.device, run.kit.arena, options.seed, checks));
        },
        [&](Run& run) { return time_all(config, run.kit, run.report); });
}
