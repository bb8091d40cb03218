// `nibble import FILE.gguf -o DIR`: a GGUF file as a Hugging Face folder in BF16.
#include "checkpoint/gguf_import.h"
#include "checkpoint/model_card.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "page/numbers.h"

#include <fmt/core.h>

namespace nibble {
namespace {

struct ImportConfig {
    GgufImportOptions options;
    std::string file, out, max_shard_size = "5GB", command_line, card_command;
    bool json = false, quiet = false;
};

Result<Outcome> run_import(ImportConfig config) {
    Console console(config.quiet || config.json);
    NIBBLE_TRY(config.options.max_shard_bytes, parse_size(config.max_shard_size));
    config.options.file = config.file;
    config.options.out = config.out;
    config.options.manifest = to_text(Manifest{.command_line = config.command_line});
    const std::string name = hub_name(config.file);
    config.options.card = model_card_text({.title = hub_name(config.out),
                                           .base_model = name,
                                           .library = "transformers",
                                           .tags = {"nibble"},
                                           .facts = {{"made from", name}, {"weights", "decoded to BF16"}},
                                           .command = config.card_command},
                                          "");
    NIBBLE_TRY(const auto result, import_gguf(config.options, console.hooks()));
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
    CLI::App* command =
        app.add_subcommand("import", "GGUF to a Hugging Face folder in BF16, tokenizer and chat template included");
    command->add_option("file", config->file, "a .gguf file")->required();
    command->add_option("-o,--output", config->out, "folder to write; must not exist")->required();
    add_shard_size_flag(*command, config->max_shard_size);
    add_threads_flag(*command, config->options.threads);
    command->add_option("--pre", config->options.pre, "pre-tokenizer id, where the file names none or an unknown one");
    add_json_flag(*command, config->json);
    add_quiet_flag(*command, config->quiet, "no progress, no summary");
    command->footer("Example:\n  nibble import SmolLM2-135M-Instruct.Q4_1.gguf -o smollm2-bf16");
    command->callback([config, command, &run] {
        config->command_line = command_line_of(*command);
        config->card_command = command_for_card(*command);
        run = [config] { return run_import(*config); };
    });
}

}  // namespace nibble
