// data.json, the list of contents of a folder of token shards. Beside a shard NAME.bin lie
//   NAME.docs  where its documents begin, uint64 each, the first one 0; a document never crosses a shard
//   NAME.mask  a bit a token, lowest bit first: 1 where the loss counts the token as a label; absent: it counts all
#pragma once

#include "base/json.h"
#include "text/tokenizer.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

inline constexpr std::string_view data_manifest_name = "data.json";

struct DataShardEntry {
    std::string name;                                // "train_000000": without an ending
    int64_t tokens = 0, documents = 0, learned = 0;  // learned: labels that the loss counts
    bool masked = false;                             // NAME.mask is there
    std::string hash;                                // TokenShard::hash
};

struct DataSplit {
    std::vector<DataShardEntry> shards;

    int64_t tokens() const;
    int64_t documents() const;
    int64_t learned() const;
};

struct DataSource {
    std::string path;
    int64_t documents = 0, tokens = 0;
};

struct DataManifest {
    std::string vocabulary;  // vocabulary_hash() of the tokenizer
    int64_t vocab = 0;       // ids are below it
    std::optional<TokenId> end_token;
    std::string validation_by;  // "documents", "tails", or "none"
    double validation_fraction = 0;
    uint64_t seed = 0;
    std::vector<DataSource> sources;
    DataSplit train, validation;
};

// XXH3 of all tokens of a tokenizer by id, 16 hexadecimal digits: whether ids of two tokenizers mean the same.
std::string vocabulary_hash(const Tokenizer& tokenizer);

Json to_json(const DataManifest& manifest);
// Errors name the key.
Result<DataManifest> data_manifest_from_json(const Json& json);

}  // namespace nibble
