// `nibble plan CONFIG --hosts N`: what a model needs on several hosts, computed from its config.json.
#include "cli/command.h"
#include "cli/options.h"
#include "cli/usage.h"
#include "jobs/projection.h"
#include "jobs/projection_devices.h"
#include "quant/recipe.h"

#include <fmt/format.h>

namespace nibble {

void add_plan(CLI::App& app, RunCommand& run) {
    struct Config : ProjectionOptions {
        bool json = false;
    };
    auto config = std::make_shared<Config>();
    CLI::App* command = app.add_subcommand(
        "plan", "project bytes, times, memory and tokens/s of a model on several hosts, from its config.json");
    command->add_option("model", config->model, "config.json, or a folder that contains it; no weights are read")
        ->required();
    command->add_option("--hosts", config->hosts, "number of hosts")->check(CLI::Range(1, 4096))->capture_default_str();
    command->add_option("--devices", config->devices, "devices of a host")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
    std::vector<std::string> names;
    for (const ProjectionDevice& device : projection_devices()) names.emplace_back(device.name);
    command->add_option("--device", config->device, "kind of device")->check(one_of(names))->capture_default_str();
    command->add_option("-r,--recipe", config->recipe, "preset (`nibble recipes` lists them) or recipe file")
        ->check(read_by(check_recipe_name))
        ->capture_default_str();
    command->add_option("--storage", config->storage_gb, "GB/s that a host reads from the shared folder")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    command->add_option("--calib-sequences", config->calib_sequences, "texts of the calibration")
        ->check(CLI::Range(1, 1 << 24))
        ->capture_default_str();
    command->add_option("--calib-sequence", config->calib_sequence, "tokens of a text")
        ->check(CLI::Range(1, 1 << 24))
        ->capture_default_str();
    command->add_option("--context", config->context, "tokens of a sequence, for the memory of the cache")
        ->check(CLI::Range(1, 1 << 24))
        ->capture_default_str();
    add_json_flag(*command, config->json);
    command->footer(
        "Examples:\n"
        "  nibble plan Nemotron-3-Ultra/config.json --hosts 2 --device h200\n"
        "  nibble plan Llama-3.3-70B-Instruct --devices 4 --recipe fp8 --json");
    command->callback([config, &run] {
        run = [config]() -> Result<Outcome> {
            NIBBLE_TRY(const JobReport report, project(*config));
            fmt::print("{}", config->json ? report.json() : report.text());
            return Outcome{};
        };
    });
}

}  // namespace nibble
