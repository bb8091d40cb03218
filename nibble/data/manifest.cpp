#include "data/manifest.h"

#include "base/fields.h"
#include "io/journal.h"

namespace nibble {
namespace {

constexpr int64_t data_manifest_version = 1;

Json split_json(const DataSplit& split) {
    Json shards = Json::array();
    for (const DataShardEntry& s : split.shards)
        shards.push_back({{"name", s.name},
                          {"tokens", s.tokens},
                          {"documents", s.documents},
                          {"learned", s.learned},
                          {"masked", s.masked},
                          {"hash", s.hash}});
    return shards;
}

// Names come from a file and become paths, so only names in the builder's form are accepted.
Status check_shard_name(std::string_view name) {
    if (name.empty() || name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") != name.npos)
        return fail("'name': '{}' is not a valid name of a shard", name);
    return Ok{};
}

Result<DataSplit> split_from_json(const Json& json, std::string_view key) {
    DataSplit split;
    NIBBLE_TRY(const Json* shards, Fields(json).array(key));
    for (const Json& item : *shards) {
        DataShardEntry& s = split.shards.emplace_back();
        Fields entry(item, std::string(key));
        NIBBLE_CHECK(entry.need("name", s.name));
        NIBBLE_CHECK(check_shard_name(s.name).within(key));
        NIBBLE_CHECK(entry.need("tokens", s.tokens));
        NIBBLE_CHECK(entry.need("documents", s.documents));
        NIBBLE_CHECK(entry.need("learned", s.learned));
        NIBBLE_CHECK(entry.need("masked", s.masked));
        NIBBLE_CHECK(entry.need("hash", s.hash));
        if (s.tokens < 0 || s.documents < 0 || s.documents > s.tokens)
            return fail("{}: {}: {} tokens cannot be in {} documents", key, s.name, s.tokens, s.documents);
    }
    return split;
}

int64_t sum_of(const DataSplit& split, int64_t DataShardEntry::*what) {
    int64_t sum = 0;
    for (const DataShardEntry& shard : split.shards) sum += shard.*what;
    return sum;
}

}  // namespace

int64_t DataSplit::tokens() const { return sum_of(*this, &DataShardEntry::tokens); }
int64_t DataSplit::documents() const { return sum_of(*this, &DataShardEntry::documents); }
int64_t DataSplit::learned() const { return sum_of(*this, &DataShardEntry::learned); }

std::string vocabulary_hash(const Tokenizer& tokenizer) {
    std::string all;
    const auto size = static_cast<TokenId>(tokenizer.vocab_size());
    for (TokenId id = 0; id < size; ++id) {
        const auto token = tokenizer.token(id);
        all += fmt::format("{} ", token ? static_cast<int64_t>(token->size()) : -1);
        if (token) all += *token;
    }
    return hash_text(all);
}

Json to_json(const DataManifest& m) {
    Json sources = Json::array();
    for (const DataSource& s : m.sources)
        sources.push_back({{"path", s.path}, {"documents", s.documents}, {"tokens", s.tokens}});
    return {{"nibble_data", data_manifest_version},
            {"vocabulary", m.vocabulary},
            {"vocab_size", m.vocab},
            {"end_token", m.end_token ? Json(*m.end_token) : Json()},
            {"validation_by", m.validation_by},
            {"validation_fraction", m.validation_fraction},
            {"seed", m.seed},
            {"sources", sources},
            {"train", split_json(m.train)},
            {"validation", split_json(m.validation)}};
}

Result<DataManifest> data_manifest_from_json(const Json& json) {
    DataManifest m;
    int64_t version = 0;
    Fields fields(json);
    NIBBLE_CHECK(fields.need("nibble_data", version));
    if (version != data_manifest_version)
        return fail("'nibble_data': version {} is not supported, only version {}", version, data_manifest_version);
    NIBBLE_CHECK(fields.need("vocabulary", m.vocabulary));
    NIBBLE_CHECK(fields.need("vocab_size", m.vocab));
    if (m.vocab < 1 || m.vocab > (int64_t{1} << 32)) return fail("'vocab_size': {}", m.vocab);
    NIBBLE_TRY(const Json* end, fields.need("end_token"));
    if (!end->is_null()) {
        TokenId id = 0;
        NIBBLE_CHECK(fields.need("end_token", id));
        m.end_token = id;
    }
    NIBBLE_CHECK(fields.need("validation_by", m.validation_by));
    NIBBLE_CHECK(fields.need("validation_fraction", m.validation_fraction));
    NIBBLE_CHECK(fields.need("seed", m.seed));
    NIBBLE_TRY(const Json* sources, fields.array("sources"));
    for (const Json& item : *sources) {
        DataSource& s = m.sources.emplace_back();
        Fields entry(item, "sources");
        NIBBLE_CHECK(entry.need("path", s.path));
        NIBBLE_CHECK(entry.need("documents", s.documents));
        NIBBLE_CHECK(entry.need("tokens", s.tokens));
    }
    NIBBLE_TRY(m.train, split_from_json(json, "train"));
    NIBBLE_TRY(m.validation, split_from_json(json, "validation"));
    return m;
}

}  // namespace nibble
