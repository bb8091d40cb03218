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

// Loads `checkpoint` onto `device`. The pool outlives the model. Errors: no such device; not enough free memory (says
// how much is needed and how much is free, before anything is read); options, formats or shapes without kernels, with
// the tensor's name.
Result<std::unique_ptr<LanguageModel>> open_device_model(std::shared_ptr<const Checkpoint> checkpoint,
                                                         const ModelOptions& options, const DeviceChoice& device,
                                                         ThreadPool& pool);

// Returns the kernels of a step of `tokens` tokens: one for an answer, one for each of several answers, or those of a
// prompt. Reads names and shapes only. Errors: those of open_device_model() except too little memory.
Result<KernelTable> device_kernel_table(std::shared_ptr<const Checkpoint> checkpoint, const ModelOptions& options,
                                        const DeviceChoice& device, int64_t tokens, ThreadPool& pool);

}  // namespace nibble
