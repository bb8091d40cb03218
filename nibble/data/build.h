// Texts to a folder of token shards (data/manifest.h): read in order, tokenized on all threads, written in order,
// so that the bytes do not depend on the number of threads. The folder appears under its name when it is whole.
#pragma once

#include "base/progress.h"
#include "base/thread_pool.h"
#include "data/document.h"
#include "data/manifest.h"

#include <filesystem>

namespace nibble {

// What becomes validation: documents drawn by seed and number, or the end of every document, where there are few.
enum class ValidationBy : uint8_t { documents, tails };

struct DataBuildOptions {
    std::vector<std::filesystem::path> inputs;  // find_text_files()
    std::filesystem::path out;                  // must not exist
    std::string separator;                      // between the documents of plain texts; empty: a file is one
    double validation = 0;                      // fraction, below 1
    ValidationBy validation_by = ValidationBy::documents;
    uint64_t seed = 0;
    int64_t shard_tokens = 100'000'000;  // a shard ends behind the document that reaches it; longer documents are cut
};

// Errors name file and line. A build that fails or is stopped leaves nothing; what a killed one left (OUT.partial) is
// removed by the next.
Result<DataManifest> build_data(const DocumentText& text, const DataBuildOptions& options, ThreadPool& pool,
                                const JobHooks& hooks = {});

}  // namespace nibble
