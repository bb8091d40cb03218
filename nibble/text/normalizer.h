// Normalizers of tokenizer.json: text to text, before it is cut.
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
// Of a component {"type": "Replace", "pattern": {"String"|"Regex": …}, "content": …}.
Result<ReplaceStep> parse_replace(const Json& component);
Result<Pattern> parse_pattern(const Json& component);

class Normalizer {
public:
    // NFC, NFD, NFKC, NFKD, Replace, Prepend, Sequence; null: nothing. Errors: any other, by name.
    static Result<Normalizer> parse(const Json& component);

    // sentencepiece's: spaces collapsed if `collapse`, one put in front if `prefix`, then all become U+2581.
    static Normalizer sentencepiece(bool collapse, bool prefix, bool escape);

    bool empty() const { return steps_.empty(); }
    // Precondition: valid UTF-8. Errors: the meter's.
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
