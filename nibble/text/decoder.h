// Decoders of tokenizer.json: token texts to text. A chain of ByteLevel alone, or of what changes each token (Replace,
// Metaspace, ByteFallback), then Fuse, then Strip at the start of the text.
#pragma once

#include "base/json.h"
#include "text/normalizer.h"
#include "text/vocabulary.h"

#include <variant>

namespace nibble {

class Decoder {
public:
    // null: token texts, joined. Errors: a decoder or an order of decoders that is not supported, by name.
    static Result<Decoder> parse(const Json& component);
    // U+2581 is a space, one in front of the text is dropped if `strip`; <0xNN> are bytes.
    static Decoder sentencepiece(bool strip, bool bytes);

    struct Piece {
        std::string bytes;
        bool partial = false;  // bytes of a character that other tokens complete; else whole characters
    };
    // What a token becomes; `first`: it begins the text. Precondition: check() has passed the token's vocabulary.
    Piece piece(std::string_view token, bool first) const;
    // Error: a token that replacements make longer than 16 times itself and 1024 bytes, or that costs too many steps.
    Status check(const Vocabulary& vocabulary, Meter& meter) const;

    bool byte_level() const { return byte_level_; }
    bool whole_runs() const { return whole_runs_; }  // a run of byte tokens that is not UTF-8 is U+FFFD for each byte
    size_t strip_left() const { return strip_left_; }
    std::string_view strip_text() const { return strip_text_; }  // one character

private:
    struct Metaspace {
        std::string mark;
        bool drop_first;
    };
    Status add(const Json& component, int depth);
    Result<Piece> changed(std::string_view token, bool first, Meter& meter) const;
    std::vector<std::variant<ReplaceStep, Metaspace>> each_;
    bool byte_level_ = false, byte_fallback_ = false, fused_ = false, whole_runs_ = true;
    bool may_grow_ = false;  // a replacement is longer than what it stands for, or looks for a regular expression
    size_t strip_left_ = 0;
    std::string strip_text_;
    ByteAlphabet alphabet_;
};

}  // namespace nibble
