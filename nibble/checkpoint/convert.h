// The same codes and scales in another dialect, bit for bit, or everything decoded to BF16. GGUF holds NVFP4 and MXFP4
// as they are; other formats are decoded to BF16 there. A decoded matrix has no place for input scales, a BF16 folder
// and a GGUF file have none for a KV cache format: both are left out and reported. Anything else that the target cannot
// carry is an error that names it and the drop that would allow it.
//
//   NIBBLE_TRY(auto in, Checkpoint::open("Qwen3-8B-NVFP4"));
//   NIBBLE_TRY(auto report, convert(*in, {.to = Dialect::compressed_tensors, .out = "Qwen3-8B-CT"}, pool, {}));
#pragma once

#include "base/progress.h"
#include "base/thread_pool.h"
#include "checkpoint/model_card.h"

#include <optional>
#include <string>
#include <vector>

namespace nibble {

// What may be left out, by the name in `drop`:
//   input_scale     stored input scales; inputs they belong to stay unquantized
//   activation      all that is said about inputs, stored scales included
//   kv_scale        k_scale and v_scale; the KV cache stays unquantized
//   mtp             layers for multi-token prediction; config.json announces none then
struct ConvertOptions {
    Dialect to = Dialect::plain;  // plain: every matrix decoded to BF16
    std::filesystem::path out;
    std::vector<std::string> drop;
    int64_t max_shard_bytes = 5'000'000'000;
    std::string manifest;  // text of nibble.json
    // README.md of a folder; its metadata and text follow from the source's README, tags and formats are added. None: a
    // README of the source is copied.
    std::optional<ModelCard> card;
};

struct ConvertReport {
    int64_t tensors = 0;
    int64_t quantized = 0;           // carried with codes and scales
    int64_t decoded = 0;             // turned into BF16
    int64_t bytes = 0;               // of all files with weights
    std::vector<std::string> lines;  // what was dropped or rounded, for people
};

// The new checkpoint is read again and compared with the source before it gets its name.
Result<ConvertReport> convert(const Checkpoint& in, const ConvertOptions& options, ThreadPool& pool,
                              const JobHooks& hooks);

}  // namespace nibble
