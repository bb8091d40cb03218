#include "quant/input_scales.h"

#include "formats/nvfp4.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace nibble {
namespace {

constexpr std::string_view amax_ending = ".input_amax";

Status add(ScaleTable& table, std::string_view name, float value) {
    const bool dead = value == 0 && name.ends_with(amax_ending);  // an input that was always zero
    if (!std::isfinite(value) || (value <= 0 && !dead))
        return fail("{}: '{}' is {}; a scale is a finite positive number", table.origin, name, value);
    table.values.emplace(name, value);
    return Ok{};
}

Result<ScaleTable> from_json(const std::filesystem::path& path) {
    ScaleTable table{path.string(), {}};
    NIBBLE_TRY(const Json json, read_json_file(path));
    if (!json.is_object()) return fail("{}: expected an object {{tensor name: scale}}", table.origin);
    for (const auto& [name, value] : json.items()) {
        if (!value.is_number()) return fail("{}: '{}': expected a number", table.origin, name);
        // Model Optimizer's name for the input of a stack of experts is "P.experts.up_proj_input_scale".
        constexpr std::string_view ending = "input_scale", stack = "_input_scale";
        std::string tensor = name;
        if (tensor.ends_with(stack)) tensor[tensor.size() - ending.size() - 1] = '.';
        NIBBLE_CHECK(add(table, tensor, static_cast<float>(value.get<double>())));
    }
    return table;
}

bool is_kv_scale(std::string_view name) { return name.ends_with(".k_scale") || name.ends_with(".v_scale"); }

std::string module_of(std::string_view tensor) {
    if (tensor.ends_with(".weight")) tensor.remove_suffix(7);
    return std::string(tensor);
}

Result<ScaleTable> from_export(const std::filesystem::path& path) {
    ScaleTable table{path.string(), {}};
    NIBBLE_TRY(const auto checkpoint, Checkpoint::open(path));
    const auto tensors = checkpoint->tensors();
    for (size_t i = 0; i < tensors.size(); ++i) {
        const CheckpointTensor& t = tensors[i];
        if (t.input_scale) NIBBLE_CHECK(add(table, module_of(t.name) + ".input_scale", *t.input_scale));
        if (t.quantized() || t.dtype != DType::f32 || t.rows() * t.cols() != 1 || !is_kv_scale(t.name)) continue;
        Matrix scratch;
        NIBBLE_TRY(const MatrixView view, checkpoint->read_plain(i, 0, 1, scratch));
        float value;
        std::memcpy(&value, view.data, sizeof value);
        NIBBLE_CHECK(add(table, t.name, value));
    }
    if (table.values.empty()) return fail("{}: no input_scale, k_scale or v_scale in this checkpoint", table.origin);
    return table;
}

// Looks names up and records which were used.
class Lookup {
public:
    explicit Lookup(const ScaleTable* table) : table_(table) {}

    bool has(const std::string& name) const { return table_ && table_->values.contains(name); }
    std::optional<float> find(const std::string& name) {
        if (table_)
            if (const auto found = table_->values.find(name); found != table_->values.end()) {
                used_.insert(name);
                return found->second;
            }
        if (missing_.size() < 3) missing_.push_back(name);
        ++missing_count_;
        return std::nullopt;
    }

    Status complete() const {
        if (missing_count_ == 0) return Ok{};
        std::string names;
        for (const std::string& name : missing_) names += (names.empty() ? "" : ", ") + name;
        if (missing_count_ > missing_.size()) names += ", ...";
        const std::string where = table_ ? table_->origin + " lacks" : "the plan needs";
        return fail(
            "{} {} activation scale{} ({}); calibrate with --calib, give them with --input-scales, or drop the "
            "quantizers "
            "with --weights-only",
            where, missing_count_, missing_count_ == 1 ? "" : "s", names);
    }

    // Returns a message about names that the plan does not use.
    std::optional<std::string> unused() const {
        if (!table_ || used_.size() == table_->values.size()) return std::nullopt;
        std::string first;
        for (const auto& [name, value] : table_->values)
            if (!used_.contains(name)) {
                first = name;
                break;
            }
        return fmt::format("{}: {} of {} scales belong to no tensor of this plan, the first is '{}'", table_->origin,
                           table_->values.size() - used_.size(), table_->values.size(), first);
    }

private:
    const ScaleTable* table_;
    std::set<std::string, std::less<>> used_;
    std::vector<std::string> missing_;
    size_t missing_count_ = 0;
};

bool stored_kv(KvFormat kv) { return kv == KvFormat::fp8 || kv == KvFormat::nvfp4; }

// Linears with the same input share one value: the largest.
void unify(const Plan& plan, ActivationScales& scales) {
    std::map<std::string_view, float> largest;
    for (size_t i = 0; i < plan.entries.size(); ++i) {
        const std::string& group = plan.entries[i].input_group;
        if (!scales.input[i] || group.empty()) continue;
        float& max = largest.try_emplace(group, *scales.input[i]).first->second;
        max = std::max(max, *scales.input[i]);
    }
    for (size_t i = 0; i < plan.entries.size(); ++i) {
        const PlanEntry& entry = plan.entries[i];
        if (!scales.input[i] || entry.input_group.empty()) continue;
        const float max = largest.find(entry.input_group)->second;
        if (*scales.input[i] == max) continue;
        scales.warnings.push_back(fmt::format("{}: input_scale {} raised to {}, the largest of group '{}'",
                                              entry.module, *scales.input[i], max, entry.input_group));
        scales.input[i] = max;
    }
}

}  // namespace

