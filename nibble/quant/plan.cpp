#include "quant/plan.h"

#include "base/utf8.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace nibble {
namespace {

// Returns the method without the format, which has its own column.
std::string algorithm_text(const PlanEntry& e) {
    const std::string text = method_text(e);
    const size_t space = text.find(' ');
    return space == std::string::npos ? "max" : text.substr(space + 1);
}

std::string group_text(const PlanEntry& e) {
    std::string text = e.scale_group.empty() ? e.search_group : e.scale_group;
    if (text.empty()) text = e.input_group;
    // The tensor's name already shows the layer.
    const size_t brace = text.rfind('{');
    return brace == std::string::npos ? "-" : text.substr(brace);
}

}  // namespace

int64_t PlanEntry::cols() const {
    int64_t n = 1;
    for (size_t i = 1; i < shape.size(); ++i) n *= shape[i];
    return n;
}

std::string method_text(const PlanEntry& entry) {
    const std::string text = to_string(entry.spec);
    return entry.solver ? fmt::format("{}, {}", text, to_string(entry.solver)) : text;
}

std::string to_text(const Plan& plan) {
    using Row = std::array<std::string, 7>;
    std::vector<Row> rows = {{"tensor", "shape", "format", "inputs", "algorithm", "group", "why"}};
    for (const PlanEntry& e : plan.entries) {
        const bool quantized = e.spec.format != Format::none;
        rows.push_back(
            {printable(e.tensor), fmt::format("{}", fmt::join(e.shape, "x")),
             std::string(quantized ? format_name(e.spec.format) : dtype_name(e.dtype)),
             quantized && e.activation != ActivationFormat::none ? std::string(activation_name(e.activation)) : "-",
             quantized ? algorithm_text(e) : "-", quantized ? printable(group_text(e)) : "-", printable(e.reason)});
    }
    Row::size_type columns = rows[0].size();
    std::vector<size_t> width(columns);
    for (const Row& row : rows)
        for (size_t c = 0; c < columns; ++c) width[c] = std::max(width[c], row[c].size());
    std::string text = fmt::format("recipe {}\n", printable(plan.recipe));
    if (plan.weights_only) text += "weights only: inputs stay unquantized (--weights-only)\n";
    if (plan.awq) text += fmt::format("input scales: awq_lite, alpha in steps of {:.2g}\n", plan.awq->alpha_step);
    text += fmt::format("KV cache: {}\n\n", plan.kv == KvFormat::none ? "as it is" : kv_name(plan.kv));
    for (const Row& row : rows) {
        for (size_t c = 0; c + 1 < columns; ++c) text += fmt::format("{:<{}}  ", row[c], width[c]);
        text += row.back() + '\n';
    }
    for (const std::string& head : plan.tied_heads)
        text += fmt::format("{}: shares the tensor of the embeddings and stays unquantized\n", printable(head));
    for (const std::string& warning : plan.warnings) text += fmt::format("warning: {}\n", printable(warning));
    for (const std::string& need : plan.needs_activations)
        text += fmt::format("needs activations: {}\n", printable(need));
    return text;
}

}  // namespace nibble
