// Reads the shards of one split as one sequence of tokens with documents.
#pragma once

#include "data/manifest.h"
#include "data/shard.h"

#include <filesystem>

namespace nibble {

class TokenSet {
public:
    // Opens a split of a folder made by build_data(). Errors: a file is missing, truncated, or differs from data.json
    // (sizes, order of documents). The tokens themselves are checked when they are read.
    static Result<TokenSet> open(const std::filesystem::path& folder, const DataManifest& manifest, bool validation);

    int64_t tokens() const { return tokens_; }
    int64_t documents() const { return documents_; }
    int64_t vocab() const { return vocab_; }

    struct Slice {
        std::vector<TokenId> ids;
        std::vector<bool> learned;    // per token
        std::vector<int64_t> starts;  // indices in `ids` at which documents begin
    };
    // Reads tokens [begin, begin + count), which must exist. Error: an id beyond the vocabulary; it names
    // the file.
    Status read(int64_t begin, int64_t count, Slice& out) const;

    // Reads document `index`, which must exist, in stored order.
    Status read_document(int64_t index, Slice& out) const;

    // Checks every token against the vocabulary and every shard against its hash. It reads all data and is slow.
    Status check_contents() const;

private:
    struct Part {
        TokenShard shard;
        std::string hash;
        int64_t begin = 0, first_document = 0;
        std::vector<uint64_t> starts;
        std::optional<MappedFile> mask;
    };
    static Result<Part> open_part(const std::filesystem::path& folder, const DataShardEntry& entry, int width);

    std::vector<Part> parts_;
    int64_t tokens_ = 0, documents_ = 0, vocab_ = 0;
};

Result<DataManifest> read_data_manifest(const std::filesystem::path& folder);

}  // namespace nibble
