// Time of one launch inside a replayed graph.
#pragma once

#include "tensor/device.h"

#include <functional>

namespace nibble::bench {

struct GraphTiming {
    int launches = 96;  // in the graph; launch(i) gets i = 0 ... launches - 1
    int repeats = 15;   // replays that count, after two that do not
};
struct GraphTime {
    double us = 0, least = 0, most = 0;  // of a launch: median over the replays, and its ends

    double spread() const { return us > 0 ? (most - least) / us : 0; }
};
Result<GraphTime> time_graph(const Stream& stream, const GraphTiming& timing, const std::function<Status(int)>& launch);
// The median alone.
Result<double> graph_time(const Stream& stream, const GraphTiming& timing, const std::function<Status(int)>& launch);

}  // namespace nibble::bench
