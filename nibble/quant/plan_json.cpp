#include "quant/plan_json.h"

#include "base/dtype.h"

#include <cmath>

namespace nibble {
namespace {

int64_t elements_of_entry(const PlanEntry& entry) { return entry.rows() * entry.cols(); }

Json entry_json(const PlanEntry& e) {
    const bool quantized = e.spec.format != Format::none;
    Json row{{"tensor", e.tensor},
             {"shape", e.shape},
             {"format", quantized ? format_name(e.spec.format) : dtype_name(e.dtype)},
             {"bytes", planned_bytes(e)},
             {"reason", e.reason}};
    if (!quantized) return row;
    row["inputs"] = activation_name(e.activation);
    row["method"] = method_text(e);
    if (!e.scale_group.empty()) row["scale_group"] = e.scale_group;
    if (!e.search_group.empty()) row["search_group"] = e.search_group;
    if (!e.input_group.empty()) row["input_group"] = e.input_group;
    return row;
}

}  // namespace

int64_t planned_bytes(const PlanEntry& entry) {
    const int64_t elements = elements_of_entry(entry);
    if (entry.spec.format == Format::none) return elements * dtype_bytes(entry.dtype);
    return std::llround(bits_per_element(entry.spec.format, entry.rows(), entry.cols()) * double(elements) / 8);
}

int64_t planned_bytes(const Plan& plan) {
    int64_t bytes = 0;
    for (const PlanEntry& entry : plan.entries) bytes += planned_bytes(entry);
    return bytes;
}

int64_t report_bytes(const Plan& plan) {
    constexpr int64_t of_a_tensor = 4096, of_the_pages = 1 << 20;
    return of_the_pages + of_a_tensor * std::ssize(plan.entries);
}

Json to_json(const Plan& plan) {
    int64_t elements = 0, quantized = 0;
    Json tensors = Json::array();
    for (const PlanEntry& entry : plan.entries) {
        elements += elements_of_entry(entry);
        quantized += entry.spec.format != Format::none;
        tensors.push_back(entry_json(entry));
    }
    const int64_t bytes = planned_bytes(plan);
    return Json{{"recipe", plan.recipe},
                {"weights_only", plan.weights_only},
                {"kv_cache", kv_name(plan.kv)},
                {"totals",
                 {{"tensors", plan.entries.size()},
                  {"quantized", quantized},
                  {"elements", elements},
                  {"bytes", bytes},
                  {"bits_per_element", elements ? 8.0 * double(bytes) / double(elements) : 0.0}}},
                {"tensors", std::move(tensors)},
                {"tied_heads", plan.tied_heads},
                {"warnings", plan.warnings},
                {"needs_activations", plan.needs_activations}};
}

}  // namespace nibble
