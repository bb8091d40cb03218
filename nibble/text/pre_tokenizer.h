// Pre-tokenizers of tokenizer.json: they split a text into pieces for the model and pass them to a sink one by one.
#pragma once

#include "base/json.h"
#include "text/meter.h"

#include <memory>
#include <string_view>
#include <vector>

namespace nibble {

class PieceSink {
public:
    virtual ~PieceSink() = default;
    // `start`: the piece begins the whole text. `text` is valid during the call.
    virtual Status piece(std::string_view text, bool start) = 0;
};

class PreTokenizerStage {
public:
    virtual ~PreTokenizerStage() = default;
    virtual Status split(std::string_view text, bool start, Meter& meter, PieceSink& next) const = 0;
    virtual bool keeps_text() const { return true; }  // false: parts of a text can be in no piece
};

class PreTokenizer {
public:
    // Supports ByteLevel (last in a Sequence), Split with a String or Regex and every behaviour, Digits, Metaspace,
    // Whitespace, WhitespaceSplit, Punctuation and Sequence; null keeps the text as one piece. Error: any other type,
    // by name.
    static Result<PreTokenizer> parse(const Json& component);

    bool byte_level() const { return byte_level_; }  // pieces consist of bytes in the byte alphabet
    bool keeps_text() const { return keeps_text_; }  // every byte of the text is part of a piece
    Status split(std::string_view text, bool start, Meter& meter, PieceSink& out) const;

private:
    Status add(const Json& component, int depth);
    std::vector<std::unique_ptr<PreTokenizerStage>> stages_;
    bool byte_level_ = false, keeps_text_ = true;
};

}  // namespace nibble
