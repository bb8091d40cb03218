// `nibble convert SRC -o OUT --format DIALECT`: the same codes and scales in another dialect, or everything decoded to
// BF16.
#include "base/utf8.h"
#include "checkpoint/convert.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "page/numbers.h"

#include <fmt/core.h>

namespace nibble {
namespace {

struct ConvertConfig {
    std::string source, out, format, max_shard_size = "5GB", command_line;
    std::vector<std::string> drop;
    int threads = 0;
    bool quiet = false;
};

Result<Outcome> run_convert(const ConvertConfig& config) {
    Console console(config.quiet);
    NIBBLE_TRY(const auto dialect, parse_dialect(config.format == "bf16" ? "plain" : config.format));
    NIBBLE_TRY(const auto max_shard_bytes, parse_size(config.max_shard_size));
    NIBBLE_TRY(const auto source, Checkpoint::open(config.source));
    ThreadPool pool(config.threads);
    const Manifest manifest{.command_line = config.command_line,
                            .settings = {{"dialect", dialect_name(dialect)}, {"drop", config.drop}}};
    NIBBLE_TRY(const auto report, convert(*source,
                                          {.to = dialect,
                                           .out = config.out,
                                           .drop = config.drop,
                                           .max_shard_bytes = max_shard_bytes,
                                           .manifest = to_text(manifest)},
                                          pool, console.hooks()));
    console.end_line();
    if (config.quiet) return Outcome{};
    fmt::print("{}: {} tensors, {}; {} matrices carried bit for bit{}\n", config.out, report.tensors,
               human_bytes(report.bytes), report.quantized,
               report.decoded ? fmt::format(", {} decoded to BF16", report.decoded) : "");
    for (const std::string& line : report.lines) fmt::print("  {}\n", printable(line));
    return Outcome{};
}

}  // namespace

void add_convert(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<ConvertConfig>();
    CLI::App* command = app.add_subcommand("convert", "another dialect without loss, or everything decoded to BF16");
    command->add_option("source", config->source, "checkpoint: folder or .gguf file")->required();
    command->add_option("-o,--output", config->out, "folder (or .gguf file) to write; must not exist")->required();
    command->add_option("--format", config->format, "modelopt, compressed-tensors, gguf, or bf16 to decode")
        ->required();
    command->add_option("--drop", config->drop, "what the target cannot carry: input_scale, activation, kv_scale");
    command->add_option("--max-shard-size", config->max_shard_size, "of the safetensors files")->capture_default_str();
    command->add_option("--threads", config->threads, "0: all cores")->capture_default_str();
    command->add_flag("--quiet", config->quiet, "no progress, no summary");
    command->footer(
        "Examples:\n"
        "  nibble convert Qwen3-8B-NVFP4 -o Qwen3-8B-NVFP4.gguf --format gguf --drop activation\n"
        "  nibble convert DeepSeek-V3 -o DeepSeek-V3-BF16 --format bf16");
    command->callback([config, command, &run] {
        config->command_line = command_line_of(*command);
        run = [config] { return run_convert(*config); };
    });
}

}  // namespace nibble
