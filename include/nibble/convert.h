// The jobs of `nibble convert` and `nibble import`: a checkpoint in another format, or decoded to BF16.
#pragma once

#include "nibble/command_text.h"
#include "nibble/error.h"
#include "nibble/hooks.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nibble {

struct ConvertCheckpointOptions {
    std::string source;  // folder or .gguf file
    std::string out;     // folder or .gguf file to write; must not exist
    std::string format;  // modelopt, compressed-tensors, gguf; bf16 (or plain) decodes. Empty: gguf for a .gguf output
    // Parts that the output may omit:
    //   input_scale  stored input scales; inputs they belong to stay unquantized
    //   activation   all that is said about inputs, stored scales included
    //   kv_scale     k_scale and v_scale; the KV cache stays unquantized
    //   mtp          layers for multi-token prediction
    std::vector<std::string> drop;
    std::string max_shard_size = "5GB";  // of the safetensors files
    int threads = 0;                     // 0: one per core
    CommandText command;
};

struct ConversionReport {
    int64_t tensors = 0;
    int64_t quantized = 0;           // carried with codes and scales
    int64_t decoded = 0;             // turned into BF16
    int64_t bytes = 0;               // of all files with weights
    std::vector<std::string> lines;  // what was dropped or rounded, for people
};

// The new checkpoint is read again and compared with the source before it gets its name. A stop leaves no output.
// Errors by kind: usage; file; checkpoint, also where the target format has no place for something and `drop` does not
// name it; cancelled.
Result<ConversionReport> convert_checkpoint(const ConvertCheckpointOptions& options, const JobHooks& hooks);

struct ImportCheckpointOptions {
    std::string file;  // a .gguf file
    std::string out;   // the folder to write; must not exist
    std::string pre;   // pre-tokenizer id, where the file names none or an unknown one
    std::string max_shard_size = "5GB";
    int threads = 0;
    CommandText command;
};

struct ImportReport {
    int64_t tensors = 0, weight_bytes = 0;
    bool tokenizer = false;  // the file has one
};

// A GGUF file as a Hugging Face folder in BF16, with tokenizer and chat template. A stop leaves no output. Errors: as
// convert_checkpoint().
Result<ImportReport> import_checkpoint(const ImportCheckpointOptions& options, const JobHooks& hooks);

}  // namespace nibble
