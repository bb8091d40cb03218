// When the parts of a step ran on the GPU, for a Trace: events between them in the streams, read when the step is over.
// The parts of the compute stream are ranges of NVTX, too. Without a trace that records, nothing is queued.
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
    // The lane's next part, "name number"; its last one ends here. Without a name: nothing follows for now.
    Status mark(Lane lane, std::string_view name, int64_t number, const Stream& stream);
    // What was marked has happened, but for what waits behind it in `stream`: to the trace. Waits.
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
    std::vector<Event> events_;  // kept from step to step
    std::vector<Mark> marks_;
    bool in_range_ = false;
};

}  // namespace nibble
