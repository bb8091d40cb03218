// What to look for in a text: a literal string, or a regular expression in the syntax of tokenizer.json (Oniguruma),
// which PCRE2 runs with its compiler. `\s` is Unicode White_Space. Escapes that mean something else in the two
// languages (\w, \b, \h ...) are refused.
#pragma once

#include "base/error.h"

#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;

namespace nibble {

class Pattern {
public:
    // Errors: a pattern that does not compile, an escape that is refused.
    static Result<Pattern> regex(std::string_view pattern);
    static Pattern literal(std::string text);

private:
    friend class Search;
    std::string literal_;
    std::shared_ptr<pcre2_real_code_8> code_;  // null for a literal
    bool compiled_ = false;                    // to machine code
};

struct Span {
    size_t begin = 0, end = 0;
};

// One search through one text, which must be valid UTF-8 and outlive it. Matches are never empty and do not overlap.
class Search {
public:
    Search(const Pattern& pattern, std::string_view text);
    ~Search();
    Search(const Search&) = delete;
    Search& operator=(const Search&) = delete;

    // False at the end of the text. Error: the expression needs more steps than PCRE2 allows.
    Result<bool> next(Span& match);

private:
    const Pattern& pattern_;
    std::string_view text_;
    size_t at_ = 0;
    void* data_ = nullptr;
};

}  // namespace nibble
