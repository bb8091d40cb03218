// Named ranges of the calling thread for profilers (NVTX): what a thread queues within one belongs to it. Nothing
// happens where no profiler listens, nor in a build whose CUDA toolkit has no NVTX.
#pragma once

namespace nibble {

void push_device_range(const char* name);
void pop_device_range();

}  // namespace nibble
