// quant_method fp8: E4M3 codes under scales that multiply, as DeepSeek, transformers (FineGrainedFP8), vLLM, AutoFP8,
// FBGEMM and Mistral publish them. The configuration does not name the quantized modules, and exporters disagree on its
// keys, so the shape of a module's scales decides what they belong to:
//
//   scales of a matrix [R, C]        weights         dynamic inputs       static inputs
//   one                              fp8             FP8 per token        FP8 per tensor
//   [R] or [R, 1]                    fp8_row         FP8 per token        FP8 per tensor
//   [ceil(R / 128), ceil(C / 128)]   fp8_block128    FP8, groups of 128   FP8 per tensor
//   [R, C / 32] of E8M0              mxfp8           MXFP8                -
//   the same, codes of four bits     mxfp4           FP8, groups of 128   -       (DeepSeek-V4's experts)
//
// hf_catalog.cpp has the names of the tensors and the dtypes of the scales.
#include "architecture/config_json.h"
#include "checkpoint/hf_catalog.h"
#include "checkpoint/quant_keys.h"
#include "formats/fp8.h"
#include "io/json_events.h"

#include <algorithm>
#include <array>

namespace nibble {
namespace {

using A = ActivationFormat;
using F = Format;

struct Fp8Layout {
    Format format;
    ActivationFormat dynamic_inputs, static_inputs;
    std::string_view stored_type;
};
constexpr Fp8Layout per_tensor{F::fp8, A::fp8_token, A::fp8, "FP8"};
constexpr Fp8Layout per_row{F::fp8_row, A::fp8_token, A::fp8, "FP8 per row"};
constexpr Fp8Layout per_tile{F::fp8_block128, A::fp8_group128, A::fp8, "FP8 128x128"};
constexpr Fp8Layout mx8{F::mxfp8, A::mxfp8, A::mxfp8, "MXFP8"};
constexpr Fp8Layout mx4{F::mxfp4, A::fp8_group128, A::fp8_group128, "MXFP4"};

struct Fp8Config {
    bool blocks = false;  // a single scale belongs to a tile
    bool static_inputs = false;
    bool plain_inputs = false;  // the loader decodes the weights; inputs stay unquantized
};

// Error: the key has a value that is not among `known`. An absent key and null are accepted.
Status one_of_values(const Json& section, const char* key, std::initializer_list<Json> known) {
    const auto at = section.find(key);
    if (at == section.end() || at->is_null() || std::ranges::find(known, *at) != known.end()) return Ok{};
    std::string list;
    for (const Json& value : known) list += (list.empty() ? "" : ", ") + show_value(value);
    return fail("quantization_config: {}: {} is not known (known: {})", key, show_value(*at), list);
}

Result<Fp8Config> parse_fp8(const Json& section) {
    NIBBLE_CHECK(refuse_changing_keys(section, "quantization_config"));
    NIBBLE_CHECK(one_of_values(section, "weight_block_size", {Json{fp8_tile, fp8_tile}, Json{1, 32}}));
    NIBBLE_CHECK(one_of_values(section, "activation_scheme", {"dynamic", "static"}));
    NIBBLE_CHECK(one_of_values(section, "fmt", {"e4m3", "e4m3fn", "float8_e4m3fn"}));
    NIBBLE_CHECK(one_of_values(section, "scale_fmt", {"float", "ue8m0"}));
    NIBBLE_CHECK(one_of_values(section, "expert_dtype", {"fp8", "fp4"}));
    const auto is = [&](const char* key, const Json& value) { return section.contains(key) && section[key] == value; };
    return Fp8Config{.blocks = section.contains("weight_block_size") && !section["weight_block_size"].is_null(),
                     .static_inputs = is("activation_scheme", "static"),
                     .plain_inputs = is("dequantize", true)};
}

// Returns null if the shape matches no row of the table.
const Fp8Layout* layout_of(const TensorRecord& codes, const TensorRecord& scales, bool blocks) {
    std::vector<int64_t> shape;
    std::ranges::copy_if(scales.shape, std::back_inserter(shape), [](int64_t d) { return d != 1; });
    const auto is = [&](int64_t a, int64_t b) {
        std::vector<int64_t> want;
        for (const int64_t d : {a, b})
            if (d != 1) want.push_back(d);
        return shape == want;
    };
    const bool packed = codes.dtype == DType::u8 || codes.dtype == DType::i8;
    const bool exponents = scales.dtype == DType::f8_e8m0 || scales.dtype == DType::u8;
    const int64_t rows = codes.shape[0], cols = packed ? codes.shape[1] * 2 : codes.shape[1];
    if (packed) return exponents && is(rows, cols / 32) ? &mx4 : nullptr;
    if (blocks && is(ceil_div<int64_t>(rows, fp8_tile), ceil_div<int64_t>(cols, fp8_tile))) return &per_tile;
    if (shape.empty()) return &per_tensor;
    if (is(rows, 1)) return &per_row;
    if (is(ceil_div<int64_t>(rows, fp8_tile), ceil_div<int64_t>(cols, fp8_tile))) return &per_tile;
    return exponents && is(rows, cols / 32) ? &mx8 : nullptr;
}

Status take_fp8(std::string_view module, const Fp8Config& config, Catalog& catalog) {
    const StoredPart codes_part{Part::codes, "weight", DType::f8_e4m3, {}};
    const StoredPart scales_part{
        Part::float_scales, config.blocks ? "weight_scale_inv" : "weight_scale", DType::f32, {}};
    for (const StoredPart& part : {codes_part, scales_part})
        if (!catalog.find_part(module, part))
            return fail("{}: is missing, and config.json (quant_method fp8) needs it",
                        show_name(fmt::format("{}.{}", module, part.suffix)));
    const TensorRecord& codes = *catalog.find_part(module, codes_part)->record;
    const TensorRecord& scales = *catalog.find_part(module, scales_part)->record;
    if (codes.shape.size() != 2)
        return fail("{}: shape {}, but quant_method fp8 needs a matrix", show_name(codes.name),
                    shape_text(codes.shape));
    const Fp8Layout* layout = layout_of(codes, scales, config.blocks);
    if (!layout)
        return fail(
            "{}: {} {} are not the scales of {} {} (known: one, one per row, one per tile of 128 x 128, E8M0 per 32 "
            "inputs)",
            show_name(scales.name), dtype_name(scales.dtype), shape_text(scales.shape), dtype_name(codes.dtype),
            shape_text(codes.shape));
    const ActivationFormat inputs = config.plain_inputs    ? A::none
                                    : config.static_inputs ? layout->static_inputs
                                                           : layout->dynamic_inputs;
    return catalog.take_quantized(module, {layout->format, inputs}, layout->stored_type,
                                  "config.json (quant_method fp8)");
}

}  // namespace

Result<ListedModule> read_fp8(const Json& quantization, Catalog& catalog) {
    const std::string where = "config.json";
    NIBBLE_TRY(const Fp8Config config, parse_fp8(quantization).within(where));
    NIBBLE_CHECK(catalog.take_stacked_codes());
    for (const std::string& module : catalog.quantized_modules()) NIBBLE_CHECK(take_fp8(module, config, catalog));
    NIBBLE_CHECK(catalog.take_kv_scales(std::nullopt));
    NIBBLE_CHECK(catalog.take_zero_points());
    return ListedModule([](std::string_view) { return true; });
}

}  // namespace nibble
