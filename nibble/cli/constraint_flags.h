// Flags that hold answers to a schema, an expression, a list or a grammar.
#pragma once

#include "cli/command.h"
#include "grammar/grammar.h"

#include <memory>
#include <string>
#include <vector>

namespace nibble {

struct ConstraintFlags {
    std::string json_schema, regex, grammar;
    std::vector<std::string> choices;
    bool json_object = false;
};
void add_constraint_flags(CLI::App& command, ConstraintFlags& flags);
// Null: answers are free. Errors name the flag.
Result<std::shared_ptr<const Grammar>> constraint_grammar(const ConstraintFlags& flags);

}  // namespace nibble
