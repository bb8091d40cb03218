// `nibble bench study MODEL -o FOLDER`: one BF16 checkpoint beside its own in fewer bits: bytes, memory, loading, speed
// at many concurrencies, and what evaluation finds.
#pragma once

#include "base/json.h"
#include "cli/command.h"

#include <string>

namespace nibble {

void add_bench_study(CLI::App& bench, RunCommand& run);

// A study's JSON as a table for the terminal and as a page that stands alone: throughput against time per token, one
// curve a checkpoint. The same study gives the same bytes.
std::string study_text(const Json& study);
std::string study_page(const Json& study);

}  // namespace nibble
