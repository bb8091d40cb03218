// Time of one launch inside a replayed CUDA graph.
#pragma once

#include "tensor/device.h"

#include <functional>

namespace nibble::bench {

struct GraphTiming {
    int launches = 96;  // in the graph; launch(i) gets i = 0 ... launches - 1
    int repeats = 15;   // replays that count, after two that do not
};
// Median microseconds of a launch.
Result<double> graph_time(const Stream& stream, const GraphTiming& timing, const std::function<Status(int)>& launch);

}  // namespace nibble::bench
