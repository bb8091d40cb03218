// The jobs of `nibble convert` and `nibble import`: write a checkpoint in another format, or decoded to BF16.
#pragma once

#include "nibble/command_text.h"
#include "nibble/error.h"
#include "nibble/hooks.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nibble {

// Paths are those of local files. Only `source` and `out` are required.
struct ConvertCheckpointOptions {
    std::string source;  // folder or .gguf file
    std::string out;     // folder or .gguf file to write; must not exist
    std::string format;  // modelopt, compressed-tensors or gguf; bf16 (or plain) decodes. Empty: gguf for a .gguf
                         // output
    // Parts that the output may omit:
    // input_scale  stored input scales; the inputs become unquantized
    // activation   the whole quantization of inputs, stored scales included
    // kv_scale     k_scale and v_scale; the KV cache becomes unquantized
    // mtp          layers for multi-token prediction
    std::vector<std::string> drop;
    std::string max_shard_size = "5GB";  // largest size of a safetensors file
    int threads = 0;                     // 0: one per core
    bool partial = false;                // accept a source that lacks weights which its config.json requires
    CommandText command;
};

// Counts refer to the tensors of the output.
struct ConversionReport {
    int64_t tensors = 0;
    int64_t quantized = 0;           // tensors copied with codes and scales
    int64_t decoded = 0;             // tensors decoded to BF16
    int64_t bytes = 0;               // size of all files with weights
    std::vector<std::string> lines;  // messages about everything dropped or rounded
};

// Converts a checkpoint. Before the output gets its final name, it is read again and compared with the source. A stop
// leaves no output. Errors by kind: usage; file; checkpoint, also if the target format cannot store something that
// `drop` does not name; cancelled.
Result<ConversionReport> convert_checkpoint(const ConvertCheckpointOptions& options, const JobHooks& hooks);

// Only `file` and `out` are required.
struct ImportCheckpointOptions {
    std::string file;  // a .gguf file
    std::string out;   // the folder to write; must not exist
    std::string pre;   // id of the pre-tokenizer, if the file has none or an unknown one
    std::string max_shard_size = "5GB";
    int threads = 0;
    CommandText command;
};

// Counts refer to the folder that was written.
struct ImportReport {
    int64_t tensors = 0, weight_bytes = 0;
    bool tokenizer = false;  // true if the file has a tokenizer
};

// Converts a GGUF file to a Hugging Face folder in BF16 with tokenizer and chat template. A stop leaves no output.
// Errors by kind: those of convert_checkpoint().
Result<ImportReport> import_checkpoint(const ImportCheckpointOptions& options, const JobHooks& hooks);

}  // namespace nibble
