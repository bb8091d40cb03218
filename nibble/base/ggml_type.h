// The tensor types of GGUF files: id, name, elements and bytes per block. They are in base because io/ and formats/
// both need them and must not include each other. Source: ggml/include/ggml.h and gguf-py GGML_QUANT_SIZES (0.19).
// Other ids (retired, or private to a fork) are errors.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace nibble {

// clang-format off
enum class GgmlType : uint32_t {
    f32 = 0, f16 = 1, q4_0 = 2, q4_1 = 3, q5_0 = 6, q5_1 = 7, q8_0 = 8, q8_1 = 9,
    q2_k = 10, q3_k = 11, q4_k = 12, q5_k = 13, q6_k = 14, q8_k = 15,
    iq2_xxs = 16, iq2_xs = 17, iq3_xxs = 18, iq1_s = 19, iq4_nl = 20, iq3_s = 21, iq2_s = 22, iq4_xs = 23,
    i8 = 24, i16 = 25, i32 = 26, i64 = 27, f64 = 28, iq1_m = 29, bf16 = 30,
    tq1_0 = 34, tq2_0 = 35, mxfp4 = 39, nvfp4 = 40, q1_0 = 41, q2_0 = 42,
};
// clang-format on

struct GgmlTypeInfo {
    GgmlType type;
    std::string_view name;  // ggml's name in upper case: "Q4_K"
    int64_t block;          // elements per block, along the contiguous axis
    int64_t bytes;          // bytes per block
};

inline constexpr std::array ggml_types{
    GgmlTypeInfo{GgmlType::f32, "F32", 1, 4},
    GgmlTypeInfo{GgmlType::f16, "F16", 1, 2},
    GgmlTypeInfo{GgmlType::q4_0, "Q4_0", 32, 18},
    GgmlTypeInfo{GgmlType::q4_1, "Q4_1", 32, 20},
    GgmlTypeInfo{GgmlType::q5_0, "Q5_0", 32, 22},
    GgmlTypeInfo{GgmlType::q5_1, "Q5_1", 32, 24},
    GgmlTypeInfo{GgmlType::q8_0, "Q8_0", 32, 34},
    GgmlTypeInfo{GgmlType::q8_1, "Q8_1", 32, 36},
    GgmlTypeInfo{GgmlType::q2_k, "Q2_K", 256, 84},
    GgmlTypeInfo{GgmlType::q3_k, "Q3_K", 256, 110},
    GgmlTypeInfo{GgmlType::q4_k, "Q4_K", 256, 144},
    GgmlTypeInfo{GgmlType::q5_k, "Q5_K", 256, 176},
    GgmlTypeInfo{GgmlType::q6_k, "Q6_K", 256, 210},
    GgmlTypeInfo{GgmlType::q8_k, "Q8_K", 256, 292},
    GgmlTypeInfo{GgmlType::iq2_xxs, "IQ2_XXS", 256, 66},
    GgmlTypeInfo{GgmlType::iq2_xs, "IQ2_XS", 256, 74},
    GgmlTypeInfo{GgmlType::iq3_xxs, "IQ3_XXS", 256, 98},
    GgmlTypeInfo{GgmlType::iq1_s, "IQ1_S", 256, 50},
    GgmlTypeInfo{GgmlType::iq4_nl, "IQ4_NL", 32, 18},
    GgmlTypeInfo{GgmlType::iq3_s, "IQ3_S", 256, 110},
    GgmlTypeInfo{GgmlType::iq2_s, "IQ2_S", 256, 82},
    GgmlTypeInfo{GgmlType::iq4_xs, "IQ4_XS", 256, 136},
    GgmlTypeInfo{GgmlType::i8, "I8", 1, 1},
    GgmlTypeInfo{GgmlType::i16, "I16", 1, 2},
    GgmlTypeInfo{GgmlType::i32, "I32", 1, 4},
    GgmlTypeInfo{GgmlType::i64, "I64", 1, 8},
    GgmlTypeInfo{GgmlType::f64, "F64", 1, 8},
    GgmlTypeInfo{GgmlType::iq1_m, "IQ1_M", 256, 56},
    GgmlTypeInfo{GgmlType::bf16, "BF16", 1, 2},
    GgmlTypeInfo{GgmlType::tq1_0, "TQ1_0", 256, 54},
    GgmlTypeInfo{GgmlType::tq2_0, "TQ2_0", 256, 66},
    GgmlTypeInfo{GgmlType::mxfp4, "MXFP4", 32, 17},
    GgmlTypeInfo{GgmlType::nvfp4, "NVFP4", 64, 36},
    GgmlTypeInfo{GgmlType::q1_0, "Q1_0", 128, 18},
    GgmlTypeInfo{GgmlType::q2_0, "Q2_0", 64, 18},
};

constexpr std::optional<GgmlTypeInfo> ggml_type_from_id(uint32_t id) {
    for (const GgmlTypeInfo& info : ggml_types)
        if (static_cast<uint32_t>(info.type) == id) return info;
    return std::nullopt;
}

// Precondition: `type` is an enumerator. The tests check that every enumerator has a row.
constexpr const GgmlTypeInfo& ggml_type_info(GgmlType type) {
    for (const GgmlTypeInfo& info : ggml_types)
        if (info.type == type) return info;
    return ggml_types[0];
}

constexpr std::string_view ggml_type_name(GgmlType type) { return ggml_type_info(type).name; }

}  // namespace nibble
