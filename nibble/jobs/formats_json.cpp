#include "jobs/formats_json.h"

#include "jobs/formats_block.h"
#include "jobs/formats_elements.h"
#include "jobs/formats_text.h"

#include <cmath>

namespace nibble {
namespace {

// Returns infinity and NaN as strings, because JSON has no such numbers.
Json json_number(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    return value;
}

Json element_json(const ElementFormat& e) {
    return Json{{"name", e.name},
                {"bits", e.bits()},
                {"sign_bits", e.sign_bits},
                {"exponent_bits", e.exponent_bits},
                {"mantissa_bits", e.mantissa_bits},
                {"bias", e.bias()},
                {"note", e.note},
                {"special", e.special}};
}

Json block_json(const BlockFormat& b) {
    const FormatLayout layout = format_layout(b.format);
    return Json{{"name", format_name(b.format)},
                {"code_bits", layout.code_bits},
                {"block", layout.block},
                {"bits_per_weight", bits_per_element(b.format, 4096, 4096)},
                {"rule", b.rule}};
}

Json rounded_json(const ElementFormat& e, float x) {
    const uint32_t code = e.encode(x);
    const float y = e.decode(code);
    return Json{{"code", code}, {"value", json_number(y)}, {"error", json_number(double(y) - double(x))}};
}

}  // namespace

Json overview_json() {
    Json elements = Json::array(), blocks = Json::array();
    for (const ElementFormat& e : element_formats()) elements.push_back(element_json(e));
    for (const BlockFormat& b : block_formats()) blocks.push_back(block_json(b));
    return Json{{"elements", std::move(elements)}, {"blocks", std::move(blocks)}};
}

Result<Json> format_json(std::string_view name) {
    if (const ElementFormat* e = find_element(name)) {
        Json json = element_json(*e);
        if (e->bits() > 8) return json;
        Json values = Json::array();
        for (uint32_t code = 0; code < 1u << e->bits(); ++code) values.push_back(json_number(e->decode(code)));
        json["values"] = std::move(values);
        return json;
    }
    for (const BlockFormat& b : block_formats())
        if (format_name(b.format) == name) return block_json(b);
    return fail("unknown format '{}'; formats: {}", name, format_choices());
}

Json numbers_json(std::span<const float> numbers) {
    Json list = Json::array();
    for (const float x : numbers) {
        Json formats = Json::object();
        for (const ElementFormat& e : element_formats()) formats[std::string(e.name)] = rounded_json(e, x);
        list.push_back({{"number", json_number(x)}, {"formats", std::move(formats)}});
    }
    return list;
}

Result<Json> quantized_json(std::string_view name, std::span<const float> numbers, Arithmetic arithmetic,
                            std::optional<float> amax) {
    Json list = Json::array(), scales = Json::object();
    if (const ElementFormat* e = find_element(name)) {
        if (amax) return fail("--amax: {} is not a format with a tensor scale", name);
        for (const float x : numbers) {
            Json rounded = rounded_json(*e, x);
            rounded["number"] = json_number(x);
            list.push_back(std::move(rounded));
        }
    } else {
        NIBBLE_TRY(const BlockTrace trace, trace_block(*format_from_name(name), numbers, arithmetic, amax));
        for (const auto& [scale, value] : trace.scales) scales[scale] = value;
        for (size_t i = 0; i < numbers.size(); ++i)
            list.push_back({{"number", numbers[i]},
                            {"quotient", trace.quotients[i]},
                            {"element", trace.elements[i]},
                            {"code", trace.codes[i]},
                            {"value", trace.values[i]},
                            {"error", double(trace.values[i]) - double(numbers[i])}});
    }
    return Json{{"format", name}, {"scales", std::move(scales)}, {"numbers", std::move(list)}};
}

}  // namespace nibble
