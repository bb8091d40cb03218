// `nibble convert SRC -o OUT --format DIALECT`: writes the same codes and scales in another dialect, or everything
// decoded to BF16.
#include "base/utf8.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/usage.h"
#include "nibble/convert.h"
#include "page/numbers.h"

#include <fmt/core.h>

namespace nibble {
namespace {

struct ConvertConfig : ConvertCheckpointOptions {
    bool json = false, quiet = false;
};

Result<Outcome> run_convert(const ConvertConfig& config) {
    Console console(config.quiet || config.json, config.quiet);
    NIBBLE_TRY(const auto report, convert_checkpoint(config, console.hooks()));
    console.end_line();
    if (config.json) {
        fmt::print("{}", json_line({{"output", config.out},
                                    {"dialect", config.format == "bf16" ? "plain" : config.format},
                                    {"tensors", report.tensors},
                                    {"bytes", report.bytes},
                                    {"carried", report.quantized},
                                    {"decoded", report.decoded},
                                    {"notes", report.lines}}));
        return Outcome{};
    }
    if (config.quiet) return Outcome{};
    fmt::print("{}: {} tensors, {}; {} matrices copied bit for bit{}\n", config.out, report.tensors,
               human_bytes(report.bytes), report.quantized,
               report.decoded ? fmt::format(", {} decoded to BF16", report.decoded) : "");
    for (const std::string& line : report.lines) fmt::print("  {}\n", printable(line));
    return Outcome{};
}

}  // namespace

void add_convert(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<ConvertConfig>();
    CLI::App* command =
        app.add_subcommand("convert", "convert a checkpoint to another dialect without loss, or decode it to BF16");
    command->add_option("source", config->source, "checkpoint: folder or .gguf file")->required();
    command->add_option("-o,--output", config->out, "folder (or .gguf file) to write; must not exist")->required();
    CLI::Option* format =
        command
            ->add_option("--format", config->format, "dialect of the output; bf16 decodes; optional for a .gguf output")
            ->check(one_of({"modelopt", "compressed-tensors", "gguf", "bf16", "plain"}));
    command->add_option("--drop", config->drop, "leave out parts that the target cannot store")
        ->check(one_of({"input_scale", "activation", "kv_scale", "mtp", "vision"}));
    add_partial_flag(*command, config->partial);
    add_shard_size_flag(*command, config->max_shard_size);
    add_threads_flag(*command, config->threads);
    add_json_flag(*command, config->json);
    add_quiet_flag(*command, config->quiet, "no progress, no summary");
    command->footer(
        "Examples:\n"
        "  nibble convert Qwen3-8B-NVFP4 -o Qwen3-8B-NVFP4.gguf --drop activation\n"
        "  nibble convert DeepSeek-V3 -o DeepSeek-V3-BF16 --format bf16");
    command->callback([config, command, format, &run] {
        if (format->count() == 0 && !config->out.ends_with(".gguf")) throw CLI::RequiredError("--format");
        config->format = output_format(config->out, config->format);
        config->command = {command_line_of(*command), command_for_card(*command)};
        run = [config] { return run_convert(*config); };
    });
}

}  // namespace nibble
