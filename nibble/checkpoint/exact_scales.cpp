#include "checkpoint/exact_scales.h"

#include "checkpoint/reciprocal.h"
#include "checkpoint/work_folder.h"
#include "formats/minifloat.h"

#include <charconv>
#include <cstdlib>
#include <unordered_map>

namespace nibble {
namespace {

constexpr std::string_view key = "exact_scales";

Result<float> parse_bits(const Json& json) {
    uint32_t bits = 0;
    if (!json.is_string()) return fail("must be a string of 8 hexadecimal digits");
    const auto& text = json.get_ref<const std::string&>();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bits, 16);
    if (error != std::errc{} || text.size() != 8 || end != text.data() + 8)
        return fail("must be a string of 8 hexadecimal digits");
    return float_from_bits(bits);
}

Status put(const Json& entry, std::string_view name, float& stored) {
    const auto at = entry.find(name);
    if (at == entry.end()) return Ok{};
    NIBBLE_TRY(const float exact, parse_bits(*at).within(name));
    const int64_t step = int64_t{float_bits(exact)} - int64_t{float_bits(stored)};
    if (std::abs(step) > 1)
        return fail("{} {} is not the {} of the weights file: remove the file that is stale", name, exact, stored);
    stored = exact;
    return Ok{};
}

}  // namespace

bool has_divisors(Format format) { return format_layout(format).block && format_layout(format).tensor_scale; }

void add_inexact(ExactScales& scales, std::string_view name, Format format, float tensor_scale,
                 std::optional<float> input_scale) {
    if (!has_divisors(format)) return;
    ExactScale kept;
    if (!divisor_of(tensor_scale).exact) kept.tensor_scale = tensor_scale;
    if (input_scale && !divisor_of(*input_scale).exact) kept.input_scale = input_scale;
    if (kept.tensor_scale || kept.input_scale) scales.emplace(name, kept);
}

std::string exact_scales_note(const ExactScales& scales) {
    return fmt::format(
        "{} {} a scale without an exact reciprocal: engines compute one that differs by one FP32 step (6e-8); "
        "nibble.json stores the exact one",
        scales.size(), scales.size() == 1 ? "matrix has" : "matrices have");
}

Result<std::string> with_exact_scales(const std::string& manifest, const ExactScales& scales) {
    if (scales.empty()) return manifest;
    Json json = Json::object();
    if (!manifest.empty()) {
        NIBBLE_TRY(json, parse_json(manifest));
    }
    Json& list = json[key] = Json::object();
    for (const auto& [name, scale] : scales) {
        Json entry = Json::object();
        if (scale.tensor_scale) entry["tensor_scale"] = fmt::format("{:08x}", float_bits(*scale.tensor_scale));
        if (scale.input_scale) entry["input_scale"] = fmt::format("{:08x}", float_bits(*scale.input_scale));
        // push_back: names are unique, and ordered_json's operator[] takes linear time.
        list.get_ref<Json::object_t&>().push_back({name, std::move(entry)});
    }
    return json.dump(1) + "\n";
}

Status apply_exact_scales(const std::filesystem::path& folder, HfContents& contents) {
    const std::filesystem::path path = folder / manifest_name;
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) return Ok{};
    NIBBLE_TRY(const Json json, read_json_file(path));
    const auto scales = json.is_object() ? json.find(key) : json.end();
    if (scales == json.end()) return Ok{};
    if (!scales->is_object()) return fail("{}: {} must be an object", path.string(), key);
    std::unordered_map<std::string_view, CatalogEntry*> entries;
    for (CatalogEntry& e : contents.entries) entries.emplace(e.tensor.name, &e);
    for (const auto& [name, entry] : scales->items()) {
        const auto at = entries.find(name);
        if (at == entries.end() || !entry.is_object())
            return fail("{}: {} names '{}', which is not a quantized tensor of this checkpoint", path.string(), key,
                        name.substr(0, 200));
        const std::string where = fmt::format("{}: {}", path.string(), name);
        NIBBLE_CHECK(put(entry, "tensor_scale", at->second->tensor_scale).within(where));
        if (std::optional<float>& input = at->second->tensor.input_scale)
            NIBBLE_CHECK(put(entry, "input_scale", *input).within(where));
    }
    return Ok{};
}

}  // namespace nibble
