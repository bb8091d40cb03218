// The shards of one split as one sequence of tokens with documents, for reading.
#pragma once

#include "data/manifest.h"
#include "data/shard.h"

#include <filesystem>

namespace nibble {

class TokenSet {
public:
    // A split of a folder that build_data() made. Errors: a file that is missing, truncated or not what data.json says
    // (sizes, documents in order). The tokens themselves are looked at when they are read.
    static Result<TokenSet> open(const std::filesystem::path& folder, const DataManifest& manifest, bool validation);

    int64_t tokens() const { return tokens_; }
    int64_t documents() const { return documents_; }
    int64_t vocab() const { return vocab_; }

    struct Slice {
        std::vector<TokenId> ids;
        std::vector<bool> learned;    // of every token
        std::vector<int64_t> starts;  // documents that begin in it, as places in `ids`
    };
    // Tokens [begin, begin + count). Precondition: they are there. Errors: ids beyond the vocabulary, with the file.
    Status read(int64_t begin, int64_t count, Slice& out) const;

    // Document `index`, in the order in which they lie. Precondition: it is there.
    Status read_document(int64_t index, Slice& out) const;

    // Every token against the vocabulary and every shard against its hash. Slow: reads all.
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
