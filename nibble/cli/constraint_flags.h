// Adds flags that constrain answers: a schema, a regular expression, a list or a grammar.
#pragma once

#include "nibble/generate.h"

#include <CLI/CLI.hpp>

namespace nibble {

void add_constraint_flags(CLI::App& command, AnswerForm& form);

}  // namespace nibble
