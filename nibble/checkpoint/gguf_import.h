// Converts a GGUF file to a Hugging Face folder in BF16: config.json, generation_config.json, tokenizer.json,
// tokenizer_config.json (with the chat template) and model.safetensors, sharded as in transformers.
#pragma once

#include "base/progress.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_source.h"
#include "io/sharding.h"

namespace nibble {

struct GgufImportOptions {
    std::filesystem::path file;  // the .gguf file to read
    std::filesystem::path out;   // the folder to create
    int64_t max_shard_bytes = default_max_shard_bytes;
    int threads = 0;       // 0: one per core
    std::string pre;       // replaces tokenizer.ggml.pre if not empty
    std::string manifest;  // text of nibble.json; empty: none
    std::string card;      // text of README.md; empty: none
};

struct GgufImportResult {
    int64_t tensors = 0, weight_bytes = 0;
    bool tokenizer = false;
};

// Runs the conversion. Fills OUT.partial, syncs it and renames it to OUT; after an error or a stop, OUT.partial is
// removed. Needs about 6 MiB of memory per thread. The bytes do not depend on the number of threads. Warns through the
// hooks about data that a folder cannot store (activation scales) and about a missing tokenizer. Errors: those of
// GgufSource and open_export().
Result<GgufImportResult> import_gguf(const GgufImportOptions& options, const JobHooks& hooks = {});

// Returns generation_config.json and, if the file has a tokenizer, tokenizer.json and tokenizer_config.json.
Result<std::vector<Checkpoint::SideFile>> gguf_side_files(const GgufSource& source, std::string_view pre = {});

}  // namespace nibble
