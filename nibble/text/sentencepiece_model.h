// tokenizer.model: the fields of sentencepiece's ModelProto (a protobuf) that encoding and decoding need.
#pragma once

#include "base/error.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

struct SentencePieceModel {
    enum class Type : uint64_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
    enum class Algorithm : uint64_t { unigram = 1, bpe = 2, word = 3, character = 4 };
    struct Piece {
        std::string text;
        float score = 0;
        Type type = Type::normal;
    };
    std::vector<Piece> pieces;
    Algorithm algorithm = Algorithm::unigram;
    bool byte_fallback = false, whitespace_as_suffix = false;
    int64_t bos = 1, eos = 2;  // -1: none
    std::string charsmap;      // precompiled normalization
    bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

// Errors: not a protobuf of that structure, a score that is not finite, a piece that is not UTF-8.
Result<SentencePieceModel> parse_sentencepiece(std::string_view bytes);

}  // namespace nibble
