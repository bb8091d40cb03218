// Parses tokens into a tree.
#pragma once

#include "text/jinja_ast.h"

namespace nibble::jinja {

// Throws Failure: syntax errors, unknown tags, and unknown filters and tests that would always run. Inside a condition,
// the interpreter (like Jinja) reports them only when it reaches them.
Body parse(std::string_view source);

}  // namespace nibble::jinja
