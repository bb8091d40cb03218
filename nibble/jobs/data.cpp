#include "nibble/data.h"

#include "base/utf8.h"
#include "chat/model_text.h"
#include "checkpoint/output_place.h"
#include "data/build.h"
#include "data/token_set.h"
#include "jobs/job.h"
#include "page/numbers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

namespace nibble {
namespace {

// Returns the end token. "none": no token; empty: the eos_token of tokenizer_config.json, if it has one.
Result<std::optional<TokenId>> end_token_of(const TokenDataOptions& options, const ModelText& text) {
    if (options.end_token == "none") return std::optional<TokenId>();
    std::string name = options.end_token;
    if (name.empty()) {
        const auto end_token = text.variables.find("eos_token");
        if (end_token == text.variables.end() || !end_token->is_string()) return std::optional<TokenId>();
        name = end_token->get<std::string>();
    }
    const auto id = text.tokenizer.id_of(name);
    if (!id) return fail("{}: has no token '{}' to end documents with", options.tokenizer, name);
    return std::optional(*id);
}

Result<int64_t> parse_token_count(std::string_view word) {
    const char unit = word.empty() ? ' ' : word.back();
    const int64_t factor = unit == 'k' ? 1000 : unit == 'M' ? 1'000'000 : unit == 'G' ? 1'000'000'000 : 1;
    const std::string digits(word.substr(0, word.size() - (factor > 1)));
    if (digits.empty() || digits.size() > 10 || digits.find_first_not_of("0123456789") != digits.npos)
        return fail(ErrorKind::usage, "'{}' is not a number of tokens; examples: 500000, 500k, 100M", word);
    return std::stoll(digits) * factor;
}

// Replaces \n, \t, \r and \\, which a shell leaves unchanged in single quotes.
Result<std::string> parse_separator(std::string_view word) {
    std::string out;
    for (size_t i = 0; i < word.size(); ++i) {
        if (word[i] != '\\') {
            out += word[i];
            continue;
        }
        const char c = ++i < word.size() ? word[i] : ' ';
        if (c != 'n' && c != 't' && c != 'r' && c != '\\')
            return fail(ErrorKind::usage, "the escapes are \\n, \\t, \\r and \\\\; '{}' is not one",
                        word.substr(i - 1, 2));
        out += c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : '\\';
    }
    return out;
}

Result<LossOn> parse_loss(std::string_view word) {
    if (word == "assistant") return LossOn::assistant;
    if (word == "last") return LossOn::last;
    if (word == "all") return LossOn::all;
    return fail(ErrorKind::usage, "--loss {}: choose assistant, last or all", word);
}

Result<ValidationBy> parse_validation_by(std::string_view word) {
    if (word == "documents") return ValidationBy::documents;
    if (word == "tails") return ValidationBy::tails;
    return fail(ErrorKind::usage, "--val-by {}: choose documents or tails", word);
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

std::string line_of_json(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

TokenDataReport token_data_report(const std::string& folder, DataManifest made, double seconds) {
    TokenDataReport report;
    report.train_tokens = made.train.tokens();
    report.validation_tokens = made.validation.tokens();
    report.train_documents = made.train.documents();
    report.validation_documents = made.validation.documents();
    const auto manifest = std::make_shared<const DataManifest>(std::move(made));
    report.json = [folder, manifest, seconds] {
        Json json = summary_json(folder, *manifest);
        json["seconds"] = seconds;
        return line_of_json(json);
    };
    report.text = [folder, manifest, seconds] {
        std::string text =
            fmt::format("{}: {} bytes a token, {}\n", folder, token_width(manifest->vocab), human_seconds(seconds));
        text += split_line("train", manifest->train);
        if (!manifest->validation.shards.empty()) text += split_line("validation", manifest->validation);
        return text;
    };
    return report;
}

Result<TokenDataReport> build_token_data_job(const TokenDataOptions& options, const JobHooks& hooks) {
    NIBBLE_TRY(const ModelText text, open_model_text(options.tokenizer).as(ErrorKind::checkpoint));
    DocumentText how{
        .tokenizer = &text.tokenizer, .chat = text.chat ? &*text.chat : nullptr, .variables = text.variables};
    NIBBLE_TRY(how.end_token, end_token_of(options, text));
    NIBBLE_TRY(how.loss, parse_loss(options.loss));
    if (options.time) {
        const std::time_t seconds(*options.time);
        if (!gmtime_r(&seconds, &how.now.emplace()))
            return fail(ErrorKind::usage, "--time {}: is not a date", *options.time);
    }
    DataBuildOptions build{.inputs = {options.files.begin(), options.files.end()},
                           .out = options.out,
                           .validation = options.validation,
                           .seed = options.seed};
    NIBBLE_TRY(build.separator, parse_separator(options.separator));
    NIBBLE_TRY(build.validation_by, parse_validation_by(options.validation_by));
    NIBBLE_TRY(build.shard_tokens, parse_token_count(options.shard_tokens));
    for (const std::string& file : options.files) NIBBLE_CHECK(refuse_output_in_source(options.out, file));
    ThreadPool pool(options.threads);
    const auto begin = std::chrono::steady_clock::now();
    NIBBLE_TRY(DataManifest made, build_data(how, build, pool, hooks).as(ErrorKind::shape));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return token_data_report(options.out, std::move(made), seconds);
}

// Returns the beginning of a document as text, and how many of its tokens are labels.
Result<std::string> document_text(const TokenSet& set, int64_t index, const std::optional<Tokenizer>& tokenizer,
                                  int64_t most) {
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
    return fmt::format("  document {}: {} tokens, {} learned\n    {}{}\n", index, slice.ids.size(), learned, shown,
                       count < slice.ids.size() ? " ..." : "");
}

Result<std::string> token_data_text(const ShowTokenDataOptions& options, const DataManifest& manifest,
                                    const TokenSet& set) {
    std::optional<Tokenizer> tokenizer;
    if (!options.tokenizer.empty()) {
        NIBBLE_TRY(tokenizer, open_tokenizer(options.tokenizer));
        if (vocabulary_hash(*tokenizer) != manifest.vocabulary)
            return fail(ErrorKind::usage, "{}: is not the tokenizer that made {}", options.tokenizer, options.folder);
    }
    std::string text =
        fmt::format("{}: vocabulary of {}, {} bytes a token, documents end with {}{}\n", options.folder,
                    human_count(manifest.vocab), token_width(manifest.vocab),
                    manifest.end_token ? fmt::format("token {}", *manifest.end_token) : "no token of its own",
                    options.check ? "; all tokens and hashes checked" : "");
    text += split_line("train", manifest.train) + split_line("validation", manifest.validation);
    for (int64_t i = 0; i < std::min(options.documents, set.documents()); ++i) {
        NIBBLE_TRY(const std::string document, document_text(set, i, tokenizer, options.tokens));
        text += document;
    }
    return text;
}

Result<JobReport> show_token_data_job(const ShowTokenDataOptions& options) {
    NIBBLE_TRY(const DataManifest manifest, read_data_manifest(options.folder));
    NIBBLE_TRY(const TokenSet train, TokenSet::open(options.folder, manifest, false));
    NIBBLE_TRY(const TokenSet validation, TokenSet::open(options.folder, manifest, true));
    if (options.check) {
        NIBBLE_CHECK(train.check_contents());
        NIBBLE_CHECK(validation.check_contents());
    }
    NIBBLE_TRY(std::string text, token_data_text(options, manifest, options.validation ? validation : train));
    return JobReport{.text = [text = std::move(text)] { return text; },
                     .json = [json = line_of_json(summary_json(options.folder, manifest))] { return json; }};
}

}  // namespace

Status check_separator(std::string_view word) {
    NIBBLE_CHECK(parse_separator(word));
    return Ok{};
}

Status check_token_count(std::string_view word) {
    NIBBLE_CHECK(parse_token_count(word));
    return Ok{};
}

Result<TokenDataReport> build_token_data(const TokenDataOptions& options, const JobHooks& hooks) {
    return as_job([&] { return build_token_data_job(options, hooks); });
}

Result<JobReport> show_token_data(const ShowTokenDataOptions& options) {
    return as_job([&] { return show_token_data_job(options).as(ErrorKind::checkpoint); });
}

}  // namespace nibble
