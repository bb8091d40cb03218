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
    NIBBLE_TRY(const EvaluationReport report, evaluate(config, console.hooks()));
    console.end_line();
    fmt::print("{}", config.json ? report.json() : report.text());
    if (!config.out.empty() && !config.json)
        fmt::print("\nreport: {}\n", (std::filesystem::path(config.out) / "eval.html").string());
    return Outcome{};
}

}  // namespace

void add_eval(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<EvalConfig>();
    CLI::App* command = app.add_subcommand("eval", "what checkpoints can do, and what is left of a reference");
    command->add_option("models", config->models, "checkpoints: folders or .gguf files")->required();
    command->add_option("--against", config->against, "the reference checkpoint, often the unquantized one");
    command->add_option("--reference-cache", config->reference_cache,
                        "a file for the reference's log-probabilities; made at first, read later");
    command->add_option("--text", config->text, "a text: perplexity, and KL divergence from the reference");
    command->add_option("--context", config->context, "tokens of a window of the text")->capture_default_str();
    command->add_option("--stride", config->stride,
                        "move the window by so many tokens; default: llama-perplexity's windows, side by side");
    command->add_option("--chunks", config->chunks, "at most so many windows; 0: all")->capture_default_str();
    command->add_option("--lambada", config->lambada, "lines {\"text\"}: the last word");
    command
        ->add_option("--choices", config->choices,
                     "lines {\"context\", \"choices\", \"answer\"}: the likeliest; may be given several times")
        ->allow_extra_args(false);
    command->add_option("--gsm8k", config->gsm8k, "lines {\"question\", \"answer\"}: generated answers");
    command->add_option("--shots", config->shots, "worked examples before a question: the file's first lines")
        ->check(CLI::Range(0, 100))
        ->capture_default_str();
    command->add_option("--humaneval", config->humaneval,
                        "lines {\"task_id\", \"prompt\"}: writes completions, runs none");
    command->add_option("--limit", config->limit, "at most so many items of a task; 0: all")
        ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
        ->capture_default_str();
    command->add_option("-o,--output", config->out,
                        "a folder for eval.json, eval.html and a journal: the same command continues after a stop");
    command->add_flag("--json", config->json, "machine-readable");
    add_engine_flags(*command, config->engine, config->quiet);
    command->footer("Example:\n  nibble eval out/nvfp4 out/fp8 --against SmolLM2-135M --text wiki.txt -o report");
    command->callback([config, &run] {
        if (const Status possible = check_options(*config); !possible.ok())
            usage_error("{}", possible.error().message());
        run = [config] { return run_eval(*config); };
    });
}

}  // namespace nibble
