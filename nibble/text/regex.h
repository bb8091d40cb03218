// A search pattern: a literal string, or a regular expression in the syntax of tokenizer.json (Oniguruma), run by
// PCRE2's JIT. `\s` is Unicode White_Space. Escapes with different meanings in the two dialects (\w, \b, \h ...) are
// refused.
#pragma once

#include "text/meter.h"

#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;

namespace nibble {

class Pattern {
public:
    // Errors: a pattern that does not compile, a refused escape or kind of group.
    static Result<Pattern> regex(std::string_view pattern);
    static Pattern literal(std::string text);

    size_t shortest() const { return literal_.size(); }  // the size of every match in bytes; 0: not a literal

private:
    friend class RegexSearch;
    std::string literal_;
    std::shared_ptr<pcre2_real_code_8> code_;  // null for a literal
    bool compiled_ = false;                    // to machine code (JIT)
    int64_t weight_ = 1;                       // steps per 64 characters; grows with the longest class
};

struct RegexWorkspace;  // regex.cpp

struct Span {
    size_t begin = 0, end = 0;
};

// One search through one text, which must be valid UTF-8 and outlive it. Matches are never empty and do not overlap.
// The meter pays for matching and backtracking, because PCRE2's own limits restart at every position of the text.
class RegexSearch {
public:
    RegexSearch(const Pattern& pattern, std::string_view text, Meter& meter);
    ~RegexSearch();
    RegexSearch(const RegexSearch&) = delete;
    RegexSearch& operator=(const RegexSearch&) = delete;

    // Finds the next match; returns false at the end of the text. Errors: a limit of the meter, PCRE2's memory limit.
    Result<bool> next(Span& match);

    // Called while matching at byte `at` of the text. Returns false if the meter's limit is reached.
    bool pay(size_t at);

private:
    const Pattern& pattern_;
    std::string_view text_;
    Meter& meter_;
    size_t at_ = 0, seen_ = 0;  // at_: where the search continues; seen_: position of the last payment
    std::unique_ptr<RegexWorkspace> workspace_;
};

}  // namespace nibble
