// The stored tensors of one quantized matrix, per dialect. Readers and writers use the same table ("x": the file stores
// the multiplier, "1/x": its reciprocal).
//
//             Model Optimizer            compressed-tensors            fp8 (DeepSeek)
//   codes     P.weight                   P.weight_packed (4-bit)       P.weight
//                                        P.weight (8-bit)
//   scales    P.weight_scale             P.weight_scale                P.weight_scale_inv (multiplies)
//   tensor    P.weight_scale_2  x        P.weight_global_scale  1/x
//   input     P.input_scale     x        P.input_global_scale   1/x    NVFP4
//             P.input_scale     x        P.input_scale          x      FP8
//   scalars   []                         [1]
//   tiles     [a, 1, b, 1], one: []      [a, b]                        [a, b]
//   rows      [out]                      [out, 1]
//
// INT4 (compressed-tensors only): weight_packed I32 [out, in/8], weight_scale BF16 [out, in/128], weight_shape I64 [2].
//
// Readers accept more names, dtypes and shapes than these: hf_catalog.cpp.
// Sources: Model Optimizer 0.47 (export/quant_utils.py, unified_export_hf.py), compressed-tensors 0.20 (compressors/).
#pragma once

#include "base/dtype.h"
#include "checkpoint/checkpoint.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// How a matrix and its inputs are stored.
struct Scheme {
    Format format = Format::none;
    ActivationFormat activation = ActivationFormat::none;
    bool operator==(const Scheme&) const = default;
};

// shape: the rows and inputs of a matrix of packed integers.
enum class Part : uint8_t { codes, block_scales, float_scales, tensor_scale, input_scale, shape };

struct StoredPart {
    Part part = Part::codes;
    std::string_view suffix;  // "weight_scale"; the full name is module + "." + suffix
    DType dtype = DType::u8;
    std::vector<int64_t> shape;
    bool divides = false;  // for scalars: the file holds 1/x of the canonical multiplier
};

// Returns the parts in the order in which they are written. Precondition: the format is not none and fits; `dialect` is
// one of the three above.
std::vector<StoredPart> stored_parts(Dialect dialect, Scheme scheme, bool input_scale, int64_t rows, int64_t cols);

// Returns the shape in which a part of a stack of experts is stored: [experts, inputs, outputs] for the part's [experts
// * outputs, inputs].
std::vector<int64_t> stack_shape(std::span<const int64_t> shape, int64_t experts);
// Returns the full name of a part of the stack `name`: "P.experts.up_proj_weight_scale" for "P.experts.up_proj", and
// "P.experts.up_proj.weight_scale" for "P.experts.up_proj.weight".
std::string stack_part_name(std::string_view name, const StoredPart& part);

// Returns "model.layers.0.mlp.up_proj" for "model.layers.0.mlp.up_proj.weight"; empty: the name does not end in
// ".weight".
std::string_view module_of_weight(std::string_view name);
// Returns the name without ".weight"; other names, as those of stacks of experts, are returned unchanged.
std::string_view module_of_tensor(std::string_view name);
// Returns everything before the last dot; empty: there is no dot.
std::string_view parent_name(std::string_view name);
// Returns everything after the last dot.
std::string_view last_name(std::string_view name);

// Returns true if the name ends in ".k_scale", ".v_scale" or ".q_scale": a scale of the KV cache or of the queries,
// plain in every dialect.
bool is_kv_scale_name(std::string_view name);

// Returns true if a tensor that no dialect has taken is part of a quantized matrix, judged by its last name or its
// dtype. Such a tensor must not be copied as a plain weight.
bool looks_quantized(std::string_view name, DType dtype);

}  // namespace nibble
