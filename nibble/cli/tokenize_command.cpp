// `nibble tokenize PATH [TEXT]`: prints the token ids of a text, and the text to which they decode.
#include "base/json.h"
#include "chat/model_text.h"
#include "cli/command.h"
#include "io/input_text.h"

#include <fmt/format.h>

namespace nibble {
namespace {

struct TokenizeConfig {
    std::string path, text, jsonl;
    bool has_text = false, add_special = false, plain = false, json = false;
};

// A token may decode to part of a character; bytes that are not UTF-8 are shown as U+FFFD.
std::string quoted(const std::string& bytes) {
    return Json(bytes).dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json result_json(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
    return Json{{"ids", ids}, {"decoded", tokenizer.decode(ids)}};
}

Status run_lines(const Tokenizer& tokenizer, const TokenizeConfig& config, const EncodeOptions& options) {
    return for_each_line(config.jsonl, [&](std::string_view line) -> Status {
        NIBBLE_TRY(const Json entry, parse_json(line));
        const auto text = entry.find("text");
        if (text == entry.end() || !text->is_string()) return fail("'text' is not a string");
        NIBBLE_TRY(const auto ids, tokenizer.encode(text->get_ref<const std::string&>(), options));
        fmt::print("{}\n", result_json(tokenizer, ids).dump());
        return Ok{};
    });
}

Result<Outcome> run_tokenize(TokenizeConfig config) {
    NIBBLE_TRY(const Tokenizer tokenizer, open_tokenizer(config.path));
    const EncodeOptions options{.add_special = config.add_special, .parse_special = !config.plain};
    if (!config.jsonl.empty()) {
        NIBBLE_CHECK(run_lines(tokenizer, config, options));
        return Outcome{};
    }
    if (!config.has_text) {
        NIBBLE_TRY(config.text, read_standard_input());
    }
    NIBBLE_TRY(const auto ids, tokenizer.encode(config.text, options));
    if (config.json) {
        fmt::print("{}\n", result_json(tokenizer, ids).dump());
        return Outcome{};
    }
    for (const TokenId id : ids)
        fmt::print("{:>8}  {}{}\n", id, quoted(tokenizer.token_bytes(id)), tokenizer.is_special(id) ? "  special" : "");
    fmt::print("{} tokens\n", ids.size());
    return Outcome{};
}

}  // namespace

void add_tokenize(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<TokenizeConfig>();
    CLI::App* command =
        app.add_subcommand("tokenize", "print the token ids of a text, and the text to which they decode");
    command
        ->add_option("path", config->path, "a folder with a tokenizer, a tokenizer.json, tokenizer.model or .gguf file")
        ->required();
    CLI::Option* text = command->add_option("text", config->text, "the text; standard input if there is none");
    command
        ->add_option("--jsonl", config->jsonl,
                     "a file of lines {\"text\": ...}; prints a line {\"ids\", \"decoded\"} for each")
        ->excludes(text);
    command->add_flag("--add-special", config->add_special, "add the tokens for the beginning and end of a text");
    command->add_flag("--plain", config->plain, "treat control tokens in the text as plain text");
    command->add_flag("--json", config->json, "machine-readable");
    command->footer("Example:\n  nibble tokenize Qwen3-8B 'Hello world'");
    command->callback([config, text, &run] {
        config->has_text = text->count() > 0;
        run = [config] { return run_tokenize(*config); };
    });
}

}  // namespace nibble
