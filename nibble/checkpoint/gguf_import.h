// GGUF to a Hugging Face folder in BF16: config.json, generation_config.json, tokenizer.json, tokenizer_config.json
// (with the chat template) and model.safetensors, sharded like transformers does.
#pragma once

#include "base/progress.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_source.h"
#include "io/sharding.h"

namespace nibble {

struct GgufImportOptions {
    std::filesystem::path file;  // a .gguf file
    std::filesystem::path out;   // the folder to make
    int64_t max_shard_bytes = default_max_shard_bytes;
    int threads = 0;       // 0: one per core
    std::string pre;       // replaces tokenizer.ggml.pre when not empty
    std::string manifest;  // text of nibble.json; empty: none
    std::string card;      // text of README.md; empty: none
};

struct GgufImportResult {
    int64_t tensors = 0, weight_bytes = 0;
    bool tokenizer = false;
};

// Fills OUT.partial, syncs it and renames it to OUT; on an error or a stop, OUT.partial is removed. Memory: about 6 MiB
// per thread. The bytes do not depend on the number of threads. Warns through the hooks about what a folder cannot hold
// (activation scales) and about a missing tokenizer. Errors: what GgufSource and open_export refuse.
Result<GgufImportResult> import_gguf(const GgufImportOptions& options, const JobHooks& hooks = {});

// generation_config.json and, if the file has a tokenizer, tokenizer.json and tokenizer_config.json.
Result<std::vector<Checkpoint::SideFile>> gguf_side_files(const GgufSource& source, std::string_view pre = {});

}  // namespace nibble
