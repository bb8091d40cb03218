// Converts a checkpoint to another dialect with the same codes and scales, bit for bit, or decodes it to BF16. GGUF
// stores NVFP4 and MXFP4 unchanged; other formats are decoded to BF16 there. Decoded matrices cannot have input scales,
// and BF16 folders and GGUF files cannot have a KV cache format; these are left out and reported. Anything else that
// the target cannot store is an error; the message contains the value of `drop` that would permit to leave it out.
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

// Values of `drop`, which permit to leave something out:
// input_scale     stored input scales; the inputs become unquantized
// activation      the whole quantization of inputs, stored scales included
// kv_scale        k_scale and v_scale; the KV cache becomes unquantized
// mtp             layers for multi-token prediction; config.json then announces none
struct ConvertOptions {
    Dialect to = Dialect::plain;  // plain: every matrix is decoded to BF16
    std::filesystem::path out;
    std::vector<std::string> drop;
    int64_t max_shard_bytes = 5'000'000'000;
    std::string manifest;  // text of nibble.json
    // README.md of a folder. Metadata and text are taken from the source's README; tags and formats are added. No
    // value: the source's README is copied.
    std::optional<ModelCard> card;
};

struct ConvertReport {
    int64_t tensors = 0;
    int64_t quantized = 0;           // matrices copied with codes and scales
    int64_t decoded = 0;             // matrices decoded to BF16
    int64_t bytes = 0;               // size of all files with weights
    std::vector<std::string> lines;  // messages about everything dropped or rounded
};

// Converts a checkpoint. Before the output gets its final name, it is read again and compared with the source. Errors:
// something that the target cannot store (with the `drop` value that would permit it); an existing output; a full disk;
// a source that changes during the conversion.
Result<ConvertReport> convert(const Checkpoint& in, const ConvertOptions& options, ThreadPool& pool,
                              const JobHooks& hooks);

}  // namespace nibble
