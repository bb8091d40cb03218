// Modules that a user names in options, by patterns (checkpoint/module_pattern.h).
#pragma once

#include "base/error.h"
#include "checkpoint/module_pattern.h"
#include "checkpoint/modules.h"

#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// Returns the names of the modules that match. They refer to `modules`. Error: a pattern that is not valid.
Result<std::set<std::string_view>> modules_named(std::string_view pattern, std::span<const Module> modules);

// Makes the matrices that match linear layers. Returns a note that lists them by kind, with counts; empty: all matches
// were linear layers already. Error: a pattern that matches nothing that could be one.
Result<std::string> take_named_linears(std::span<const std::string> patterns, std::vector<Module>& modules);

}  // namespace nibble
