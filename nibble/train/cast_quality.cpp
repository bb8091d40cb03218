#include "train/cast_quality.h"

#include "base/fields.h"

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

}  // namespace nibble
