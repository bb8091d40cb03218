#include "server/answer_grammar.h"

#include <fmt/format.h>

namespace nibble {
namespace {

using GrammarMaker = std::function<Result<std::shared_ptr<const Grammar>>()>;

// Fields that contain a constraint, and the equivalent kind of vLLM.
constexpr std::pair<std::string_view, std::string_view> constraint_fields[]{
    {"guided_json", "json"},       {"guided_regex", "regex"}, {"guided_choice", "choice"},  // vLLM, NIM
    {"guided_grammar", "grammar"}, {"regex", "regex"},        {"ebnf", "grammar"},
    {"json_schema", "json"},  // SGLang, llama.cpp
    {"grammar", "grammar"}};

// Returns true if an option of vLLM's structured_outputs has no effect here: it chooses a backend, or requests the
// behavior of this server.
bool changes_nothing(std::string_view option, const Json& value) {
    if (option == "disable_fallback" || option == "disable_additional_properties" || option.starts_with("_backend"))
        return true;
    return option == "disable_any_whitespace" && value == false;
}

Status hold(BodyFields& fields, std::string_view name, GrammarCache* grammars, GrammarTokensPtr& grammar,
            const std::string& key, const GrammarMaker& make) {
    if (grammar) return fields.bad(name, "is a second constraint for the answer; only one is allowed");
    if (!grammars) return fields.bad(name, "is not supported for this model's tokenizer");
    auto tokens = grammars->get(key, make);
    if (!tokens.ok()) return fields.bad(name, tokens.error().message());
    grammar = *std::move(tokens);
    return Ok{};
}

Status hold_to_schema(BodyFields& fields, std::string_view name, const Json& schema, GrammarCache* grammars,
                      GrammarTokensPtr& grammar) {
    return hold(fields, name, grammars, grammar,
                "schema " + schema.dump(-1, ' ', false, Json::error_handler_t::replace),
                [&] { return Grammar::from_json_schema(schema, answer_schema); });
}

// Sets a constraint of one of vLLM's kinds. `name`: field for errors.
Status hold_as(BodyFields& fields, std::string_view name, std::string_view kind, const Json& value,
               GrammarCache* grammars, GrammarTokensPtr& grammar) {
    if (kind == "json") {
        if (!value.is_string()) return hold_to_schema(fields, name, value, grammars, grammar);
        const auto schema = parse_json(value.get_ref<const std::string&>());
        if (!schema.ok()) return fields.bad(name, "the schema is not JSON: " + schema.error().message());
        return hold_to_schema(fields, name, *schema, grammars, grammar);
    }
    if (kind == "json_object") {
        if (value != true) return fields.bad(name, "'json_object' is not true; leave it out for no constraint");
        return hold(fields, name, grammars, grammar, "object", [] { return Grammar::json_object(); });
    }
    if (kind == "choice") {
        std::vector<std::string> choices;
        if (!json_value(value, choices) || choices.empty()) return fields.bad(name, "is not a list of texts");
        return hold(fields, name, grammars, grammar,
                    "choice " + value.dump(-1, ' ', false, Json::error_handler_t::replace),
                    [&] { return Grammar::from_choices(choices); });
    }
    if (!value.is_string()) return fields.bad(name, "is not a text");
    const auto& text = value.get_ref<const std::string&>();
    if (kind == "regex")
        return hold(fields, name, grammars, grammar, "regex " + text, [&] { return Grammar::from_regex(text); });
    if (kind == "grammar" && text.find_first_not_of(" \t\r\n") == std::string::npos)
        return fields.bad(name, "the grammar is empty");
    if (kind == "grammar")
        return hold(fields, name, grammars, grammar, "grammar " + text, [&] { return Grammar::from_ebnf(text); });
    return fields.bad(name,
                      fmt::format("'{}' is not supported; choices: json, json_object, regex, choice, grammar", kind));
}

}  // namespace

Result<std::shared_ptr<const GrammarTokens>> GrammarCache::get(const std::string& key, const GrammarMaker& make) {
    {
        const std::lock_guard lock(mutex_);
        for (auto at = kept_.begin(); at != kept_.end(); ++at) {
            if (at->first != key) continue;
            kept_.splice(kept_.begin(), kept_, at);
            return kept_.front().second;
        }
    }
    // Outside the lock, because a large schema takes time. Two requests may make the same grammar.
    NIBBLE_TRY(std::shared_ptr<const Grammar> grammar, make());
    auto tokens = std::make_shared<const GrammarTokens>(std::move(grammar), vocabulary_, mask_bytes_);
    const std::lock_guard lock(mutex_);
    kept_.emplace_front(key, tokens);
    if (kept_.size() > entries_) kept_.pop_back();
    return tokens;
}

Status read_response_format(BodyFields& fields, std::string_view name, const Json& format, GrammarCache* grammars,
                            GrammarTokensPtr& grammar) {
    const auto type = format.is_object() ? format.find("type") : format.end();
    if (!format.is_object() || type == format.end()) return fields.bad(name, "has no type");
    if (*type == "text") return Ok{};
    if (*type == "json_object") return hold_as(fields, name, "json_object", true, grammars, grammar);
    if (*type != "json_schema") return fields.bad(name, "the type is not text, json_object or json_schema");
    const auto below = format.find("json_schema");
    const Json& holder = below == format.end() ? format : *below;
    const auto schema = holder.is_object() ? holder.find("schema") : holder.end();
    if (!holder.is_object() || schema == holder.end()) return fields.bad(name, "has no schema");
    return hold_to_schema(fields, name, *schema, grammars, grammar);
}

Status read_answer_grammar(BodyFields& fields, GrammarCache* grammars, GrammarTokensPtr& grammar) {
    if (const Json* format = fields.find("response_format"))
        NIBBLE_CHECK(read_response_format(fields, "response_format", *format, grammars, grammar));
    if (const Json* outputs = fields.find("structured_outputs")) {
        if (!outputs->is_object()) return fields.bad("structured_outputs", "is not an object");
        bool any = false;
        for (const auto& [kind, value] : outputs->items()) {
            if (value.is_null() || changes_nothing(kind, value)) continue;
            any = true;
            NIBBLE_CHECK(hold_as(fields, "structured_outputs", kind, value, grammars, grammar));
        }
        if (!any)
            return fields.bad("structured_outputs", "names no constraint; leave it out for an answer without one");
    }
    // llama.cpp's clients send all of its defaults, grammar "" among them.
    for (const auto& [name, kind] : constraint_fields)
        if (const Json* value = fields.find(name); value && !(name == "grammar" && *value == ""))
            NIBBLE_CHECK(hold_as(fields, name, kind, *value, grammars, grammar));
    return Ok{};
}

}  // namespace nibble
