// Pre-tokenizers of tokenizer.json: cut a text into the pieces that the model sees, one at a time through a sink.
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
    // `start`: the piece begins the whole text. The view is valid during the call.
    virtual Status piece(std::string_view text, bool start) = 0;
};

class PreTokenizerStage {
public:
    virtual ~PreTokenizerStage() = default;
    virtual Status split(std::string_view text, bool start, Meter& meter, PieceSink& next) const = 0;
};

class PreTokenizer {
public:
    // ByteLevel (last in a Sequence), Split with a String or a Regex and every behaviour, Digits, Metaspace,
    // Whitespace, WhitespaceSplit, Punctuation, Sequence; null: the text is one piece. Errors: any other, by name.
    static Result<PreTokenizer> parse(const Json& component);

    bool byte_level() const { return byte_level_; }  // the model works on bytes
    Status split(std::string_view text, bool start, Meter& meter, PieceSink& out) const;

private:
    Status add(const Json& component, int depth);
    std::vector<std::unique_ptr<PreTokenizerStage>> stages_;
    bool byte_level_ = false;
};

}  // namespace nibble
