#include "train/cast_quality.h"

#include "base/fields.h"
#include "page/html.h"
#include "page/numbers.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>

namespace nibble {
namespace {

constexpr std::array<std::string_view, 3> operands{"inputs", "weights", "gradients"};

template <class Unit>
auto parts_of(Unit& unit) {
    return std::array{&unit.inputs, &unit.weights, &unit.gradients};
}

}  // namespace

CastQuality cast_quality(const float* x, int64_t cols, int64_t stride, const CastOperand& o) {
    constexpr int64_t fp8_group = 128, nv_group = 16;
    const int64_t groups = o.block_scales.empty() ? 0 : o.cols / fp8_group;
    double squares = 0, products = 0, errors = 0;
    for (int64_t r = 0; r < o.rows; ++r) {
        const double scale = double{o.scale[o.scale.size() > 1 ? static_cast<size_t>(r) : 0]} / double{o.divisor};
        for (int64_t c = 0; c < cols; ++c) {
            const double block = groups ? double{o.block_scales[static_cast<size_t>(r * groups + c / fp8_group)]} : 1.0;
            const double q = double{o.values[static_cast<size_t>(r * o.cols + c)]} * scale * block;
            const double v = double{round_to_bf16(x[r * stride + c])};
            squares += v * v;
            products += v * q;
            errors += (q - v) * (q - v);
        }
    }
    CastQuality quality;
    if (squares > 0) quality = {.error = errors / squares, .gain = products / squares};
    const auto elements = static_cast<double>(o.rows * o.cols);
    if (elements > 0) {
        quality.zeroed = static_cast<double>(o.zero_blocks * nv_group) / elements;
        quality.saturated = static_cast<double>(o.saturated) / elements;
    }
    return quality;
}

Json to_json(const UnitQuality& unit) {
    Json json{{"unit", unit.name}, {"layer", unit.layer}};
    const auto parts = parts_of(unit);
    for (size_t i = 0; i < operands.size(); ++i)
        if (const auto& q = *parts[i])
            json[operands[i]] = {
                {"error", q->error}, {"gain", q->gain}, {"zeroed", q->zeroed}, {"saturated", q->saturated}};
    return json;
}

Status read_quality(const Json& json, UnitQuality& unit) {
    Fields fields(json);
    NIBBLE_CHECK(fields.need("unit", unit.name));
    NIBBLE_CHECK(fields.need("layer", unit.layer));
    const auto parts = parts_of(unit);
    for (size_t i = 0; i < operands.size(); ++i) {
        if (!json.contains(operands[i])) continue;
        const Json& part = json[operands[i]];
        CastQuality& q = parts[i]->emplace();
        for (auto [key, into] :
             {std::pair{"error", &q.error}, {"gain", &q.gain}, {"zeroed", &q.zeroed}, {"saturated", &q.saturated}})
            NIBBLE_CHECK(Fields(part).need(key, *into));
    }
    return Ok{};
}

std::string quality_section(const std::vector<UnitQuality>& units, int64_t step) {
    if (units.empty()) return {};
    std::string rows;
    for (const UnitQuality& unit : units) {
        rows += "<tr>" + number_cell(unit.layer < 0 ? "–" : fmt::to_string(unit.layer), double(unit.layer)) +
                name_cell(unit.name);
        for (const auto* part : parts_of(unit)) {
            if (!*part) {
                rows += cell("–") + cell("–") + cell("–") + cell("–");
                continue;
            }
            const CastQuality& q = **part;
            const double error = std::sqrt(q.error);
            rows += number_cell(fmt::format("{:.2f}%", 100 * error), error) +
                    number_cell(fmt::format("{:.4f}", q.gain), q.gain) +
                    number_cell(fmt::format("{:.3g}%", 100 * q.zeroed), q.zeroed) +
                    number_cell(fmt::format("{:.3g}%", 100 * q.saturated), q.saturated);
        }
        rows += "</tr>\n";
    }
    std::vector<std::string> heads{"layer", "<unit"};
    for (const std::string_view operand : operands)
        for (const std::string_view what : {"error", "gain", "zeroed", "saturated"})
            heads.push_back(fmt::format("{} {}", operand, what));
    return fmt::format(
        "<section><h2>Quantization error</h2>\n<p class=\"note\">Step {}, first row of the batch. Error: |q - x| / "
        "|x|; gain: &lt;x, q&gt; / &lt;x, x&gt;; zeroed: blocks whose scale is 0; saturated: elements beyond the "
        "largest code.</p>\n{}</section>\n",
        step, table("sortable", heads, rows));
}

}  // namespace nibble
