// Panels quantized on a GPU: quant/device/ implements this function. A build without CUDA has nibble/no_device.cpp in
// its place, where the call returns an error.
//
// Every worker has a stream, a page-locked buffer each way and device memory for one panel: a thread copies its panel
// into the buffer, queues the transfer, the kernels and the transfer of the results, sleeps until they are done, and
// writes the result. While it sleeps other threads read, copy and write, so with more threads than cores disk, PCIe,
// kernels and writing overlap.
//
// Panels that are looked at twice (the maximum of a whole tensor comes before its codes) stay in device memory in
// between where there is room; where there is none they are read again.
#pragma once

#include "checkpoint/checkpoint.h"
#include "quant/panel_workers.h"
#include "quant/plan.h"
#include "tensor/device.h"

namespace nibble {

// Errors: no usable GPU, a plan with something that the kernels lack, too little free memory (both numbers are given).
// Nothing has been read or written then.
Result<std::unique_ptr<PanelWorkers>> open_device_workers(const DeviceChoice& choice, const Checkpoint& source,
                                                          const Plan& plan, int workers);

}  // namespace nibble
