// Decoders of tokenizer.json: token texts to text. Supported are ByteLevel alone, or steps that change each token
// (Replace, Metaspace, ByteFallback), then Fuse, then Strip at the start of the text.
#pragma once

#include "base/json.h"
#include "text/normalizer.h"
#include "text/vocabulary.h"

#include <variant>

namespace nibble {

class Decoder {
public:
    // null joins the token texts. Errors: an unsupported decoder or order of decoders, by name.
    static Result<Decoder> parse(const Json& component);
    // sentencepiece's decoder: U+2581 becomes a space and <0xNN> a byte. `strip` drops one space at the start of the
    // text.
    static Decoder sentencepiece(bool strip, bool bytes);

    struct Piece {
        std::string bytes;
        bool partial = false;  // part of a character that other tokens complete
    };
    // Decodes one token; `first`: it begins the text. Precondition: check() has passed for the vocabulary.
    Piece piece(std::string_view token, bool first) const;
    // Errors: a token that replacements make longer than 16 times its length plus 1024 bytes, or that needs too many
    // steps.
    Status check(const Vocabulary& vocabulary, Meter& meter) const;

    bool byte_level() const { return byte_level_; }
    bool whole_runs() const {
        return whole_runs_;
    }  // a run of byte tokens that is not UTF-8 becomes one U+FFFD per byte
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
    bool may_grow_ = false;  // a replacement is longer than the text it replaces, or uses a regular expression
    size_t strip_left_ = 0;
    std::string strip_text_;
    ByteAlphabet alphabet_;
};

}  // namespace nibble
