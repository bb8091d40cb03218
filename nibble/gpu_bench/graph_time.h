// Measures the time of one launch inside a replayed graph.
#pragma once

#include "tensor/device.h"

#include <functional>

namespace nibble::bench {

struct GraphTiming {
    int launches = 96;  // launches in the graph; launch(i) is called with i = 0 ... launches - 1
    int repeats = 15;   // timed replays, after two untimed ones
};
struct GraphTime {
    double us = 0, least = 0, most = 0;  // microseconds per launch: median, minimum and maximum over the replays

    double spread() const { return us > 0 ? (most - least) / us : 0; }
};
Result<GraphTime> time_graph(const Stream& stream, const GraphTiming& timing, const std::function<Status(int)>& launch);
// Returns only the median.
Result<double> graph_time(const Stream& stream, const GraphTiming& timing, const std::function<Status(int)>& launch);

}  // namespace nibble::bench
