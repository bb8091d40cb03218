// `nibble data build FILES -o DIR` and `nibble data show DIR`: token shards for training.
#include "base/utf8.h"
#include "chat/model_text.h"
#include "checkpoint/output_place.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/usage.h"
#include "data/build.h"
#include "data/token_set.h"
#include "page/numbers.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>

namespace nibble {
namespace {

struct DataBuildConfig {
    std::vector<std::string> files;
    std::string tokenizer, out, separator, end_token, loss = "assistant", validation_by = "documents",
                                                      shard_tokens = "100M";
    double validation = 0;
    uint64_t seed = 0;
    std::optional<int64_t> time;
    int threads = 0;
    bool json = false, quiet = false;
};

struct DataShowConfig {
    std::string folder, tokenizer;
    int64_t documents = 3, tokens = 48;
    bool validation = false, check = false, json = false;
};

// "none": no token; empty: eos_token of tokenizer_config.json, if it says one.
Result<std::optional<TokenId>> end_token_of(const DataBuildConfig& config, const ModelText& text) {
    if (config.end_token == "none") return std::optional<TokenId>();
    std::string name = config.end_token;
    if (name.empty()) {
        const auto told = text.variables.find("eos_token");
        if (told == text.variables.end() || !told->is_string()) return std::optional<TokenId>();
        name = told->get<std::string>();
    }
    const auto id = text.tokenizer.id_of(name);
    if (!id) return fail("{}: has no token '{}' to end documents with", config.tokenizer, name);
    return std::optional(*id);
}

Result<int64_t> parse_token_count(std::string_view word) {
    const char unit = word.empty() ? ' ' : word.back();
    const int64_t factor = unit == 'k' ? 1000 : unit == 'M' ? 1'000'000 : unit == 'G' ? 1'000'000'000 : 1;
    const std::string digits(word.substr(0, word.size() - (factor > 1)));
    if (digits.empty() || digits.size() > 10 || digits.find_first_not_of("0123456789") != digits.npos)
        return fail("'{}' is no number of tokens: 500000, 500k, 100M", word);
    return std::stoll(digits) * factor;
}

// \n, \t, \r and \\ as a shell's single quotes leave them.
Result<std::string> parse_separator(std::string_view word) {
    std::string out;
    for (size_t i = 0; i < word.size(); ++i) {
        if (word[i] != '\\') {
            out += word[i];
            continue;
        }
        const char c = ++i < word.size() ? word[i] : ' ';
        if (c != 'n' && c != 't' && c != 'r' && c != '\\')
            return fail("a backslash begins \\n, \\t, \\r or \\\\, and not '{}'", word.substr(i - 1, 2));
        out += c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : '\\';
    }
    return out;
}

Json split_summary(const DataSplit& split) {
    return {{"shards", split.shards.size()},
            {"documents", split.documents()},
            {"tokens", split.tokens()},
            {"learned", split.learned()}};
}

std::string split_line(std::string_view name, const DataSplit& split) {
    const int64_t tokens = split.tokens(), learned = split.learned();
    return fmt::format("  {:<10} {} tokens in {} document{}, {} shard{}{}\n", name, human_count(tokens),
                       human_count(split.documents()), split.documents() == 1 ? "" : "s", split.shards.size(),
                       split.shards.size() == 1 ? "" : "s",
                       learned == tokens ? "" : fmt::format("; the loss counts {}", human_count(learned)));
}

Json summary_json(const std::string& folder, const DataManifest& m) {
    return {{"folder", folder},
            {"vocab_size", m.vocab},
            {"token_bytes", token_width(m.vocab)},
            {"end_token", m.end_token ? Json(*m.end_token) : Json()},
            {"train", split_summary(m.train)},
            {"validation", split_summary(m.validation)}};
}

Result<Outcome> run_data_build(const DataBuildConfig& config) {
    Console console(config.quiet || config.json);
    NIBBLE_TRY(const ModelText text, open_model_text(config.tokenizer));
    NIBBLE_TRY(const auto end_token, end_token_of(config, text));
    NIBBLE_TRY(const int64_t shard_tokens, parse_token_count(config.shard_tokens));
    NIBBLE_TRY(const std::string separator, parse_separator(config.separator));
    const LossOn loss = config.loss == "all" ? LossOn::all : config.loss == "last" ? LossOn::last : LossOn::assistant;
    DocumentText how{.tokenizer = &text.tokenizer,
                     .chat = text.chat ? &*text.chat : nullptr,
                     .variables = text.variables,
                     .end_token = end_token,
                     .loss = loss};
    if (config.time) {
        const std::time_t seconds(*config.time);
        if (!gmtime_r(&seconds, &how.now.emplace())) return fail("--time {}: is no date", *config.time);
    }
    const DataBuildOptions options{
        .inputs = {config.files.begin(), config.files.end()},
        .out = config.out,
        .separator = separator,
        .validation = config.validation,
        .validation_by = config.validation_by == "tails" ? ValidationBy::tails : ValidationBy::documents,
        .seed = config.seed,
        .shard_tokens = shard_tokens};
    for (const std::string& file : config.files) NIBBLE_CHECK(refuse_output_in_source(config.out, file));
    ThreadPool pool(config.threads);
    const auto begin = std::chrono::steady_clock::now();
    NIBBLE_TRY(const DataManifest made, build_data(how, options, pool, console.hooks()));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    console.end_line();
    if (config.json) {
        Json out = summary_json(config.out, made);
        out["seconds"] = seconds;
        fmt::print("{}", json_line(out));
    } else if (!config.quiet) {
        fmt::print("{}: {} bytes a token, {}\n", config.out, token_width(made.vocab), human_seconds(seconds));
        fmt::print("{}", split_line("train", made.train));
        if (!made.validation.shards.empty()) fmt::print("{}", split_line("validation", made.validation));
    }
    return Outcome{};
}

// The beginning of a document as text, and how many of its tokens are labels.
Status show_document(const TokenSet& set, int64_t index, const std::optional<Tokenizer>& tokenizer, int64_t most) {
    TokenSet::Slice slice;
    NIBBLE_CHECK(set.read_document(index, slice));
    const size_t count = std::min(slice.ids.size(), static_cast<size_t>(most));
    const std::span<const TokenId> ids = std::span<const TokenId>(slice.ids).first(count);
    std::string shown;
    if (tokenizer)
        shown = printable(tokenizer->decode(ids));
    else
        shown = fmt::format("{}", fmt::join(ids, " "));
    const auto learned = std::count(slice.learned.begin(), slice.learned.end(), true);
    fmt::print("  document {}: {} tokens, {} learned\n    {}{}\n", index, slice.ids.size(), learned, shown,
               count < slice.ids.size() ? " ..." : "");
    return Ok{};
}

Result<Outcome> run_data_show(const DataShowConfig& config) {
    NIBBLE_TRY(const DataManifest manifest, read_data_manifest(config.folder));
    NIBBLE_TRY(const TokenSet train, TokenSet::open(config.folder, manifest, false));
    NIBBLE_TRY(const TokenSet validation, TokenSet::open(config.folder, manifest, true));
    if (config.check) {
        NIBBLE_CHECK(train.check_contents());
        NIBBLE_CHECK(validation.check_contents());
    }
    if (config.json) {
        fmt::print("{}", json_line(summary_json(config.folder, manifest)));
        return Outcome{};
    }
    std::optional<Tokenizer> tokenizer;
    if (!config.tokenizer.empty()) {
        NIBBLE_TRY(tokenizer, open_tokenizer(config.tokenizer));
        if (vocabulary_hash(*tokenizer) != manifest.vocabulary)
            return fail("{}: is not the tokenizer that made {}", config.tokenizer, config.folder);
    }
    fmt::print("{}: vocabulary of {}, {} bytes a token, documents end with {}{}\n", config.folder,
               human_count(manifest.vocab), token_width(manifest.vocab),
               manifest.end_token ? fmt::format("token {}", *manifest.end_token) : "no token of their own",
               config.check ? "; all tokens and hashes checked" : "");
    fmt::print("{}{}", split_line("train", manifest.train), split_line("validation", manifest.validation));
    const TokenSet& set = config.validation ? validation : train;
    for (int64_t i = 0; i < std::min(config.documents, set.documents()); ++i)
        NIBBLE_CHECK(show_document(set, i, tokenizer, config.tokens));
    return Outcome{};
}

void add_data_build(CLI::App& data, RunCommand& run) {
    auto config = std::make_shared<DataBuildConfig>();
    CLI::App* command = data.add_subcommand("build", "texts and chats to a folder of token shards");
    command
        ->add_option("FILES", config->files,
                     "*.txt, *.md, *.jsonl of {\"text\"} or {\"messages\"}, each also as *.gz; folders of them")
        ->required();
    command->add_option("--tokenizer", config->tokenizer, "a model's folder, or a tokenizer.json, .model or .gguf file")
        ->required();
    command->add_option("-o,--output", config->out, "folder to write; must not exist")->required();
    command->add_option("--val", config->validation, "fraction for validation")->check(CLI::Range(0.0, 0.99));
    command
        ->add_option("--val-by", config->validation_by,
                     "documents: whole ones, drawn by --seed; tails: the end of every document")
        ->check(one_of({"documents", "tails"}))
        ->capture_default_str();
    command->add_option("--seed", config->seed, "of the documents for validation")->capture_default_str();
    command
        ->add_option("--separator", config->separator,
                     "between the documents of plain texts, with \\n, \\t, \\r, \\\\; default: a file is one")
        ->check(read_by(parse_separator));
    command->add_option("--end-token", config->end_token,
                        "token behind every text, or none; default: eos_token of tokenizer_config.json");
    command->add_option("--loss", config->loss, "of chats: the tokens that are learned")
        ->check(one_of({"assistant", "last", "all"}))
        ->capture_default_str();
    command->add_option("--time", config->time, "seconds since 1970 (UTC), for chat templates that tell the date");
    command->add_option("--shard-tokens", config->shard_tokens, "tokens of a shard, about")
        ->check(read_by(parse_token_count))
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
    CLI::App* command = data.add_subcommand("show", "what a folder of token shards holds");
    command->add_option("DIR", config->folder, "made by nibble data build")->required();
    command->add_option("--tokenizer", config->tokenizer,
                        "to show text, not ids; must be the one that made the folder");
    command->add_option("--documents", config->documents, "of which the beginning is shown")
        ->check(CLI::Range(0, 1'000'000))
        ->capture_default_str();
    command->add_option("--tokens", config->tokens, "of each")->check(CLI::Range(1, 1'000'000))->capture_default_str();
    command->add_flag("--val", config->validation, "documents of validation");
    command->add_flag("--check", config->check, "read every token: ids in the vocabulary, hashes as written");
    add_json_flag(*command, config->json);
    command->footer("Example:\n  nibble data show docs-tokens --tokenizer SmolLM2-135M --check");
    command->callback([config, &run] { run = [config] { return run_data_show(*config); }; });
}

}  // namespace

void add_data(CLI::App& app, RunCommand& run) {
    CLI::App* data = app.add_subcommand("data", "token shards for training");
    data->require_subcommand(1);
    add_data_build(*data, run);
    add_data_show(*data, run);
}

}  // namespace nibble
