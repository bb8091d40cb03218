#include "gpu_bench/graph_time.h"

#include <algorithm>

namespace nibble::bench {

Result<GraphTime> time_graph(const Stream& stream, const GraphTiming& timing,
                             const std::function<Status(int)>& launch) {
    NIBBLE_CHECK(launch(0));
    NIBBLE_CHECK(stream.synchronize());
    NIBBLE_TRY(const Graph graph, Graph::capture(stream, [&]() -> Status {
                   for (int i = 0; i < timing.launches; ++i) NIBBLE_CHECK(launch(i));
                   return Ok{};
               }));
    NIBBLE_TRY(Event begin, Event::create());
    NIBBLE_TRY(Event end, Event::create());
    std::vector<double> times;
    for (int r = -2; r < timing.repeats; ++r) {
        NIBBLE_CHECK(begin.record(stream));
        NIBBLE_CHECK(graph.launch(stream));
        NIBBLE_CHECK(end.record(stream));
        NIBBLE_CHECK(end.synchronize());
        NIBBLE_TRY(const float ms, end.since(begin));
        if (r >= 0) times.push_back(ms * 1e3 / timing.launches);
    }
    std::sort(times.begin(), times.end());
    return GraphTime{times[times.size() / 2], times.front(), times.back()};
}

Result<double> graph_time(const Stream& stream, const GraphTiming& timing, const std::function<Status(int)>& launch) {
    NIBBLE_TRY(const GraphTime time, time_graph(stream, timing, launch));
    return time.us;
}

}  // namespace nibble::bench
