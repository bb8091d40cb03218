#include "quant/verify.h"

#include "base/fields.h"
#include "base/json_append.h"
#include "checkpoint/modules.h"
#include "checkpoint/stored_parts.h"
#include "model/missing_weights.h"
#include "quant/verify_tensor.h"

#include <unordered_set>

namespace nibble {
namespace {

std::string short_names(const std::vector<std::string>& names) {
    std::string text;
    for (size_t i = 0; i < std::min<size_t>(names.size(), 3); ++i) text += (i ? ", " : "") + names[i];
    return names.size() > 3 ? text + fmt::format(" and {} more", names.size() - 3) : text;
}

void find_missing(const Checkpoint& checkpoint, const VerifyOptions& options, std::vector<Finding>& findings) {
    std::unordered_set<std::string_view> have;
    for (const CheckpointTensor& t : checkpoint.tensors()) have.insert(t.name);
    if (options.source)
        for (const CheckpointTensor& t : options.source->tensors())
            if (!have.contains(t.name)) findings.push_back({t.name, "is missing; the source has it"});
    if (options.expected)
        for (const auto& [name, format] : *options.expected)
            if (!have.contains(name)) findings.push_back({name, "is missing; the recipe quantizes it"});
    if (!options.complete) return;
    if (std::string missing = find_missing_weights(checkpoint).text(); !missing.empty())
        findings.push_back({"", std::move(missing)});
}

// Checks that linears which an engine fuses have the same format, tensor scale (NVFP4) and input scale.
void compare_partners(const Checkpoint& checkpoint, const std::vector<TensorFindings>& tensors,
                      std::vector<Finding>& findings) {
    const auto list = checkpoint.tensors();
    const ModelModules model = find_modules(list, checkpoint.config());
    for (const std::vector<size_t>& members : fused_groups(model.modules)) {
        const CheckpointTensor& first = list[members[0]];
        bool formats = false, scales = false, inputs = false;
        std::vector<std::string> names;
        for (size_t i : members) {
            const CheckpointTensor& t = list[i];
            names.push_back(t.name);
            formats |= t.format != first.format || t.activation != first.activation;
            scales |= tensors[i].tensor_scale != tensors[members[0]].tensor_scale;
            inputs |= t.input_scale != first.input_scale;
        }
        const std::string who = short_names(names);
        const bool nvfp4 = first.format == Format::nvfp4 || first.format == Format::nvfp4_bs32;
        if (formats)
            findings.push_back({who, "must have one format, because engines run them as one matrix"});
        else if (scales && nvfp4)
            findings.push_back(
                {who, "must have one tensor scale (weight_scale_2), because engines run them as one matrix"});
        if (!formats && inputs)
            findings.push_back({who, "must have one input scale, because they have the same input"});
    }
}

// Returns true if loaders expect this unquantized matrix in the list of excluded modules.
bool loaders_ask(const Module& module, Dialect dialect) {
    if (module.kind != ModuleKind::linear && module.kind != ModuleKind::router &&
        module.kind != ModuleKind::fused_experts)
        return false;
    // Loaders of Model Optimizer's checkpoints never expect quantized vision towers.
    return dialect == Dialect::compressed_tensors ||
           (dialect == Dialect::modelopt && !is_outside_text_model(module.name));
}

// Compares the lists of excluded modules with the tensors; one line per kind of module.
void check_lists(const Checkpoint& checkpoint, std::vector<Finding>& findings) {
    const auto list = checkpoint.tensors();
    const Dialect dialect = checkpoint.dialect();
    if (dialect != Dialect::modelopt && dialect != Dialect::compressed_tensors) return;
    const std::string_view lists =
        dialect == Dialect::modelopt ? "ignore of config.json, exclude_modules of hf_quant_config.json" : "ignore";
    struct Kind {
        std::string first;
        int64_t count = 0;
        bool quantized = false;
    };
    std::map<std::string, Kind> kinds;
    const std::vector<Module> modules = find_modules(list, checkpoint.config()).modules;
    for (size_t i = 0; i < list.size(); ++i) {
        const bool quantized = list[i].quantized();
        // decoded from codes without a Format
        const bool decoded = list[i].stored_type != dtype_name(list[i].dtype);
        if (quantized != list[i].listed_module) continue;
        if (!quantized && (decoded || !loaders_ask(modules[i], dialect))) continue;
        const std::string key = fmt::format("{} {}", module_kind_name(list[i].name), quantized ? "quantized" : "plain");
        Kind& kind = kinds.try_emplace(key, Kind{list[i].name, 0, quantized}).first->second;
        ++kind.count;
    }
    for (const auto& [name, kind] : kinds) {
        const std::string more = kind.count > 1 ? fmt::format(" ({} of its kind)", kind.count) : "";
        findings.push_back(
            {kind.first + more,
             kind.quantized ? fmt::format("is quantized, but a list of excluded modules names it ({}): loaders that "
                                          "follow the list read its codes as weights",
                                          lists)
                            : fmt::format("is not quantized, but a list of excluded modules does not name it ({}): "
                                          "loaders expect quantized weights; `nibble convert` writes a complete list",
                                          lists)});
    }
}

// Checks that either all attention layers have scales or none.
void check_kv(const Checkpoint& checkpoint, std::vector<Finding>& findings) {
    const auto list = checkpoint.tensors();
    std::unordered_set<std::string_view> scales;
    for (const CheckpointTensor& t : list)
        if (t.name.ends_with(".k_scale") || t.name.ends_with(".v_scale")) scales.insert(t.name);
    if (scales.empty()) return;
    if (checkpoint.kv() == KvFormat::none)
        findings.push_back(
            {std::string(*scales.begin()), "is a KV cache scale, but config.json names no KV cache format"});
    for (const std::string& layer : find_modules(list, checkpoint.config()).attention)
        for (const char letter : {'k', 'v'}) {
            const std::string name = fmt::format("{}.{}_proj.{}_scale", layer, letter, letter);
            if (!scales.contains(name))
                findings.push_back({name, "is missing; other layers have their KV cache scales"});
        }
}

Status bad_kv_values(const Checkpoint& checkpoint, std::vector<Finding>& findings) {
    const auto list = checkpoint.tensors();
    for (size_t i = 0; i < list.size(); ++i) {
        if (list[i].dtype != DType::f32 || list[i].quantized() || list[i].rows() * list[i].cols() != 1) continue;
        if (!is_kv_scale_name(list[i].name)) continue;
        Matrix scratch;
        NIBBLE_TRY(const MatrixView view, checkpoint.read_plain(i, 0, 1, scratch));
        float scale;
        std::memcpy(&scale, view.data, sizeof scale);
        if (!(scale > 0) || !std::isfinite(scale))
            findings.push_back({list[i].name, fmt::format("{} is not finite and positive", scale)});
    }
    return Ok{};
}

}  // namespace

ExpectedFormats expected_formats(const Plan& plan) {
    ExpectedFormats formats;
    for (const PlanEntry& e : plan.entries)
        if (e.spec.format != Format::none) formats.emplace(e.tensor, ExpectedFormat{e.spec.format, e.activation});
    return formats;
}

Json to_json(const ExpectedFormats& formats) {
    Json json = Json::object();
    for (const auto& [name, f] : formats)
        append_member(json, name,
                      Json{{"format", format_name(f.format)}, {"activation", activation_name(f.activation)}});
    return json;
}

Result<ExpectedFormats> expected_formats_from_json(const Json& tensors) {
    if (!tensors.is_object()) return fail("expected an object of tensors");
    ExpectedFormats formats;
    for (const auto& [name, json] : tensors.items()) {
        std::string format, activation;
        Fields fields(json, name);
        NIBBLE_CHECK(fields.need("format", format));
        NIBBLE_CHECK(fields.need("activation", activation));
        const auto f = format_from_name(format);
        const auto a = activation_from_name(activation);
        if (!f || !a) return fail("{}: unknown format '{}' or activation '{}'", name, format, activation);
        formats.emplace(name, ExpectedFormat{*f, *a});
    }
    return formats;
}

Result<VerifyReport> verify(const Checkpoint& checkpoint, const VerifyOptions& options, ThreadPool& pool,
                            const JobHooks& hooks) {
    const QuantizeKernels* kernels = options.kernels;
    if (!kernels) {
        NIBBLE_TRY(kernels, select_quantize_kernels());
    }
    const auto list = checkpoint.tensors();
    int64_t total = 0;
    for (const CheckpointTensor& t : list) total += t.stored_bytes;
    ProgressMeter meter(hooks, "verify", total);
    VerifyContext context{.checkpoint = checkpoint, .options = options, .kernels = *kernels, .meter = meter};
    context.scratch.resize(static_cast<size_t>(pool.threads()));
    context.source_scratch.resize(static_cast<size_t>(pool.threads()));
    context.tensors.resize(list.size());
    if (options.source) {
        const auto source = options.source->tensors();
        for (size_t i = 0; i < source.size(); ++i) context.in_source.emplace(source[i].name, i);
    }
    if (options.computed)
        for (const TensorReport& t : *options.computed)
            if (t.quantized()) context.computed.emplace(t.name, &t);
    NIBBLE_TRY(const RunEnd end, run_units(
                                     pool, static_cast<int64_t>(list.size()),
                                     [&](int64_t i) { return verify_tensor(context, static_cast<size_t>(i)); },
                                     [&] { return hooks.should_stop(); }));
    if (end == RunEnd::stopped) return fail(ErrorKind::cancelled, "stopped on request; nothing was changed");
    meter.finish();

    VerifyReport report{.path = checkpoint.path().string(), .dialect = checkpoint.dialect()};
    if (options.source) report.against = options.source->path().string();
    for (TensorFindings& t : context.tensors) {
        for (std::string& text : t.texts) report.findings.push_back({t.report.name, std::move(text)});
        report.tensors.push_back(std::move(t.report));
    }
    find_missing(checkpoint, options, report.findings);
    compare_partners(checkpoint, context.tensors, report.findings);
    check_lists(checkpoint, report.findings);
    check_kv(checkpoint, report.findings);
    NIBBLE_CHECK(bad_kv_values(checkpoint, report.findings));
    report.seconds = meter.seconds();
    return report;
}

}  // namespace nibble
