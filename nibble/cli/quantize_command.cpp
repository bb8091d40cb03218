// `nibble quantize SRC -o OUT --recipe NAME`: converts a BF16 checkpoint to a verified FP4 or FP8 checkpoint.
#include "cli/calibration_options.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/usage.h"
#include "nibble/quantize.h"
#include "quant/recipe.h"

#include <fmt/format.h>

namespace nibble {
namespace {

struct QuantizeConfig : QuantizeOptions {
    bool quiet = false, json = false;
};

Result<Outcome> run_quantize_command(const QuantizeConfig& config) {
    Console console(config.quiet || config.json, config.quiet);
    NIBBLE_TRY(const QuantizeReport made, quantize(config, console.hooks()));
    console.end_line();
    if (config.json)
        fmt::print("{}", made.json());
    else if (!config.quiet || config.dry_run)
        fmt::print("{}", made.text());
    return Outcome{};
}

}  // namespace

void add_quantize(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<QuantizeConfig>();
    CLI::App* command =
        app.add_subcommand("quantize", "quantize a BF16 checkpoint to a verified FP4 or FP8 checkpoint");
    command->add_option("source", config->source, "Hugging Face folder or .gguf file")->required();
    command->add_option("-o,--output", config->out, "folder (or .gguf file) to write; must not exist")->required();
    command->add_option("-r,--recipe", config->recipe, "preset (`nibble recipes` lists them) or recipe file")
        ->required()
        ->check(read_by(check_recipe_name));
    std::vector<std::string> kv = kv_preset_names();
    kv.emplace_back("none");
    command->add_option("--kv", config->kv, "KV cache preset, applied after the recipe")->check(one_of(std::move(kv)));
    command
        ->add_option("--format", config->format,
                     "dialect of the output; default: gguf for a .gguf output, else modelopt")
        ->check(one_of({"modelopt", "compressed-tensors", "gguf"}));
    command
        ->add_option("--ignore", config->ignore,
                     "module to leave unquantized, with all modules below it (fnmatch: '*.down_proj', "
                     "'model.layers.0', or 're:' and a regular expression); may be given several times")
        ->allow_extra_args(false);
    command
        ->add_option("--linear", config->linear,
                     "matrix to quantize like a linear layer although its name is not known (patterns as in --ignore); "
                     "may be given several times")
        ->allow_extra_args(false);
    command->add_flag("--weights-only", config->weights_only, "drop the recipe's activation quantizers");
    command->add_option("--input-scales", config->input_scales,
                        "input_scale, k_scale, v_scale from a JSON file or another export; a number: input_scale of "
                        "every linear");
    add_calibration_flags(*command, config->calib);
    command
        ->add_option("--calib-gradients", config->calib.gradients,
                     "number of tokens that also go through the backward pass (nibble_best)")
        ->capture_default_str();
    command
        ->add_option("--embeddings", config->embeddings,
                     "format of the input embeddings, for machines with little memory")
        ->check(read_by(parse_format))
        ->capture_default_str();
    command
        ->add_option("--arithmetic", config->arithmetic,
                     "arithmetic of scales: reciprocal, as Model Optimizer on a GPU; true, as on a CPU")
        ->check(one_of({"reciprocal", "true"}))
        ->capture_default_str();
    command
        ->add_option("--compat", config->compat,
                     "share scales as Model Optimizer 0.47 does (docs/topics/recipe-files.md), or none")
        ->check(one_of({"modelopt-0.47", "none"}))
        ->capture_default_str();
    add_partial_flag(*command, config->partial);
    add_shard_size_flag(*command, config->max_shard_size);
    add_threads_flag(*command, config->threads, "0: all cores; two a core with --device cuda");
    add_kernels_flag(*command, config->kernels, "CPU kernels; do not change any byte");
    add_device_flag(*command, config->device,
                    "cpu, cuda or cuda:N; changes bytes only with --calib, whose sums have another order");
    command->add_flag("--requantize", config->requantize, "accept a source that is already quantized");
    command->add_flag("--dry-run", config->dry_run, "print the plan and stop");
    command->add_flag("--strict", config->strict, "treat warnings of the plan as errors");
    command
        ->add_option("--rank-timeout", config->rank_timeout_seconds,
                     "with several ranks: seconds to wait for a rank that does not start, or stops working")
        ->check(CLI::Range(1, 86'400))
        ->capture_default_str();
    command->add_flag("--resume", config->resume, "continue an interrupted run; the bytes are the same");
    add_json_flag(*command, config->json);
    add_quiet_flag(*command, config->quiet, "no progress, no summary");
    command->footer(
        "Examples:\n"
        "  nibble quantize Qwen3-8B -o Qwen3-8B-NVFP4 --recipe w4a16_nvfp4\n"
        "  nibble quantize Qwen3-8B -o out --recipe nvfp4 --kv fp8 --calib chats.jsonl\n"
        "  nibble quantize Qwen3-8B -o out --recipe nvfp4 --input-scales calibrated-export --kv fp8_cast\n"
        "  nibble quantize model.gguf -o out.gguf --recipe nvfp4_four_over_six --weights-only --requantize");
    command->callback([config, command, &run] {
        config->format = output_format(config->out, config->format);
        check_calibration_flags(*command, config->calib);
        config->command = {command_line_of(*command), command_for_card(*command)};
        run = [config] { return run_quantize_command(*config); };
    });
}

}  // namespace nibble
