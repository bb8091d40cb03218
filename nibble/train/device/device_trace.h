// Records when the parts of a step ran on the GPU, for a Trace. It queues events in the streams and reads them after
// the step. Parts of the compute stream are also NVTX ranges. If no trace is recording, it does nothing.
#pragma once

#include "base/trace.h"
#include "tensor/device.h"

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

class DeviceTrace {
public:
    explicit DeviceTrace(Trace* trace) : trace_(trace) {}
    ~DeviceTrace() { end_range(); }
    DeviceTrace(const DeviceTrace&) = delete;
    DeviceTrace& operator=(const DeviceTrace&) = delete;

    enum Lane : size_t { compute, exchange, lanes };
    // Ends the lane's current part and begins the next one, "name number". An empty name begins no part.
    Status mark(Lane lane, std::string_view name, int64_t number, const Stream& stream);
    // Waits for `stream`, then writes all marked spans to the trace.
    Status land(const Stream& stream);

private:
    bool records() const { return trace_ && trace_->recording(); }
    void end_range();

    struct Mark {
        std::string name;
        Lane lane;
        size_t event;
    };
    Trace* trace_;
    std::vector<Event> events_;  // reused in the next step
    std::vector<Mark> marks_;
    bool in_range_ = false;
};

}  // namespace nibble
