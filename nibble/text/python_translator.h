// Python's regular expressions in PCRE2's words. text/python_regex.h runs them.
#pragma once

#include "base/error.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace nibble {

struct TranslatedPattern {
    std::string text;
    uint32_t options = 0;  // of pcre2_compile: PCRE2_CASELESS, PCRE2_MULTILINE, PCRE2_DOTALL
};
// Precondition: the pattern is UTF-8. Errors have Python's words, or name what PCRE2 has no equal of.
Result<TranslatedPattern> translate_python_pattern(std::string_view pattern);

}  // namespace nibble
