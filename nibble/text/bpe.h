// Byte-pair encoding. A piece starts as symbols (bytes or characters). The adjacent pair with the lowest rank is
// merged, leftmost first, until no pair is in the merge table. A heap with lazy deletion gives O(n log n) for n
// symbols.
#pragma once

#include "base/error.h"
#include "text/hash_table.h"
#include "text/model.h"
#include "text/vocabulary.h"

#include <array>
#include <optional>

namespace nibble {

struct BpeOptions {
    bool byte_level = false;     // token texts use the byte alphabet and symbols are bytes; else symbols are characters
    bool byte_fallback = false;  // an unknown character becomes its <0xNN> tokens
    bool fuse_unknown = false;   // consecutive unknown characters become one unknown token
    bool ignore_merges = false;  // a piece that equals a token becomes that token at once
    std::optional<uint32_t> unknown;
};

class Bpe : public TokenModel {
public:
    // Ranks are positions in `merges`. Error: a merge whose parts or result are not tokens.
    static Result<std::unique_ptr<Bpe>> from_merges(const Vocabulary& vocabulary, const BpeOptions& options,
                                                    const std::vector<std::pair<std::string, std::string>>& merges);
    // sentencepiece's rule: two neighbours merge if their text is a piece, highest score first. `mergeable` and
    // `scores` are indexed by id. Error: a piece longer than 1024 bytes.
    static Result<std::unique_ptr<Bpe>> from_scores(const Vocabulary& vocabulary, const BpeOptions& options,
                                                    const std::vector<bool>& mergeable,
                                                    const std::vector<float>& scores);

    std::unique_ptr<ModelScratch> make_scratch() const override;
    bool encodes_bytes() const override { return options_.byte_level || options_.byte_fallback; }
    Status encode(std::string_view piece, ModelScratch& scratch, Meter& meter,
                  std::vector<uint32_t>& out) const override;

    // Returns true if merging can produce token `id`.
    bool makes(uint32_t id) const { return id < made_.size() && made_[id]; }

private:
    struct Merge {
        uint32_t rank = 0, id = 0;
    };
    struct Scratch;
    Bpe(const Vocabulary& vocabulary, const BpeOptions& options);
    Status add_merge(uint32_t left, uint32_t right, uint32_t rank, uint32_t id);
    void find_boundaries(const std::vector<std::string_view>& made);
    Status encode_part(std::string_view part, Scratch& scratch, Meter& meter, std::vector<uint32_t>& out) const;
    Status merge(std::string_view part, Scratch& scratch, Meter& meter, std::vector<uint32_t>& out) const;
    void add_symbols(std::string_view part, Scratch& scratch) const;
    void add_unknown(std::string_view character, Scratch& scratch) const;

    BpeOptions options_;
    TextIds ids_;                          // by text as symbols concatenate it: bytes or characters
    std::vector<uint32_t> virtual_texts_;  // from_scores: code points that are part of a token but not tokens
    std::array<std::optional<uint32_t>, 256> byte_ids_;
    HashTable<Merge> merges_;
    std::vector<bool> made_;
    uint32_t tokens_ = 0;
    size_t longest_ = 1;          // bytes of the longest token: no token is merged from more symbols
    bool cut_at_blanks_ = false;  // no merge joins text across a U+2581 that follows another character
};

}  // namespace nibble
