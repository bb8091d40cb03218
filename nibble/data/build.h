// Converts texts to a folder of token shards (data/manifest.h). Documents are read in order, tokenized on all threads
// and written in order, so that the bytes do not depend on the number of threads. The folder gets its final name when
// it is complete.
#pragma once

#include "base/progress.h"
#include "base/thread_pool.h"
#include "data/document.h"
#include "data/manifest.h"

#include <filesystem>

namespace nibble {

// The validation split: documents chosen by seed and number, or the end of every document, for data with few documents.
enum class ValidationBy : uint8_t { documents, tails };

struct DataBuildOptions {
    std::vector<std::filesystem::path> inputs;  // see find_text_files()
    std::filesystem::path out;                  // must not exist
    std::string separator;  // between documents in plain text files; empty: each file is one document
    double validation = 0;  // fraction of the data, below 1
    ValidationBy validation_by = ValidationBy::documents;
    uint64_t seed = 0;
    // a shard ends after the document that reaches this size; longer documents are split
    int64_t shard_tokens = 100'000'000;
};

// Errors name file and line. A build that fails or is stopped leaves nothing. The next build removes the remains of a
// killed one (OUT.partial).
Result<DataManifest> build_data(const DocumentText& text, const DataBuildOptions& options, ThreadPool& pool,
                                const JobHooks& hooks = {});

}  // namespace nibble
