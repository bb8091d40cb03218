// Normalizers of tokenizer.json: they change text before it is split.
#pragma once

#include "base/json.h"
#include "text/regex.h"
#include "text/unicode.h"

#include <variant>
#include <vector>

namespace nibble {

struct ReplaceStep {
    Pattern pattern;
    std::string content;
    Result<std::string> apply(std::string_view text, Meter& meter) const;
};
// Parses {"type": "Replace", "pattern": {"String"|"Regex": …}, "content": …}.
Result<ReplaceStep> parse_replace(const Json& component);
Result<Pattern> parse_pattern(const Json& component);

class Normalizer {
public:
    // Supports NFC, NFD, NFKC, NFKD, Replace, Prepend and Sequence; null changes nothing. Error: any other type, by
    // name.
    static Result<Normalizer> parse(const Json& component);

    // sentencepiece's normalizer: `collapse` merges runs of spaces, `prefix` puts one in front, `escape` turns spaces
    // into U+2581.
    static Normalizer sentencepiece(bool collapse, bool prefix, bool escape);

    bool empty() const { return steps_.empty(); }
    // Returns the largest factor by which the steps can shorten a text in bytes; 0: there is no such factor.
    int64_t most_shrink() const;
    // Precondition: valid UTF-8. Error: a limit of the meter.
    Result<std::string> apply(std::string_view text, Meter& meter) const;

private:
    struct Prepend {
        std::string text;
    };
    struct Collapse {};
    using Step = std::variant<NormalForm, ReplaceStep, Prepend, Collapse>;
    Status add(const Json& component, int depth);
    std::vector<Step> steps_;
};

}  // namespace nibble
