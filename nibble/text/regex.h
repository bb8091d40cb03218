// What to look for in a text: a literal string, or a regular expression in the syntax of tokenizer.json (Oniguruma),
// which PCRE2 runs with its compiler. `\s` is Unicode White_Space. Escapes that mean something else in the two
// languages (\w, \b, \h ...) are refused.
#pragma once

#include "text/meter.h"

#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;

namespace nibble {

class Pattern {
public:
    // Errors: a pattern that does not compile, an escape or a kind of group that is refused.
    static Result<Pattern> regex(std::string_view pattern);
    static Pattern literal(std::string text);

    size_t shortest() const { return literal_.size(); }  // bytes of a match at least; 0: not known

private:
    friend class RegexSearch;
    std::string literal_;
    std::shared_ptr<pcre2_real_code_8> code_;  // null for a literal
    bool compiled_ = false;                    // to machine code
    int64_t weight_ = 1;                       // steps for 64 characters: grows with the longest class
};

struct RegexWorkspace;  // regex.cpp

struct Span {
    size_t begin = 0, end = 0;
};

// One search through one text, which must be valid UTF-8 and outlive it. Matches are never empty and do not overlap.
// What the expression tries and where it goes back is paid from the meter: PCRE2's own limits start anew at every place
// of the text.
class RegexSearch {
public:
    RegexSearch(const Pattern& pattern, std::string_view text, Meter& meter);
    ~RegexSearch();
    RegexSearch(const RegexSearch&) = delete;
    RegexSearch& operator=(const RegexSearch&) = delete;

    // False at the end of the text. Errors: the meter's; the expression needs more memory than PCRE2 is given.
    Result<bool> next(Span& match);

    // The expression is at a byte of the text: false when the meter refuses.
    bool pay(size_t at);

private:
    const Pattern& pattern_;
    std::string_view text_;
    Meter& meter_;
    size_t at_ = 0, seen_ = 0;  // where the search goes on; where the expression was when it paid last
    std::unique_ptr<RegexWorkspace> workspace_;
};

}  // namespace nibble
