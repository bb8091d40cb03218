// Quantizes panels on a GPU; quant/device/ implements this function. A build without CUDA has nibble/no_device.cpp
// instead, where the call returns an error.
//
// Every worker has a stream, page-locked buffers for input and output, and device memory for one panel. A thread copies
// its panel into the buffer, queues transfer, kernels and the transfer of the results, sleeps until they are done, and
// writes the result. Meanwhile other threads read, copy and write; with more threads than cores, disk, PCIe and kernels
// overlap.
//
// Panels that are read twice (the maximum of a whole tensor is needed before its codes) stay in device memory if there
// is room; otherwise they are read again.
#pragma once

#include "checkpoint/checkpoint.h"
#include "quant/panel_workers.h"
#include "quant/plan.h"
#include "tensor/device.h"

namespace nibble {

// Opens `workers` workers. Errors, all before anything is read or written: no usable GPU, a plan that the kernels do
// not support, too little free memory (with both numbers).
Result<std::unique_ptr<PanelWorkers>> open_device_workers(const DeviceChoice& choice, const Checkpoint& source,
                                                          const Plan& plan, int workers);

}  // namespace nibble
