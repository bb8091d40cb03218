// Reads the documents and tensors of a folder as canonical tensors: determines the dialect, whose reader builds the
// catalog.
#pragma once

#include "checkpoint/hf_catalog.h"

#include <optional>

namespace nibble {

struct HfContents {
    Dialect dialect = Dialect::plain;
    Json config;  // config.json without its quantization_config
    KvFormat kv = KvFormat::none;
    std::vector<CatalogEntry> entries;  // in file order
    std::vector<std::string> notes;     // Checkpoint::notes()
};

// Reads the contents. `files` must outlive the result. Errors name the document, but not the folder.
Result<HfContents> read_contents(const ModelFiles& files, Json config, const std::optional<Json>& hf_quant_config,
                                 ScaleReading scales = ScaleReading::checked,
                                 StackReading stacks = StackReading::split);

}  // namespace nibble
