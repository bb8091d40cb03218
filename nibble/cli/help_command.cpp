// `nibble help [COMMAND ...]`: prints the help of `nibble COMMAND --help`.
#include "base/nearest.h"
#include "cli/command.h"
#include "cli/usage.h"

#include <fmt/format.h>

namespace nibble {
namespace {

const CLI::App& named_command(const CLI::App& app, const std::vector<std::string>& words) {
    const CLI::App* command = &app;
    for (const std::string& word : words) {
        const CLI::App* found = nullptr;
        std::vector<std::string> names;
        for (const CLI::App* sub : command->get_subcommands([](const CLI::App*) { return true; })) {
            names.push_back(sub->get_name());
            if (sub->get_name() == word) found = sub;
        }
        if (!found) usage_error("no command '{}'{}", word, did_you_mean(word, names));
        command = found;
    }
    return *command;
}

}  // namespace

void add_help(CLI::App& app, RunCommand& run) {
    auto words = std::make_shared<std::vector<std::string>>();
    CLI::App* command = app.add_subcommand("help", "show the flags of a command, with an example");
    command->add_option("command", *words, "a command such as `quantize` or `bench model`; default: list all commands");
    command->footer("Example:\n  nibble help quantize");
    command->callback([words, &app, &run] {
        const CLI::App& named = named_command(app, *words);
        run = [&named]() -> Result<Outcome> {
            // named.help() would print the help of the chosen command, which is this one.
            fmt::print("{}", named.get_formatter()->make_help(&named, full_name(named), CLI::AppFormatMode::Normal));
            return Outcome{};
        };
    });
}

}  // namespace nibble
