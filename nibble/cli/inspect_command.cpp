// `nibble inspect PATH`: lists the contents of a checkpoint, for any input or output of nibble; with --kernels, the GPU
// kernels that run it.
#include "checkpoint/checkpoint.h"
#include "cli/command.h"
#include "cli/engine.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/usage.h"
#include "jobs/kernel_table.h"
#include "jobs/open_checkpoint.h"
#include "model/device_model.h"
#include "nibble/inspect.h"

#include <fmt/format.h>

namespace nibble {
namespace {

struct InspectConfig {
    std::string path;
    bool json = false, summary = false;
    bool kernels = false;
    int shards = 0;
    EngineFlags engine;  // for --kernels: device, kv, weights_only
    int64_t tokens = 1;
};

std::string pretty(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

Status show_kernels(std::shared_ptr<const Checkpoint> checkpoint, const InspectConfig& config) {
    NIBBLE_TRY(const ModelOptions options, model_options(config.engine));
    NIBBLE_TRY(const DeviceChoice device, parse_device(config.engine.device).within("--device"));
    ThreadPool pool(1);
    NIBBLE_TRY(const KernelTable table,
               device_kernel_table(std::move(checkpoint), options, device, config.tokens, pool));
    fmt::print("{}", config.json ? pretty(kernels_json(table)) : kernels_text(table));
    return Ok{};
}

Result<Outcome> run_inspect(const InspectConfig& config) {
    if (!config.kernels) {
        NIBBLE_TRY(const JobReport report,
                   inspect({config.path, config.summary, config.json, config.shards}, printing_hooks(false)));
        fmt::print("{}", config.json ? report.json() : report.text());
        return Outcome{};
    }
    NIBBLE_TRY(std::unique_ptr<Checkpoint> opened, open_checkpoint(config.path, printing_hooks(false)));
    NIBBLE_CHECK(show_kernels(std::move(opened), config).within(config.path));
    return Outcome{};
}

}  // namespace

void add_inspect(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<InspectConfig>();
    CLI::App* command = app.add_subcommand(
        "inspect", "list the contents of a checkpoint: architecture, tensors, formats, bits per element");
    command->add_option("path", config->path, "a Hugging Face folder or a .gguf file")->required();
    command->add_flag("--json", config->json, "machine-readable");
    auto* summary = command->add_flag("--summary", config->summary, "totals only");
    auto* kernels = command->add_flag("--kernels", config->kernels,
                                      "show which GPU kernel runs each layer, and why; needs --device cuda");
    kernels->excludes(summary);
    command
        ->add_option("--shards", config->shards,
                     "show which rows of every tensor each of N ranks has; an error names the numbers that work")
        ->check(CLI::Range(1, 4096))
        ->excludes(summary)
        ->excludes(kernels);
    add_device_flag(*command, config->engine.device, "GPU for --kernels: cuda or cuda:N");
    command->add_option("--tokens", config->tokens, "tokens of the step for --kernels")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str()
        ->needs(kernels);
    command->add_option("--kv", config->engine.kv, "KV cache format for --kernels; default: the checkpoint's")
        ->check(one_of({"bf16", "fp8", "fp8_cast"}))
        ->needs(kernels);
    command->add_flag("--weights-only", config->engine.weights_only, "for --kernels: inputs stay unquantized")
        ->needs(kernels);
    command->footer(
        "Example:\n  nibble inspect SmolLM2-135M-NVFP4 --summary\n"
        "  nibble inspect SmolLM2-135M-NVFP4 --shards 3\n"
        "  nibble inspect SmolLM2-135M-NVFP4 --device cuda --kernels --tokens 64");
    command->callback([config, &run] {
        const bool gpu = config->engine.device != "cpu";
        if (config->kernels && !gpu) usage_error("--kernels needs --device cuda");
        if (gpu && !config->kernels) usage_error("--device {} needs --kernels", config->engine.device);
        run = [config] { return run_inspect(*config); };
    });
}

}  // namespace nibble
