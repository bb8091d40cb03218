// `nibble template PATH --jsonl FILE`: renders conversations with a model's chat template.
#include "base/json_append.h"
#include "cli/command.h"
#include "cli/options.h"
#include "io/input_text.h"
#include "text/chat_template.h"

#include <fmt/format.h>

#include <ctime>
#include <set>

namespace nibble {
namespace {

struct TemplateConfig {
    std::string path, jsonl;
    std::optional<int64_t> time;
};

// messages, tools, add_generation_prompt ... become variables, and so does every key of kwargs, which takes precedence.
Json variables_of(const Json& line) {
    const Json none = Json::object();
    const auto found = line.find("kwargs");
    const Json& kwargs = found != line.end() && found->is_object() ? *found : none;
    std::set<std::string_view> left_out{"kwargs", "rendered", "error", "template", "case"};
    for (const auto& [name, value] : kwargs.items()) left_out.insert(name);
    Json variables = Json::object();
    for (const auto& [name, value] : line.items())
        if (!left_out.contains(name)) append_member(variables, name, value);
    for (const auto& [name, value] : kwargs.items()) append_member(variables, name, value);
    return variables;
}

Result<Outcome> run_template(const TemplateConfig& config) {
    NIBBLE_TRY(const auto chat, ChatTemplate::open(config.path));
    const std::time_t seconds = config.time ? std::time_t(*config.time) : std::time(nullptr);
    std::tm now{};
    if (!(config.time ? gmtime_r(&seconds, &now) : localtime_r(&seconds, &now)))
        return fail("--time {}: is not a valid time", *config.time);
    Outcome outcome;
    NIBBLE_CHECK(for_each_line(config.jsonl, [&](std::string_view text) -> Status {
        if (text.find_first_not_of(" \t\r") == text.npos) return Ok{};
        NIBBLE_TRY(const Json line, parse_json(text));
        if (!line.is_object()) return fail("not an object");
        const Json variables = variables_of(line);
        const auto messages = variables.find("messages");
        if (messages == variables.end() || !messages->is_array()) return fail("has no list 'messages'");
        const auto rendered = chat.render(variables, now);
        const Json out = rendered.ok() ? Json{{"rendered", *rendered}} : Json{{"error", rendered.error().message()}};
        outcome.findings |= !rendered.ok();
        fmt::print("{}", json_line(out));
        return Ok{};
    }));
    return outcome;
}

}  // namespace

void add_template(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<TemplateConfig>();
    CLI::App* command = app.add_subcommand(
        "template", "render conversations with a model's chat template; exit status 1 if one has an error");
    command->add_option("path", config->path, "a model's folder, or a file with a Jinja template")->required();
    command
        ->add_option("--jsonl", config->jsonl,
                     "a conversation per line: messages, tools, add_generation_prompt, kwargs")
        ->required();
    command->add_option("--time", config->time,
                        "time in seconds since 1970 (UTC) for strftime_now; default: the current local time");
    command->footer(
        "One line of {\"rendered\"} or {\"error\"} per conversation.\nExample:\n  nibble template SmolLM2-135M --jsonl "
        "chats.jsonl");
    command->callback([config, &run] { run = [config] { return run_template(*config); }; });
}

}  // namespace nibble
