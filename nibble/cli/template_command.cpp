// `nibble template PATH --jsonl FILE`: conversations through a model's chat template.
#include "cli/command.h"
#include "text/chat_template.h"

#include <fmt/format.h>

#include <ctime>
#include <fstream>

namespace nibble {
namespace {

struct TemplateConfig {
    std::string path, jsonl;
    std::optional<int64_t> time;
};

// messages, tools, add_generation_prompt, ... become variables; so does every key of kwargs, which win.
Json variables_of(const Json& line) {
    Json variables = Json::object();
    for (const auto& [name, value] : line.items())
        if (name != "kwargs" && name != "rendered" && name != "error" && name != "template" && name != "case")
            variables[name] = value;
    if (const auto kwargs = line.find("kwargs"); kwargs != line.end() && kwargs->is_object())
        for (const auto& [name, value] : kwargs->items()) variables[name] = value;
    return variables;
}

Result<Outcome> run_template(const TemplateConfig& config) {
    NIBBLE_TRY(const auto chat, ChatTemplate::open(config.path));
    std::ifstream in(config.jsonl);
    if (!in) return fail("{}: cannot be read", config.jsonl);
    const std::time_t seconds = config.time ? std::time_t(*config.time) : std::time(nullptr);
    std::tm now{};
    if (!(config.time ? gmtime_r(&seconds, &now) : localtime_r(&seconds, &now)))
        return fail("--time {}: is no date", *config.time);
    Outcome outcome;
    std::string text;
    for (int number = 1; std::getline(in, text); ++number) {
        if (text.empty()) continue;
        auto line = parse_json(text);
        if (!line.ok()) return std::move(line).error().within(fmt::format("{}: line {}", config.jsonl, number));
        if (!line->is_object()) return fail("{}: line {}: not an object", config.jsonl, number);
        const auto rendered = chat.render(variables_of(*line), now);
        const Json out = rendered.ok() ? Json{{"rendered", *rendered}} : Json{{"error", rendered.error().message()}};
        outcome.findings |= !rendered.ok();
        fmt::print("{}\n", out.dump(-1, ' ', false, Json::error_handler_t::replace));
    }
    if (in.bad()) return fail("{}: cannot be read to its end", config.jsonl);
    return outcome;
}

}  // namespace

void add_template(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<TemplateConfig>();
    CLI::App* command = app.add_subcommand(
        "template", "conversations through a model's chat template; exit status 1 if one is an error");
    command->add_option("path", config->path, "a model's folder, or a file with a Jinja template")->required();
    command
        ->add_option("--jsonl", config->jsonl,
                     "a conversation per line: messages, tools, add_generation_prompt, kwargs")
        ->required();
    command->add_option("--time", config->time, "seconds since 1970 (UTC) for strftime_now; now and local if left out");
    command->footer(
        "One line of {\"rendered\"} or {\"error\"} per conversation.\nExample:\n  nibble template SmolLM2-135M --jsonl "
        "chats.jsonl");
    command->callback([config, &run] { run = [config] { return run_template(*config); }; });
}

}  // namespace nibble
