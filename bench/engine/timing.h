// What `nibble bench` does not time (nibble/bench/): kernels inside a replayed graph.
#pragma once

#include "bench/kit.h"
#include "device/report.h"

namespace nibble::bench {

// Products of one token in one kernel, beside the same ones one after the other.
Status time_chains(const Kit& kit, Report& report);

}  // namespace nibble::bench
