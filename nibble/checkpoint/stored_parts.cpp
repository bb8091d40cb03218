#include "checkpoint/stored_parts.h"

#include "formats/fp8.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace nibble {
namespace {

using Shape = std::vector<int64_t>;

Shape tile_shape(Dialect dialect, int64_t rows, int64_t cols) {
    const int64_t a = ceil_div<int64_t>(rows, fp8_tile), b = ceil_div<int64_t>(cols, fp8_tile);
    if (dialect != Dialect::modelopt) return {a, b};
    return a * b == 1 ? Shape{} : Shape{a, 1, b, 1};
}

Shape row_shape(Dialect dialect, int64_t rows) { return dialect == Dialect::modelopt ? Shape{rows} : Shape{rows, 1}; }

}  // namespace

std::vector<StoredPart> stored_parts(Dialect dialect, Scheme scheme, bool input_scale, int64_t rows, int64_t cols) {
    const bool ct = dialect == Dialect::compressed_tensors;
    const FormatLayout layout = format_layout(scheme.format);
    const std::string_view scale = dialect == Dialect::fp8 ? "weight_scale_inv" : "weight_scale";
    const Shape scalar = ct ? Shape{1} : Shape{};

    std::vector<StoredPart> parts;
    if (layout.integers)
        parts.push_back({Part::codes, "weight_packed", DType::i32, {rows, cols / 8}});
    else if (layout.code_bits == 4)
        parts.push_back({Part::codes, ct ? "weight_packed" : "weight", DType::u8, {rows, cols / 2}});
    else
        parts.push_back({Part::codes, "weight", DType::f8_e4m3, {rows, cols}});

    if (layout.block)
        parts.push_back(
            {Part::block_scales, scale, layout.e8m0_scales ? DType::u8 : DType::f8_e4m3, {rows, cols / layout.block}});
    if (layout.integers) {
        parts.push_back({Part::float_scales, scale, DType::bf16, {rows, layout.scales_per_row(cols)}});
        parts.push_back({Part::shape, "weight_shape", DType::i64, {2}});
    } else if (layout.float_scales)
        parts.push_back(
            {Part::float_scales, scale, DType::f32,
             scheme.format == Format::fp8_row ? row_shape(dialect, rows) : tile_shape(dialect, rows, cols)});
    if (layout.tensor_scale) {
        if (!layout.block)
            parts.push_back({Part::tensor_scale, scale, DType::f32, scalar});
        else if (ct)
            parts.push_back({Part::tensor_scale, "weight_global_scale", DType::f32, scalar, true});
        else
            parts.push_back({Part::tensor_scale, "weight_scale_2", DType::f32, scalar});
    }
    if (input_scale) {
        const bool divides = ct && scheme.activation == ActivationFormat::nvfp4;
        parts.push_back(
            {Part::input_scale, divides ? "input_global_scale" : "input_scale", DType::f32, scalar, divides});
    }
    return parts;
}

std::vector<int64_t> stack_shape(std::span<const int64_t> shape, int64_t experts) {
    return {experts, shape[1], shape[0] / experts};
}

std::string stack_part_name(std::string_view name, const StoredPart& part) {
    if (part.part == Part::codes) return std::string(name);
    const std::string_view module = module_of_tensor(name);
    return fmt::format("{}{}{}", module, module == name ? "_" : ".", part.suffix);
}

std::string_view module_of_tensor(std::string_view name) {
    const std::string_view module = module_of_weight(name);
    return module.empty() ? name : module;
}

std::string_view parent_name(std::string_view name) {
    const size_t dot = name.rfind('.');
    return dot == std::string_view::npos ? std::string_view{} : name.substr(0, dot);
}

std::string_view last_name(std::string_view name) {
    const size_t dot = name.rfind('.');
    return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

std::string_view module_of_weight(std::string_view name) {
    return last_name(name) == "weight" ? parent_name(name) : std::string_view{};
}

bool is_kv_scale_name(std::string_view name) {
    const std::string_view last = last_name(name);
    return last == "k_scale" || last == "v_scale" || last == "q_scale";
}

bool looks_quantized(std::string_view name, DType dtype) {
    switch (dtype) {
        case DType::u8:
        case DType::i8:
        case DType::f8_e4m3:
        case DType::f8_e5m2:
        case DType::f8_e8m0:
            return true;
        default:
            break;
    }
    constexpr std::array<std::string_view, 25> known{"weight_scale",
                                                     "weight_scale_2",
                                                     "weight_scale_inv",
                                                     "weight_packed",
                                                     "weight_global_scale",
                                                     "weight_shape",
                                                     "weight_g_idx",
                                                     "weight_zero_point",
                                                     "input_scale",
                                                     "input_global_scale",
                                                     "input_zero_point",
                                                     "output_scale",
                                                     "output_zero_point",
                                                     "activation_scale",
                                                     "activation_scale_inv",
                                                     "qscale_weight",
                                                     "qscale_act",
                                                     "input_scale_ub",
                                                     "pre_quant_scale",
                                                     "svdquant_lora_a",
                                                     "svdquant_lora_b",
                                                     "qweight",
                                                     "qzeros",
                                                     "g_idx",
                                                     "q_scale"};
    const std::string_view last = last_name(name);
    if (std::ranges::find(known, last) != known.end()) return true;
    // Stacked experts ("experts.gate_up_proj_weight_scale", "experts.gate_up_proj_blocks") and KV caches with offsets.
    constexpr std::array<std::string_view, 11> endings{"_weight_scale",     "_weight_scale_2",    "_weight_scale_inv",
                                                       "_input_scale",      "_proj_blocks",       "_proj_scales",
                                                       "_proj.k_bias",      "_proj.v_bias",       "_proj_scale_inv",
                                                       "_activation_scale", "_input_global_scale"};
    return std::ranges::any_of(endings, [&](std::string_view ending) { return name.ends_with(ending); });
}

}  // namespace nibble
