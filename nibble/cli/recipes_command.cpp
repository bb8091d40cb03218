// `nibble recipes`: lists the presets by purpose and machine.
#include "cli/command.h"
#include "cli/options.h"
#include "nibble/recipes.h"

#include <fmt/format.h>

namespace nibble {
namespace {

struct RecipesConfig {
    bool json = false, names = false;
};

Result<Outcome> run_recipes(const RecipesConfig& config) {
    if (config.names) {
        for (const std::string& name : recipe_names()) fmt::print("{}\n", name);
        return Outcome{};
    }
    NIBBLE_TRY(const JobReport report, describe_recipes());
    fmt::print("{}", config.json ? report.json() : report.text());
    return Outcome{};
}

}  // namespace

void add_recipes(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<RecipesConfig>();
    CLI::App* command =
        app.add_subcommand("recipes", "list the presets for --recipe: purpose, bits, requirements, machines");
    command->add_flag("--names", config->names, "print only the names, one per line");
    add_json_flag(*command, config->json);
    command->footer("Example:\n  nibble recipes");
    command->callback([config, &run] { run = [config] { return run_recipes(*config); }; });
}

}  // namespace nibble
