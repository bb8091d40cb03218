// `nibble eval MODEL...`: evaluates checkpoints: perplexity, KL divergence from a reference, tasks.
#include "cli/engine.h"
#include "cli/terminal.h"
#include "cli/usage.h"
#include "nibble/evaluate.h"

#include <fmt/format.h>

#include <filesystem>

namespace nibble {
namespace {

struct EvalConfig : EvaluateOptions {
    bool json = false, quiet = false;
};

Result<Outcome> run_eval(const EvalConfig& config) {
    Console console(config.json || config.quiet, config.quiet);
    const JobHooks hooks = console.hooks();
    EvaluateOptions options = config;
    NIBBLE_TRY(const bool done, joined(options.engine, hooks));
    if (done) return Outcome{};
    NIBBLE_TRY(const EvaluationReport report, evaluate(options, hooks));
    console.end_line();
    fmt::print("{}", config.json ? report.json() : report.text());
    if (!config.out.empty() && !config.json)
        fmt::print("\nreport: {}\n", (std::filesystem::path(config.out) / "eval.html").string());
    return Outcome{};
}

}  // namespace

void add_eval(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<EvalConfig>();
    CLI::App* command =
        app.add_subcommand("eval", "evaluate checkpoints: perplexity, KL divergence from a reference, tasks");
    command->add_option("models", config->models, "checkpoints: folders or .gguf files")->required();
    command->add_option("--against", config->against, "the reference checkpoint, usually the unquantized one");
    command->add_option("--reference-cache", config->reference_cache,
                        "file for the reference's log-probabilities; written once, then read");
    command->add_option("--text", config->text, "text for perplexity and KL divergence from the reference");
    command->add_option("--context", config->context, "tokens per window of the text")->capture_default_str();
    command->add_option("--stride", config->stride,
                        "tokens from one window to the next; default: adjacent windows, as in llama-perplexity");
    command->add_option("--chunks", config->chunks, "most windows; 0: all")->capture_default_str();
    command->add_option("--lambada", config->lambada, "lines {\"text\"}: predict the last word");
    command
        ->add_option("--choices", config->choices,
                     "lines {\"context\", \"choices\", \"answer\"}: choose the most likely; may be given several times")
        ->allow_extra_args(false);
    command->add_option("--gsm8k", config->gsm8k, "lines {\"question\", \"answer\"}: generate answers");
    command->add_option("--shots", config->shots, "examples before each question: the file's first lines")
        ->check(CLI::Range(0, 100))
        ->capture_default_str();
    command->add_option("--humaneval", config->humaneval,
                        "lines {\"task_id\", \"prompt\"}: write completions, which are not run");
    command->add_option("--limit", config->limit, "most items per task; 0: all")
        ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
        ->capture_default_str();
    command->add_option("-o,--output", config->out,
                        "a folder for eval.json, eval.html and a journal: the same command continues after a stop");
    command->add_flag("--json", config->json, "machine-readable");
    add_engine_flags(*command, config->engine, config->quiet);
    add_parallel_flags(*command, config->engine);
    command->footer("Example:\n  nibble eval out/nvfp4 out/fp8 --against SmolLM2-135M --text wiki.txt -o report");
    command->callback([config, &run] {
        if (const Status possible = check_options(*config); !possible.ok())
            usage_error("{}", possible.error().message());
        run = [config] { return run_eval(*config); };
    });
}

}  // namespace nibble
