// Models on a GPU, for callers that know no GPU code: model/device/ implements these functions. A build without CUDA
// has nibble/no_device.cpp in its place, where each call returns an error.
#pragma once

#include "checkpoint/checkpoint.h"
#include "model/cpu/model.h"
#include "model/kernel_use.h"
#include "model/language_model.h"
#include "tensor/device.h"

#include <memory>

namespace nibble {

// Loads `checkpoint` onto `device`. The pool must outlive the model. Errors: no such device; too little free memory
// (found before anything is read; the message has the needed and the free bytes); options, formats or shapes without
// kernels, with the tensor's name.
Result<std::unique_ptr<LanguageModel>> open_device_model(std::shared_ptr<const Checkpoint> checkpoint,
                                                         const ModelOptions& options, const DeviceChoice& device,
                                                         ThreadPool& pool);

// Returns the kernels of a step of `tokens` tokens: 1 for one answer, n for n concurrent answers, or the length of a
// prompt. Reads names and shapes only. Errors: those of open_device_model() except too little memory.
Result<KernelTable> device_kernel_table(std::shared_ptr<const Checkpoint> checkpoint, const ModelOptions& options,
                                        const DeviceChoice& device, int64_t tokens, ThreadPool& pool);

}  // namespace nibble
