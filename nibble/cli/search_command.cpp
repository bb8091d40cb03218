// `nibble search SRC -o RECIPE.yaml`: finds a mixed-precision recipe.
#include "cli/calibration_options.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/usage.h"
#include "nibble/search.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble {
namespace {

struct SearchConfig : SearchOptions {
    bool json = false, quiet = false;
};

Result<Outcome> run_search(const SearchConfig& config) {
    Console console(config.quiet || config.json, config.quiet);
    NIBBLE_TRY(const SearchedRecipe report, search(config, console.hooks()));
    console.end_line();
    if (config.json)
        fmt::print("{}", report.json());
    else if (!config.quiet)
        fmt::print("{}recipe: {}{}\nreport: {}\n", report.text(), config.out,
                   std::ranges::count(config.formats, "w8a16_fp8")
                       ? " (w8a16_fp8: quantize --format compressed-tensors; Model Optimizer has no such layout)"
                       : "",
                   report.page);
    return Outcome{};
}

}  // namespace

void add_search(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<SearchConfig>();
    CLI::App* command =
        app.add_subcommand("search", "find a mixed-precision recipe that gives sensitive layers more bits");
    command->add_option("source", config->source, "Hugging Face folder or .gguf file")->required();
    command
        ->add_option("-o,--output", config->out,
                     "recipe to write, ending in .yaml; .json (scores) and .html are written next to it")
        ->required()
        ->check([](const std::string& name) {
            return name.ends_with(".yaml") ? std::string() : "the recipe's name must end in .yaml";
        });
    command->add_option("--bits", config->bits, "upper limit of the effective bits per weight of the linears")
        ->capture_default_str();
    command->add_option("--formats", config->formats, "candidate formats in addition to none, separated by commas")
        ->delimiter(',')
        ->check(one_of({"nvfp4", "w4a16_nvfp4", "mxfp4", "w4a16_mxfp4", "fp8", "w8a16_fp8", "mxfp8"}))
        ->capture_default_str();
    command
        ->add_option("--keep", config->keep, "PATTERN=FORMAT: linears with a fixed format; may be given several times")
        ->allow_extra_args(false);
    command->add_option("--cost-model", config->cost_model, "active_moe: experts are weighted by how often they run")
        ->check(one_of({"weights", "active_moe"}))
        ->capture_default_str();
    command
        ->add_option("--score", config->score,
                     "method of the scores: fisher, modelopt (gradients, one backward pass) or kl (a forward pass per "
                     "group and format)")
        ->check(one_of({"fisher", "modelopt", "kl"}))
        ->capture_default_str();
    command->add_option("--scores", config->scores, "use the scores in an earlier search's .json");
    add_calibration_flags(*command, config->calib);
    command->add_option("--sweep-from", config->sweep_low, "first target of the table")->capture_default_str();
    command->add_option("--sweep-to", config->sweep_high, "last target of the table")->capture_default_str();
    command->add_option("--sweep-step", config->sweep_step, "distance between targets")->capture_default_str();
    command->add_option("--measure", config->measure, "text on which the KL divergence of every target is measured");
    command->add_option("--measure-tokens", config->measure_tokens, "tokens of this text")->capture_default_str();
    command->add_option("--algorithm", config->algorithm, "algorithm of the recipe")
        ->check(one_of({"max", "nibble_best"}))
        ->capture_default_str();
    add_device_flag(*command, config->device,
                    "device of forward passes (--score kl, --measure, ranges of inputs): cpu, cuda or cuda:N");
    add_threads_flag(*command, config->threads);
    add_json_flag(*command, config->json);
    add_quiet_flag(*command, config->quiet, "no progress, no summary");
    command->footer(
        "Examples:\n"
        "  nibble search Qwen3-8B --bits 4.8 --calib chats.jsonl -o mixed.yaml --measure wiki.txt\n"
        "  nibble search Qwen3-8B --bits 5.5 --scores mixed.json -o mixed-5.5.yaml\n"
        "  nibble search Qwen3-8B --calib chats.jsonl -o mixed.yaml --formats w4a16_nvfp4,fp8 --keep '*lm_head*=none'");
    command->callback([config, command, &run] {
        if (config->measure.empty()) check_calibration_flags(*command, config->calib);
        if (const Status possible = check_options(*config); !possible.ok())
            usage_error("{}", possible.error().message());
        config->command = command_line_of(*command);
        run = [config] { return run_search(*config); };
    });
}

}  // namespace nibble
