// From the documents and tensors of a folder to canonical tensors: finds the dialect and lets its reader build the
// catalog.
#pragma once

#include "checkpoint/hf_catalog.h"

#include <optional>

namespace nibble {

struct HfContents {
    Dialect dialect = Dialect::plain;
    Json config;  // without its quantization_config
    KvFormat kv = KvFormat::none;
    std::vector<CatalogEntry> entries;  // in file order
    std::vector<std::string> notes;     // Checkpoint::notes()
};

// `files` must outlive the result. Messages name the document, not the folder.
Result<HfContents> read_contents(const ModelFiles& files, Json config, const std::optional<Json>& hf_quant_config,
                                 ScaleReading scales = ScaleReading::checked);

}  // namespace nibble
