// `nibble bench serve URL|MODEL...`: what clients of a server feel.
#pragma once

#include "cli/command.h"

namespace nibble {

void add_bench_serve(CLI::App& bench, RunCommand& run);

}  // namespace nibble
