// Computes the stored tensors and JSON documents of a Hugging Face folder from a list of export tensors. Touches no
// file.
#pragma once

#include "checkpoint/export.h"
#include "checkpoint/stored_parts.h"
#include "io/safetensors_writer.h"

#include <utility>

namespace nibble {

struct StoredTensor {
    TensorSpec spec;
    int64_t bytes = 0;
    Part part = Part::codes;  // plain tensors are `codes`
    bool divides = false;
};

struct HfLayout {
    std::vector<StoredTensor> tensors;  // in the order of the export tensors, the scales of a matrix after its codes
    std::vector<size_t> first_of;       // export tensor i has tensors [first_of[i], first_of[i + 1])
    std::vector<std::pair<std::string, std::string>> documents;  // file name, text

    bool has_scalars(size_t i) const;
};

// Computes the layout. Errors: a tensor that the dialect cannot store, a KV format that contradicts the tensors, side
// files whose names would leave the folder or overwrite files of the export.
Result<HfLayout> make_hf_layout(const ExportSpec& spec);

// Returns the modules for exclude_modules and ignore: every unquantized matrix that an engine could assume to be
// quantized (checkpoint/modules.h), all further modules in the source's list, and an lm_head that is tied to the
// embeddings (a linear without a tensor).
std::vector<std::string> unquantized_modules(const ExportSpec& spec);

int64_t rows_of(const ExportTensor& tensor);
int64_t cols_of(const ExportTensor& tensor);  // product of the other dimensions

// Returns the quantization_config of compressed-tensors. Error: a scheme that it cannot express.
Result<Json> compressed_tensors_section(const ExportSpec& spec);

}  // namespace nibble
