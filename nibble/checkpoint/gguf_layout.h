// What a list of export tensors becomes in a GGUF file: names, types, shapes, and where the rows of each tensor go.
// Pure: no file is touched.
#pragma once

#include "checkpoint/export.h"
#include "checkpoint/gguf_names.h"
#include "io/gguf_writer.h"

#include <string>

namespace nibble {

// Where one export tensor lies. Its rows all have `row_bytes`; a vector has one entry per row.
struct GgufPlace {
    size_t tensor = 0;   // in GgufExportLayout::tensors
    int64_t offset = 0;  // of the first row: an expert's slice of a stack, else 0
    int64_t row_bytes = 0;
    GgmlType type = GgmlType::f32;
    GgufTransform transform = GgufTransform::none;
    int64_t head_dim = 0;                                                    // above 0: rows move within their head
    std::optional<size_t> scale = std::nullopt, input_scale = std::nullopt;  // the tensors X.scale and X.input_scale
    int64_t element = 0;                                                     // in these two: the expert, else 0
};

struct GgufExportLayout {
    std::vector<GgufTensorSpec> tensors;  // in the order of the export tensors, sidecars after their weight
    std::vector<GgufPlace> places;        // per export tensor
};

// Whether GGUF has a type for the format.
constexpr bool gguf_holds(Format format) { return format == Format::nvfp4 || format == Format::mxfp4; }

// Types: NVFP4 and MXFP4 as they are; vectors, norms, routers and convolutions F32; other plain tensors as declared.
// Every NVFP4 weight gets X.scale (header and sizes must not depend on values), and X.input_scale where one is
// declared.
//
// Errors, with the tensor's name: a name without a counterpart, a format without a GGUF type, rows of NVFP4 that are
// not whole blocks of 64, NVFP4 where llama.cpp takes no X.scale, inputs whose format GGUF cannot say, a stack whose
// experts differ or are not all there, KV cache scales, shapes that contradict config.json.
Result<GgufExportLayout> make_gguf_export_layout(const ExportSpec& spec, const ModelConfig& model,
                                                 const GgufArchitecture& architecture);

}  // namespace nibble
