// Byte-pair encoding. A piece becomes symbols (bytes or characters); the neighbours whose pair has the lowest rank are
// merged, the leftmost first, until no pair is in the table. A heap with lazy deletion: O(n log n) for a piece of n
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
    bool byte_level = false;     // token texts are in the byte alphabet, symbols are bytes; else symbols are characters
    bool byte_fallback = false;  // an unknown character becomes its <0xNN> tokens
    bool fuse_unknown = false;   // unknown characters in a row are one unknown token
    bool ignore_merges = false;  // a piece that is a token is taken at once
    std::optional<uint32_t> unknown;
};

class Bpe : public TokenModel {
public:
    // Ranks are positions in `merges`. Errors: a merge of or into what is no token.
    static Result<std::unique_ptr<Bpe>> from_merges(const Vocabulary& vocabulary, const BpeOptions& options,
                                                    const std::vector<std::pair<std::string, std::string>>& merges);
    // sentencepiece's: neighbours merge if their text is a piece, the highest score first. `mergeable` says which ids
    // take part, `score` is per id. Errors: a piece of over 1024 bytes.
    static Result<std::unique_ptr<Bpe>> from_scores(const Vocabulary& vocabulary, const BpeOptions& options,
                                                    const std::vector<bool>& mergeable,
                                                    const std::vector<float>& scores);

    std::unique_ptr<ModelScratch> make_scratch() const override;
    Status encode(std::string_view piece, ModelScratch& scratch, Meter& meter,
                  std::vector<uint32_t>& out) const override;

    // True if some token can be made by merging.
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
    TextIds ids_;                          // texts as symbols concatenate them: bytes, or characters
    std::vector<uint32_t> virtual_texts_;  // of from_scores: code points that are no token but part of one
    std::array<std::optional<uint32_t>, 256> byte_ids_;
    HashTable<Merge> merges_;
    std::vector<bool> made_;
    uint32_t tokens_ = 0;
    bool cut_at_blanks_ = false;  // no merge joins anything before a U+2581 that follows another character
};

}  // namespace nibble
