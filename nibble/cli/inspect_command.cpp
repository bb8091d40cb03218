// `nibble inspect PATH`: lists the contents of a checkpoint, for any input or output of nibble; with --kernels, the GPU
// kernels that run it.
#include "architecture/canonical_config.h"
#include "architecture/config_json.h"
#include "base/utf8.h"
#include "checkpoint/checkpoint.h"
#include "cli/command.h"
#include "cli/engine.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/usage.h"
#include "jobs/kernel_table.h"
#include "jobs/open_checkpoint.h"
#include "model/device_model.h"
#include "page/numbers.h"

#include <fmt/format.h>

#include <map>

namespace nibble {
namespace {

struct InspectConfig {
    std::string path;
    bool json = false, summary = false;
    bool kernels = false;
    EngineFlags engine;  // for --kernels: device, kv, weights_only
    int64_t tokens = 1;
};

struct TypeTotals {
    int64_t tensors = 0, elements = 0, bytes = 0;
};

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

int64_t elements_of(const CheckpointTensor& t) { return checked_elements(t.shape).value_or(0); }

double bits_of(int64_t bytes, int64_t elements) { return elements ? 8.0 * double(bytes) / double(elements) : 0; }

std::string architecture_of(const Json& config) {
    const auto it = config.find("architectures");
    if (it != config.end() && it->is_array() && !it->empty() && it->front().is_string()) return it->front();
    return config.value("model_type", std::string("unknown"));
}

Result<Json> inspect_json(const Checkpoint& checkpoint) {
    NIBBLE_TRY(const Json canonical, canonical_config(checkpoint.config()));
    Json tensors = Json::array();
    TypeTotals totals;
    for (const CheckpointTensor& t : checkpoint.tensors()) {
        Json row{{"name", t.name},
                 {"shape", t.shape},
                 {"type", t.stored_type},
                 {"format", format_name(t.format)},
                 {"activation", activation_name(t.activation)},
                 {"bytes", t.stored_bytes},
                 {"bits_per_element", bits_of(t.stored_bytes, elements_of(t))},
                 {"file", t.file}};
        if (t.input_scale) row["input_scale"] = *t.input_scale;
        tensors.push_back(std::move(row));
        totals.tensors += 1;
        totals.elements += elements_of(t);
        totals.bytes += t.stored_bytes;
    }
    return Json{{"path", checkpoint.path().string()},
                {"architecture", architecture_of(checkpoint.config())},
                {"dialect", dialect_name(checkpoint.dialect())},
                {"kv_cache", kv_name(checkpoint.kv())},
                {"totals",
                 {{"tensors", totals.tensors},
                  {"elements", totals.elements},
                  {"bytes", totals.bytes},
                  {"bits_per_element", bits_of(totals.bytes, totals.elements)}}},
                {"notes", std::vector<std::string>(checkpoint.notes().begin(), checkpoint.notes().end())},
                {"config", tag_special_floats(checkpoint.config())},
                {"canonical_config", tag_special_floats(canonical)},
                {"tensors", std::move(tensors)}};
}

std::string inspect_text(const Checkpoint& checkpoint, bool summary) {
    std::map<std::string, TypeTotals> types;
    TypeTotals all;
    size_t widest_name = 6, widest_shape = 5;
    for (const CheckpointTensor& t : checkpoint.tensors()) {
        for (TypeTotals* totals : {&types[t.stored_type], &all}) {
            totals->tensors += 1;
            totals->elements += elements_of(t);
            totals->bytes += t.stored_bytes;
        }
        widest_name = std::max(widest_name, printable(t.name).size());
        widest_shape = std::max(widest_shape, shape_text(t.shape).size());
    }
    std::string text = fmt::format("{}\n  {}, {} checkpoint, KV cache {}\n", printable(checkpoint.path().string()),
                                   printable(architecture_of(checkpoint.config())), dialect_name(checkpoint.dialect()),
                                   kv_name(checkpoint.kv()));
    text += fmt::format("\n  {:<14} {:>8} {:>16} {:>10} {:>8}\n", "type", "tensors", "elements", "size", "bits");
    const auto line = [&](std::string_view name, const TypeTotals& t) {
        text += fmt::format("  {:<14} {:>8} {:>16} {:>10} {:>8.3f}\n", name, t.tensors, t.elements,
                            human_bytes(t.bytes), bits_of(t.bytes, t.elements));
    };
    for (const auto& [name, totals] : types) line(name, totals);
    line("total", all);
    if (summary) return text;
    text += fmt::format("\n  {:<{}}  {:<{}}  {:<12} {:>7}  {}\n", "tensor", widest_name, "shape", widest_shape, "type",
                        "bits", "activation");
    for (const CheckpointTensor& t : checkpoint.tensors())
        text += fmt::format("  {:<{}}  {:<{}}  {:<12} {:>7.3f}  {}{}\n", printable(t.name), widest_name,
                            shape_text(t.shape), widest_shape, t.stored_type, bits_of(t.stored_bytes, elements_of(t)),
                            t.activation == ActivationFormat::none ? "" : activation_name(t.activation),
                            t.input_scale ? fmt::format(" x {:.6g}", *t.input_scale) : "");
    return text;
}

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
    NIBBLE_TRY(std::unique_ptr<Checkpoint> opened, open_checkpoint(config.path, printing_hooks(false)));
    const std::shared_ptr<const Checkpoint> checkpoint = std::move(opened);
    if (config.kernels) {
        NIBBLE_CHECK(show_kernels(checkpoint, config).within(config.path));
        return Outcome{};
    }
    if (!config.json) {
        fmt::print("{}", inspect_text(*checkpoint, config.summary));
        return Outcome{};
    }
    NIBBLE_TRY(const Json json, inspect_json(*checkpoint));
    fmt::print("{}", pretty(json));
    return Outcome{};
}

}  // namespace

void add_inspect(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<InspectConfig>();
    CLI::App* command =
        app.add_subcommand("inspect", "what a checkpoint contains: architecture, tensors, formats, bits per element");
    command->add_option("path", config->path, "a Hugging Face folder or a .gguf file")->required();
    command->add_flag("--json", config->json, "machine-readable");
    auto* summary = command->add_flag("--summary", config->summary, "totals only");
    auto* kernels = command->add_flag("--kernels", config->kernels,
                                      "which kernel of a GPU runs each layer, and why; needs --device cuda");
    kernels->excludes(summary);
    add_device_flag(*command, config->engine.device, "the GPU of --kernels: cuda or cuda:N");
    command->add_option("--tokens", config->tokens, "of the step that --kernels shows")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str()
        ->needs(kernels);
    command->add_option("--kv", config->engine.kv, "KV cache of that step; default: as the checkpoint says")
        ->check(one_of({"bf16", "fp8", "fp8_cast"}))
        ->needs(kernels);
    command->add_flag("--weights-only", config->engine.weights_only, "that step with activations unquantized")
        ->needs(kernels);
    command->footer(
        "Example:\n  nibble inspect SmolLM2-135M-NVFP4 --summary\n"
        "  nibble inspect SmolLM2-135M-NVFP4 --device cuda --kernels --tokens 64");
    command->callback([config, &run] {
        const bool gpu = config->engine.device != "cpu";
        if (config->kernels && !gpu) usage_error("--kernels are a GPU's: add --device cuda");
        if (gpu && !config->kernels) usage_error("--device {} goes with --kernels", config->engine.device);
        run = [config] { return run_inspect(*config); };
    });
}

}  // namespace nibble
