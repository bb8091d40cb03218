// `nibble bench serve URL|MODEL...`: measures latencies and throughput as clients of a server see them.
#pragma once

#include "cli/command.h"

namespace nibble {

void add_bench_serve(CLI::App& bench, RunCommand& run);

}  // namespace nibble
