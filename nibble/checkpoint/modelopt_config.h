// Model Optimizer's two configuration documents (hf_quant_config.json, and quantization_config in config.json) and the
// names of its algorithms. Source: Model Optimizer 0.47, export/convert_hf_config.py and export/quant_utils.py.
#pragma once

#include "checkpoint/stored_parts.h"

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace nibble {

struct ModeloptAlgo {
    std::string_view name;  // "NVFP4"; lower case where Model Optimizer writes its internal name
    Scheme scheme;
    int group_size = 0;  // as written; 0: no such key
};

// The algorithm that writes a scheme; null when Model Optimizer has none.
const ModeloptAlgo* modelopt_algo_for(Scheme scheme);
// Whether its name, if it has one, says what inputs are: "mxfp4" is written for both kinds, and read as the first.
bool modelopt_says_inputs(Scheme scheme);
// The algorithm of a file. Errors: an unknown name, a group size that the algorithm does not have.
Result<const ModeloptAlgo*> modelopt_algo_named(std::string_view name, std::optional<int64_t> group_size);

// What either document says.
struct ModeloptConfig {
    const ModeloptAlgo* algo = nullptr;  // null: MIXED_PRECISION (see layers) or none at all
    bool mixed = false;
    bool plain_inputs = false;  // says that inputs are not quantized, whatever the name of the algorithm
    KvFormat kv = KvFormat::none;
    std::vector<std::string> exclude;
    std::vector<std::pair<std::string, const ModeloptAlgo*>> layers;  // module, or a prefix of modules
};

// `section`: the value of quantization_config.
Result<ModeloptConfig> parse_modelopt_section(const Json& section);
// `document`: all of hf_quant_config.json.
Result<ModeloptConfig> parse_hf_quant_config(const Json& document);

// Both documents for what is written. Error: a scheme Model Optimizer cannot express, naming the tensor.
struct ModeloptDocuments {
    Json section, hf_quant_config;
};
struct ExportSpec;
Result<ModeloptDocuments> modelopt_documents(const ExportSpec& spec);

}  // namespace nibble
