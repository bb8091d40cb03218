// Named ranges of the calling thread for profilers (NVTX). Work that the thread queues inside a range belongs to it.
// Does nothing without a profiler or if the CUDA toolkit of the build has no NVTX.
#pragma once

namespace nibble {

void push_device_range(const char* name);
void pop_device_range();

}  // namespace nibble
