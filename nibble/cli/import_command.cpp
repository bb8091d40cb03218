// `nibble import FILE.gguf -o DIR`: converts a GGUF file to a Hugging Face folder in BF16.
#include "cli/command.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "nibble/convert.h"
#include "page/numbers.h"

#include <fmt/core.h>

namespace nibble {
namespace {

struct ImportConfig : ImportCheckpointOptions {
    bool json = false, quiet = false;
};

Result<Outcome> run_import(const ImportConfig& config) {
    Console console(config.quiet || config.json, config.quiet);
    NIBBLE_TRY(const auto result, import_checkpoint(config, console.hooks()));
    console.end_line();
    if (config.json)
        fmt::print("{}", json_line({{"output", config.out},
                                    {"tensors", result.tensors},
                                    {"bytes", result.weight_bytes},
                                    {"tokenizer", result.tokenizer}}));
    else if (!config.quiet)
        fmt::print("{}: {} tensors, {} in BF16{}\n", config.out, result.tensors, human_bytes(result.weight_bytes),
                   result.tokenizer ? ", tokenizer included" : ", the file has no tokenizer");
    return Outcome{};
}

}  // namespace

void add_import(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<ImportConfig>();
    CLI::App* command = app.add_subcommand(
        "import", "convert a GGUF file to a Hugging Face folder in BF16, with tokenizer and chat template");
    command->add_option("file", config->file, "a .gguf file")->required();
    command->add_option("-o,--output", config->out, "folder to write; must not exist")->required();
    add_shard_size_flag(*command, config->max_shard_size);
    add_threads_flag(*command, config->threads);
    command->add_option("--pre", config->pre, "id of the pre-tokenizer, if the file has none or an unknown one");
    add_json_flag(*command, config->json);
    add_quiet_flag(*command, config->quiet, "no progress, no summary");
    command->footer("Example:\n  nibble import SmolLM2-135M-Instruct.Q4_1.gguf -o smollm2-bf16");
    command->callback([config, command, &run] {
        config->command = {command_line_of(*command), command_for_card(*command)};
        run = [config] { return run_import(*config); };
    });
}

}  // namespace nibble
