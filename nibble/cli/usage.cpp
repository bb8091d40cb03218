#include "cli/usage.h"

#include "base/nearest.h"
#include "base/utf8.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace nibble {
namespace {

std::vector<std::string> command_names(const CLI::App& command) {
    std::vector<std::string> names;
    for (const CLI::App* sub : command.get_subcommands([](const CLI::App*) { return true; }))
        names.push_back(sub->get_name());
    return names;
}

// Returns "-o", "--output" ...
std::vector<std::string> flag_names(const CLI::App& command) {
    std::vector<std::string> names;
    for (const CLI::Option* option : command.get_options()) {
        for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
        for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    }
    return names;
}

std::string one_line_of(std::string text) {
    std::ranges::replace(text, '\n', ' ');
    return printable(text);
}

std::string unknown_word(const CLI::App& command, const std::string& word) {
    const std::string where = full_name(command);
    if (word.starts_with('-')) {
        const std::string name = word.substr(0, word.find('='));
        return fmt::format("{}: no flag '{}'{}", where, name, did_you_mean(name, flag_names(command)));
    }
    const auto names = command_names(command);
    if (names.empty()) return fmt::format("{}: '{}' is one argument too many", where, word);
    return fmt::format("no command '{}'{}", where == "nibble" ? word : where.substr(7) + " " + word,
                       did_you_mean(word, names));
}

}  // namespace

CLI::Validator one_of(std::vector<std::string> choices) {
    const std::string description = fmt::format("{{{}}}", fmt::join(choices, ","));
    return CLI::Validator(
        [choices = std::move(choices)](std::string& word) {
            if (std::ranges::find(choices, word) != choices.end()) return std::string();
            return fmt::format("'{}' is not one of {}{}", word, fmt::join(choices, ", "), did_you_mean(word, choices));
        },
        description);
}

const CLI::App& chosen_command(const CLI::App& app) {
    const CLI::App* command = &app;
    for (auto chosen = command->get_subcommands(); !chosen.empty(); chosen = command->get_subcommands())
        command = chosen.front();
    return *command;
}

std::string full_name(const CLI::App& command) {
    const CLI::App* parent = command.get_parent();
    return parent ? full_name(*parent) + " " + command.get_name() : command.get_name();
}

std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
    const CLI::App& command = chosen_command(app);
    const std::string full = full_name(command);
    const std::string help = full == "nibble" ? "nibble help" : "nibble help" + full.substr(6);
    const auto unknown = app.remaining(true);
    std::string text;
    if (!unknown.empty())
        text = unknown_word(command, unknown.front());
    else if (error.get_name() == "RequiredError" && !command_names(command).empty())
        text = fmt::format("{}: give one of {}", full, fmt::join(command_names(command), ", "));
    else
        text = error.what();
    return fmt::format("{} (see {})", one_line_of(std::move(text)), help);
}

}  // namespace nibble
