// Translates Python's regular expressions to PCRE2's syntax. text/python_regex.h runs them.
#pragma once

#include "base/error.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace nibble {

struct TranslatedPattern {
    std::string text;
    uint32_t options = 0;  // for pcre2_compile: PCRE2_CASELESS, PCRE2_MULTILINE, PCRE2_DOTALL
};
// Precondition: the pattern is UTF-8. Errors are worded like Python's, or name a construct without an equivalent in
// PCRE2.
Result<TranslatedPattern> translate_python_pattern(std::string_view pattern);

}  // namespace nibble