float scale_of_amax(ActivationFormat format, float amax, Arithmetic arithmetic) {
    const bool nvfp4 = format == ActivationFormat::nvfp4;
    if (amax == 0) amax = nvfp4 ? e2m1_max : e4m3_max;
    const float scale = div_const(amax, nvfp4 ? e2m1_max * e4m3_max : e4m3_max, arithmetic);
    return scale > 0 ? scale : std::numeric_limits<float>::min();  // the maximum is too small for any normal scale
}

Result<ScaleTable> read_scale_table(const std::filesystem::path& path) {
    return path.extension() == ".json" ? from_json(path) : from_export(path);
}

Result<ActivationScales> resolve_activation_scales(const Plan& plan, const ScaleTable* table) {
    ActivationScales scales;
    scales.input.resize(plan.entries.size());
    Lookup lookup(table);
    for (size_t i = 0; i < plan.entries.size(); ++i) {
        const PlanEntry& entry = plan.entries[i];
        if (entry.spec.format != Format::none && stores_input_scale(entry.activation)) {
            if (entry.constant_input_amax)
                scales.input[i] = scale_of_amax(entry.activation, *entry.constant_input_amax, entry.spec.arithmetic);
            else if (const std::string amax = entry.module + std::string(amax_ending); lookup.has(amax))
                scales.input[i] = scale_of_amax(entry.activation, *lookup.find(amax), entry.spec.arithmetic);
            else
                scales.input[i] = lookup.find(entry.module + ".input_scale");
        }
    }
    if (stored_kv(plan.kv))
        for (const std::string& layer : plan.kv_layers)
            for (const char letter : {'k', 'v'}) {
                const std::string name = fmt::format("{}.{}_proj.{}_scale", layer, letter, letter);
                if (const auto value = lookup.find(name)) scales.kv.emplace_back(name, *value);
            }
    NIBBLE_CHECK(lookup.complete());
    if (auto unused = lookup.unused()) scales.warnings.push_back(*std::move(unused));
    unify(plan, scales);
    for (size_t i = 0; i < plan.entries.size(); ++i) {
        const PlanEntry& entry = plan.entries[i];
        if (scales.input[i] && entry.activation == ActivationFormat::nvfp4)
            scales.input[i] = std::max(*scales.input[i], entry.least_scale);
    }
    return scales;
}

ActivationScales placeholder_scales(const Plan& plan) {
    ActivationScales scales;
    for (const PlanEntry& e : plan.entries) {
        const bool stored = e.spec.format != Format::none && stores_input_scale(e.activation);
        scales.input.push_back(stored ? std::optional(1.0f) : std::nullopt);
    }
    if (stored_kv(plan.kv))
        for (const std::string& layer : plan.kv_layers)
            for (const char letter : {'k', 'v'})
                scales.kv.emplace_back(fmt::format("{}.{}_proj.{}_scale", layer, letter, letter), 1.0f);
    return scales;
}

std::vector<ExportTensor> export_tensors(const Checkpoint& source, const Plan& plan, const ActivationScales& scales) {
    std::vector<ExportTensor> out;
    out.reserve(plan.entries.size() + scales.kv.size());
    for (size_t i = 0; i < plan.entries.size(); ++i) {
        const PlanEntry& entry = plan.entries[i];
        const CheckpointTensor& from = source.tensors()[i];
        ExportTensor t{.name = entry.tensor,
                       .shape = entry.shape,
                       .dtype = entry.dtype,
                       .listed_module = entry.listed_module,
                       .experts = from.experts};
        if (entry.spec.format != Format::none) {
            t.format = entry.spec.format;
            t.activation = entry.activation;
            t.input_scale = scales.input[i].has_value();
        } else if (from.quantized()) {
            t.format = from.format;
            t.activation = from.activation;
            t.input_scale = from.input_scale.has_value();
        }
        out.push_back(std::move(t));
    }
    for (const auto& [name, value] : scales.kv) out.push_back({.name = name, .shape = {}, .dtype = DType::f32});
    return out;
}

}  // namespace nibble
