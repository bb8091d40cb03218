// data.json, the table of contents of a folder of token shards. Each shard NAME.bin comes with
//   NAME.docs  offsets of its documents, uint64 each, the first one 0; a document never spans two shards
//   NAME.mask  one bit per token, lowest bit first: 1 if the token is a label of the loss; absent: all tokens are
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
    std::string name;                                // such as "train_000000", without extension
    int64_t tokens = 0, documents = 0, learned = 0;  // learned: labels of the loss
    bool masked = false;                             // NAME.mask exists
    std::string hash;                                // see TokenShard::hash()
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
    int64_t vocab = 0;       // all ids are below it
    std::optional<TokenId> end_token;
    std::string validation_by;  // "documents", "tails", or "none"
    double validation_fraction = 0;
    uint64_t seed = 0;
    std::vector<DataSource> sources;
    DataSplit train, validation;
};

// Returns the XXH3 hash of all tokens of a tokenizer by id, 16 hexadecimal digits. Tokenizers with equal hashes have
// the same ids.
std::string vocabulary_hash(const Tokenizer& tokenizer);

Json to_json(const DataManifest& manifest);
// Errors name the key.
Result<DataManifest> data_manifest_from_json(const Json& json);

}  // namespace nibble
