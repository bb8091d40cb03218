// `nibble logits MODEL --ids FILE -o OUT`: computes the logits of given tokens, for comparisons with other systems.
#include "cli/engine.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "nibble/logits.h"

#include <fmt/format.h>

namespace nibble {
namespace {

struct LogitsConfig : LogitsOptions {
    bool json = false, quiet = false;
};

Result<Outcome> run_logits(const LogitsConfig& config) {
    Console console(true, config.quiet);
    const JobHooks hooks = console.hooks();
    LogitsOptions options = config;
    NIBBLE_TRY(const bool done, joined(options.engine, hooks));
    if (done) return Outcome{};
    NIBBLE_TRY(const LogitsReport report, compute_logits(options, hooks));
    if (config.json)
        fmt::print("{}", json_line({{"output", config.out},
                                    {"rows", report.rows},
                                    {"tokens", report.tokens},
                                    {"vocabulary", report.vocabulary}}));
    else if (!config.quiet)
        fmt::print("{}: logits F32 [{}, {}, {}]\n", config.out, report.rows, report.tokens, report.vocabulary);
    return Outcome{};
}

}  // namespace

void add_logits(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<LogitsConfig>();
    CLI::App* command =
        app.add_subcommand("logits", "compute the logits of given token ids, for comparisons with other systems");
    command->add_option("model", config->model, "a checkpoint: folder or .gguf file")->required();
    command->add_option("--ids", config->ids, "a .safetensors file with input_ids, I64 [rows, tokens]")->required();
    command->add_option("-o,--output", config->out, "a .safetensors file: logits, F32 [rows, tokens, vocabulary]")
        ->required();
    add_json_flag(*command, config->json);
    add_engine_flags(*command, config->engine, config->quiet);
    add_parallel_flags(*command, config->engine);
    command->footer("Example:\n  nibble logits Qwen3-0.6B --ids ids.safetensors -o logits.safetensors --compute f32");
    command->callback([config, &run] { run = [config] { return run_logits(*config); }; });
}

}  // namespace nibble
