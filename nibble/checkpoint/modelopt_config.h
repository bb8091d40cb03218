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
    std::string_view name;  // "NVFP4"; lower case for names that are internal to Model Optimizer
    Scheme scheme;
    int group_size = 0;  // the key's value in files; 0: there is no such key
};

// Returns the algorithm whose name is written for a scheme; null: Model Optimizer has none.
const ModeloptAlgo* modelopt_algo_for(Scheme scheme);
// Returns true if the algorithm's name determines the format of the inputs. "mxfp4" is written for both kinds and read
// as unquantized inputs.
bool modelopt_says_inputs(Scheme scheme);
// Returns the algorithm of a file. Errors: an unknown name, a group size that the algorithm does not support.
Result<const ModeloptAlgo*> modelopt_algo_named(std::string_view name, std::optional<int64_t> group_size);

// The contents of hf_quant_config.json, or of quantization_config in config.json.
struct ModeloptConfig {
    const ModeloptAlgo* algo = nullptr;  // null: MIXED_PRECISION (see layers), or no algorithm
    bool mixed = false;
    bool plain_inputs = false;  // the document states that inputs are not quantized, whatever the algorithm's name
    KvFormat kv = KvFormat::none;
    std::vector<std::string> exclude;
    std::vector<std::pair<std::string, const ModeloptAlgo*>> layers;  // (module or prefix of modules, algorithm)
};

// Parses the value of quantization_config. Errors of both parsers: an unknown algorithm, a key with an unsupported
// value.
Result<ModeloptConfig> parse_modelopt_section(const Json& section);
// Parses all of hf_quant_config.json.
Result<ModeloptConfig> parse_hf_quant_config(const Json& document);

// Returns both documents for an export. Error: a scheme that Model Optimizer cannot express, with the tensor's name.
struct ModeloptDocuments {
    Json section, hf_quant_config;
};
struct ExportSpec;
Result<ModeloptDocuments> modelopt_documents(const ExportSpec& spec);

}  // namespace nibble
