// Flags that select the model to measure.
#pragma once

#include "measure/subject.h"

#include <CLI/CLI.hpp>

#include <string>

namespace nibble {

// Adds a positional argument `name`, and --shape with its companions. Call check_subject() in the command's callback.
void add_subject_flags(CLI::App& command, const std::string& name, BenchSubject& subject);
// Throws CLI::RequiredError if neither was given.
void check_subject(const std::string& name, const BenchSubject& subject);

}  // namespace nibble
