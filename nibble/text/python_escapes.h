// The characters of a regular expression in Python's dialect: escapes and classes, in PCRE2's syntax.
#pragma once

#include "base/error.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nibble {

// The text of a pattern and the position of the next byte.
class PatternCursor {
public:
    explicit PatternCursor(std::string_view text) : text_(text) {}

    bool at_end() const { return at_ >= text_.size(); }
    // Returns the byte `ahead` bytes after the position; 0 after the end.
    char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
    // Skips `c` if it is next.
    bool take(char c) {
        if (at_end() || text_[at_] != c) return false;
        ++at_;
        return true;
    }
    // Returns the next byte or the next character. Precondition: !at_end().
    char next() { return text_[at_++]; }
    char32_t character();
    void skip(size_t bytes) { at_ = std::min(at_ + bytes, text_.size()); }
    // Moves to the next `c`, or to the end if there is none.
    void skip_to(char c) { at_ = std::min(text_.find(c, at_), text_.size()); }
    // Returns the text before the next `c` and moves past it; nothing if there is none.
    std::optional<std::string_view> until(char c);

    size_t place() const { return at_; }
    void go_to(size_t place) { at_ = place; }

private:
    std::string_view text_;
    size_t at_ = 0;
};

inline bool is_pattern_digit(char c) { return c >= '0' && c <= '9'; }
inline bool is_pattern_octal(char c) { return c >= '0' && c <= '7'; }
inline bool is_pattern_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Returns the inside of a class for 'd', 's' or 'w'.
std::string_view category_set(char category, bool ascii);
// Returns the character as written outside and inside of classes.
std::string pattern_literal(char32_t c);

// The functions below read from the cursor. Their errors are worded like Python's.

// Reads an escape that is one character at every position, except octal digits. The backslash was read before.
Result<char32_t> character_escape(PatternCursor& from);
// Reads up to `more` further octal digits of a character whose first digits are `value`.
Result<char32_t> octal_escape(PatternCursor& from, uint32_t value, int more);
// Reads a class from its '['.
Result<std::string> character_class(PatternCursor& from, bool ascii);

}  // namespace nibble
