// The character classes of regular expressions. Dialects differ in them: \d is [0-9] in ECMAScript and every decimal
// digit in Python. A class is therefore a pair: `narrow` is in it by every dialect, `wide` by some. A grammar lets a
// model write only what is in `narrow`, and in a negated class only what is outside of `wide`, so that an answer
// matches whatever dialect checks it.
#pragma once

#include "grammar/expression.h"

#include <optional>
#include <string_view>

namespace nibble {

struct CharacterClass {
    CodeSet narrow, wide;

    CharacterClass inverse() const { return {wide.inverse(), narrow.inverse()}; }
    void add(const CharacterClass& other);
    void add(char32_t first, char32_t last);
};

// Of \d, \D, \w, \W, \s, \S by its letter; nothing for another letter.
std::optional<CharacterClass> class_of_escape(char32_t letter);
// What '.' stands for: everything but line ends.
CharacterClass class_of_dot();
// Of a general category of Unicode, "L" or "Lu"; nothing for another name.
std::optional<CharacterClass> class_of_category(std::string_view name);

}  // namespace nibble
