// Unigram: the segmentation of a piece with the highest sum of scores (Viterbi over a trie of the vocabulary). Time is
// linear in the length times the longest token.
#pragma once

#include "base/error.h"
#include "text/model.h"
#include "text/trie.h"
#include "text/vocabulary.h"

#include <array>
#include <optional>

namespace nibble {

struct UnigramOptions {
    bool byte_fallback = false;
    std::optional<uint32_t> unknown;
};

class Unigram : public TokenModel {
public:
    // `usable` marks the ids that text may become. An unknown character costs the lowest score minus 10; consecutive
    // unknown characters are one token. Errors: scores that are not finite, an empty piece.
    static Result<std::unique_ptr<Unigram>> from(const Vocabulary& vocabulary, const UnigramOptions& options,
                                                 const std::vector<bool>& usable, const std::vector<double>& scores);

    std::unique_ptr<ModelScratch> make_scratch() const override;
    bool encodes_bytes() const override { return options_.byte_fallback; }
    Status encode(std::string_view piece, ModelScratch& scratch, Meter& meter,
                  std::vector<uint32_t>& out) const override;

private:
    struct Scratch;
    UnigramOptions options_;
    Trie trie_;
    std::vector<double> scores_;
    double unknown_score_ = 0;
    std::array<std::optional<uint32_t>, 256> byte_ids_;
};

}  // namespace nibble
