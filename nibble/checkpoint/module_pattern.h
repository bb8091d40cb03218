// Patterns of module names, as users and lists of exceptions write them: fnmatch ("*.down_proj"), or "re:" and a
// regular expression of Python that matches from the beginning of the name.
#pragma once

#include "checkpoint/fnmatch.h"
#include "text/python_regex.h"

#include <optional>

namespace nibble {

bool is_regex_pattern(std::string_view text);  // begins with "re:"

class ModulePattern {
public:
    // Error: a regular expression that Python rejects.
    static Result<ModulePattern> make(std::string_view text);
    // Error: the expression needs too many steps.
    Result<bool> matches(std::string_view module) const;

private:
    explicit ModulePattern(std::string_view text) : names_(text) {}

    NamePattern names_;
    std::optional<PythonRegex> regex_;
};

}  // namespace nibble
