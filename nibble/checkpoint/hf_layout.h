// What a list of export tensors becomes in a Hugging Face folder: stored tensors and JSON documents. Pure: no file is
// touched.
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
    std::vector<StoredTensor> tensors;  // in the order of the export tensors, a matrix' scales after its codes
    std::vector<size_t> first_of;       // export tensor i owns tensors [first_of[i], first_of[i + 1])
    std::vector<std::pair<std::string, std::string>> documents;  // file name, text

    bool has_scalars(size_t i) const;
};

// Errors: a tensor the dialect cannot express, a KV format that contradicts the tensors, side files that would leave
// the folder or overwrite what the export writes.
Result<HfLayout> make_hf_layout(const ExportSpec& spec);

// Lists the modules of exclude_modules and ignore: every unquantized matrix that an engine could take for a quantized
// one (checkpoint/modules.h), whatever the source's list says; what the source lists beyond that; and an lm_head that
// is tied to the embeddings, a linear without a tensor of its own.
std::vector<std::string> unquantized_modules(const ExportSpec& spec);

int64_t rows_of(const ExportTensor& tensor);
int64_t cols_of(const ExportTensor& tensor);  // product of the other dimensions

// compressed-tensors' quantization_config.
Result<Json> compressed_tensors_section(const ExportSpec& spec);

}  // namespace nibble
