// Character classes of regular expressions. Dialects differ: \d is [0-9] in ECMAScript and every decimal digit in
// Python. A class is therefore a pair: `narrow` holds the characters that all dialects include, `wide` those that any
// dialect includes. A grammar allows only `narrow`, and in a negated class only characters outside `wide`, so an answer
// matches in every dialect.
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

// Returns the class of \d, \D, \w, \W, \s or \S by its letter; nothing for another letter.
std::optional<CharacterClass> class_of_escape(char32_t letter);
// Returns the class of '.': everything except line ends.
CharacterClass class_of_dot();
// Returns the class of a Unicode general category, "L" or "Lu"; nothing for an unknown name.
std::optional<CharacterClass> class_of_category(std::string_view name);

}  // namespace nibble
