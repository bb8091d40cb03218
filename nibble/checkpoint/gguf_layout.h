// Computes the layout of a GGUF file from a list of export tensors: names, types, shapes, and the place of each
// tensor's rows. Touches no file.
#pragma once

#include "checkpoint/export.h"
#include "checkpoint/gguf_names.h"
#include "io/gguf_writer.h"

#include <string>

namespace nibble {

// The place of one export tensor. Every row has `row_bytes` bytes; a vector has one entry per row.
struct GgufPlace {
    size_t tensor = 0;   // index in GgufExportLayout::tensors
    int64_t offset = 0;  // offset of the first row: that of an expert's slice in a stack, else 0
    int64_t row_bytes = 0;
    GgmlType type = GgmlType::f32;
    GgufTransform transform = GgufTransform::none;
    int64_t head_dim = 0;  // if positive, rows are permuted within each head
    GgufValueHeads value_rows{}, value_columns{};
    std::optional<size_t> scale = std::nullopt, input_scale = std::nullopt;  // indices of the tensors X.scale and
                                                                             // X.input_scale
    int64_t element = 0;  // the element of those two tensors: the expert, else 0
};

struct GgufExportLayout {
    std::vector<GgufTensorSpec> tensors;  // in the order of the export tensors; X.scale and X.input_scale after their
                                          // weight
    std::vector<GgufPlace> places;        // one per export tensor
};

// Returns true if GGUF has a type for the format.
constexpr bool gguf_holds(Format format) { return format == Format::nvfp4 || format == Format::mxfp4; }

// Computes the layout. Types: NVFP4 and MXFP4 unchanged; vectors, norms, routers and convolutions F32; other plain
// tensors as declared. Every NVFP4 weight gets X.scale (header and sizes must not depend on values), and X.input_scale
// if one is declared.
//
// Errors, with the tensor's name: a name without a GGUF name; a format without a GGUF type; NVFP4 rows that are not
// whole blocks of 64; NVFP4 where llama.cpp reads no X.scale; an input format that GGUF cannot express; a stack whose
// experts differ or are incomplete; KV cache scales; shapes that contradict config.json.
Result<GgufExportLayout> make_gguf_export_layout(const ExportSpec& spec, const ModelConfig& model,
                                                 const GgufArchitecture& architecture);

}  // namespace nibble
