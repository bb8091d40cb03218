// Tokens to a tree.
#pragma once

#include "text/jinja_ast.h"

namespace nibble::jinja {

// Throws Failure: wrong syntax, unknown tags, and unknown filters and tests where they would always run (inside of a
// condition, Jinja complains when it gets there, and so does the interpreter).
Body parse(std::string_view source);

}  // namespace nibble::jinja
