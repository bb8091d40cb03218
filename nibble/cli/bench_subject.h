// Flags that name the model to measure.
#pragma once

#include "measure/subject.h"

#include <CLI/CLI.hpp>

#include <string>

namespace nibble {

// A positional argument `name` and --shape with what belongs to it. check_subject() belongs into the command's
// callback.
void add_subject_flags(CLI::App& command, const std::string& name, BenchSubject& subject);
// Throws CLI::RequiredError where neither was given.
void check_subject(const std::string& name, const BenchSubject& subject);

}  // namespace nibble
