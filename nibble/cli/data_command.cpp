// `nibble data build FILES -o DIR` and `nibble data show DIR`: token shards for training.
#include "cli/command.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/usage.h"
#include "nibble/data.h"

#include <fmt/format.h>

namespace nibble {
namespace {

struct DataBuildConfig : TokenDataOptions {
    bool json = false, quiet = false;
};

struct DataShowConfig : ShowTokenDataOptions {
    bool json = false;
};

Result<Outcome> run_data_build(const DataBuildConfig& config) {
    Console console(config.quiet || config.json, config.quiet);
    NIBBLE_TRY(const TokenDataReport report, build_token_data(config, console.hooks()));
    console.end_line();
    if (config.json)
        fmt::print("{}", report.json());
    else if (!config.quiet)
        fmt::print("{}", report.text());
    return Outcome{};
}

Result<Outcome> run_data_show(const DataShowConfig& config) {
    NIBBLE_TRY(const JobReport report, show_token_data(config));
    fmt::print("{}", config.json ? report.json() : report.text());
    return Outcome{};
}

void add_data_build(CLI::App& data, RunCommand& run) {
    auto config = std::make_shared<DataBuildConfig>();
    CLI::App* command = data.add_subcommand("build", "convert texts and chats to a folder of token shards");
    command
        ->add_option("FILES", config->files,
                     "text files; rows of texts or conversations in *.jsonl, *.json, *.csv, *.tsv or *.parquet; all "
                     "also as *.gz; or folders of such files")
        ->required();
    command->add_option("--tokenizer", config->tokenizer, "a model's folder, or a tokenizer.json, .model or .gguf file")
        ->required();
    command->add_option("-o,--output", config->out, "folder to write; must not exist")->required();
    command->add_option("--val", config->validation, "fraction of validation data")->check(CLI::Range(0.0, 0.99));
    command
        ->add_option("--val-by", config->validation_by,
                     "documents: whole documents, drawn with --seed; tails: the end of every document")
        ->check(one_of({"documents", "tails"}))
        ->capture_default_str();
    command->add_option("--seed", config->seed, "seed for drawing validation documents")->capture_default_str();
    command
        ->add_option("--separator", config->separator,
                     "text between documents of a text file, with \\n, \\t, \\r, \\\\; default: a file is one document")
        ->check(read_by(check_separator));
    command->add_option("--end-token", config->end_token,
                        "token after every text, or none; default: eos_token of tokenizer_config.json");
    command->add_option("--loss", config->loss, "tokens of chats that are learned")
        ->check(one_of({"assistant", "last", "all"}))
        ->capture_default_str();
    command->add_option("--time", config->time,
                        "time in seconds since 1970 (UTC), for chat templates that write the date");
    command->add_option("--shard-tokens", config->shard_tokens, "approximate number of tokens per shard")
        ->check(read_by(check_token_count))
        ->capture_default_str();
    add_threads_flag(*command, config->threads);
    add_json_flag(*command, config->json);
    add_quiet_flag(*command, config->quiet, "no progress, no summary");
    command->footer(
        "The folder does not depend on the number of threads.\n"
        "Examples:\n"
        "  nibble data build docs README.md --tokenizer SmolLM2-135M -o docs-tokens --val 0.05 --val-by tails\n"
        "  nibble data build chats.jsonl.gz --tokenizer Qwen3-8B -o chats-tokens --loss last");
    command->callback([config, &run] { run = [config] { return run_data_build(*config); }; });
}

void add_data_show(CLI::App& data, RunCommand& run) {
    auto config = std::make_shared<DataShowConfig>();
    CLI::App* command = data.add_subcommand("show", "describe a folder of token shards");
    command->add_option("DIR", config->folder, "folder made by `nibble data build`")->required();
    command->add_option("--tokenizer", config->tokenizer,
                        "tokenizer for showing text instead of ids; must be the one that made the folder");
    command->add_option("--documents", config->documents, "number of documents whose beginning is shown")
        ->check(CLI::Range(0, 1'000'000))
        ->capture_default_str();
    command->add_option("--tokens", config->tokens, "tokens shown of each document")
        ->check(CLI::Range(1, 1'000'000))
        ->capture_default_str();
    command->add_flag("--val", config->validation, "show validation documents");
    command->add_flag("--check", config->check, "read and check every token: ids are in the vocabulary, hashes match");
    add_json_flag(*command, config->json);
    command->footer("Example:\n  nibble data show docs-tokens --tokenizer SmolLM2-135M --check");
    command->callback([config, &run] { run = [config] { return run_data_show(*config); }; });
}

}  // namespace

void add_data(CLI::App& app, RunCommand& run) {
    CLI::App* data = app.add_subcommand("data", "build and show token shards for training");
    data->require_subcommand(1);
    add_data_build(*data, run);
    add_data_show(*data, run);
}

}  // namespace nibble
