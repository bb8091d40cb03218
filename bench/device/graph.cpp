#include "device/graph.h"

#include "tensor/cuda/call.h"

#include <algorithm>

namespace nibble::bench {

Result<double> graph_time(const Stream& stream, const GraphTiming& timing, const std::function<Status(int)>& launch) {
    const auto s = static_cast<cudaStream_t>(stream.handle());
    NIBBLE_CHECK(launch(0));
    NIBBLE_CHECK(stream.synchronize());
    NIBBLE_CUDA_CALL(cudaStreamBeginCapture, s, cudaStreamCaptureModeThreadLocal);
    Status queued = Ok{};
    for (int i = 0; i < timing.launches && queued.ok(); ++i) queued = launch(i);
    cudaGraph_t graph = nullptr;
    NIBBLE_CUDA_CALL(cudaStreamEndCapture, s, &graph);
    NIBBLE_CHECK(std::move(queued));
    cudaGraphExec_t exec = nullptr;
    NIBBLE_CUDA_CALL(cudaGraphInstantiate, &exec, graph, 0);
    NIBBLE_TRY(Event begin, Event::create());
    NIBBLE_TRY(Event end, Event::create());
    std::vector<double> times;
    for (int r = -2; r < timing.repeats; ++r) {
        NIBBLE_CHECK(begin.record(stream));
        NIBBLE_CUDA_CALL(cudaGraphLaunch, exec, s);
        NIBBLE_CHECK(end.record(stream));
        NIBBLE_CHECK(end.synchronize());
        NIBBLE_TRY(const float ms, end.since(begin));
        if (r >= 0) times.push_back(ms * 1e3 / timing.launches);
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

}  // namespace nibble::bench
