// A gated delta net on the emulated GPU: the CPU's kernels on memory of the device.
#include "cuda/kernels/delta_reference.h"
#include "device/emulated_memory.h"

namespace nibble::cuda {

using test::on_host;

int64_t delta_workspace_bytes(const DeltaShape&, int64_t) { return 256; }

Status delta_step(const DeltaStep& step, bool, const Stream&) {
    DeltaStep d = step;
    std::vector<StateSegment> list(on_host(d.list), on_host(d.list) + d.segments);
    for (StateSegment& segment : list)
        if (segment.state) segment.state = on_host(segment.state);
    d.list = list.data();
    for (const float** p : {&d.projected, &d.gates, &d.conv_weight, &d.a, &d.dt_bias, &d.norm}) *p = on_host(*p);
    for (const float** p : {&d.z, &d.channel_gates})
        if (*p) *p = on_host(*p);
    d.out = on_host(d.out);
    return bench::DeltaReference::run(d);
}

}  // namespace nibble::cuda
