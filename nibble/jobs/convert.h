// The jobs of `nibble convert` and `nibble import`: a checkpoint in another dialect, or decoded to BF16.
#pragma once

#include "checkpoint/convert.h"
#include "checkpoint/gguf_import.h"
#include "jobs/job.h"
#include "jobs/manifest.h"

#include <string>
#include <vector>

namespace nibble {

struct ConvertCheckpointOptions {
    std::string source;  // folder or .gguf file
    std::string out;     // folder or .gguf file to write; must not exist
    std::string format;  // modelopt, compressed-tensors, gguf; bf16 (or plain) decodes. Empty: gguf for a .gguf output
    std::vector<std::string> drop;  // what may be left out (checkpoint/convert.h)
    std::string max_shard_size = "5GB";
    int threads = 0;  // 0: one per core
    CommandText command;
};

// The new checkpoint is read again and compared with the source before it gets its name. A stop leaves no output.
// Errors: usage; file; checkpoint, also where the target format has no place for something and `drop` does not name it.
Result<ConvertReport> convert_checkpoint(const ConvertCheckpointOptions& options, const JobHooks& hooks);

struct ImportCheckpointOptions {
    std::string file;  // a .gguf file
    std::string out;   // the folder to write; must not exist
    std::string pre;   // pre-tokenizer id, where the file names none or an unknown one
    std::string max_shard_size = "5GB";
    int threads = 0;
    CommandText command;
};

// A GGUF file as a Hugging Face folder in BF16, with tokenizer and chat template. A stop leaves no output. Errors: as
// convert_checkpoint().
Result<GgufImportResult> import_checkpoint(const ImportCheckpointOptions& options, const JobHooks& hooks);

}  // namespace nibble
