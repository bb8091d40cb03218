// Splits template text into tokens, with trim_blocks and lstrip_blocks on, as in transformers.
#pragma once

#include "text/jinja_value.h"

namespace nibble::jinja {

enum class TokenKind : uint8_t {
    data,
    variable_begin,
    variable_end,
    block_begin,
    block_end,
    name,
    string,
    integer,
    real,
    op,
    end
};

struct Token {
    TokenKind kind;
    int line;
    std::string text;  // for data, name, string (decoded) and op
    int64_t integer = 0;
    double real = 0;
};

// Throws Failure. Precondition: `source` is valid UTF-8.
std::vector<Token> tokenize(std::string_view source);

}  // namespace nibble::jinja
