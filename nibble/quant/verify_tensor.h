// Checks every byte of one tensor.
#pragma once

#include "quant/executor.h"
#include "quant/meter.h"
#include "quant/panels.h"
#include "quant/verify.h"

#include <optional>
#include <unordered_map>

namespace nibble {

struct TensorFindings {
    std::vector<std::string> texts;
    TensorReport report;
    float tensor_scale = 1;
};

struct VerifyContext {
    const Checkpoint& checkpoint;
    const VerifyOptions& options;
    const QuantizeKernels& kernels;
    ProgressMeter& meter;
    std::unordered_map<std::string_view, size_t> in_source;              // name -> index
    std::unordered_map<std::string_view, const TensorReport*> computed;  // by name
    std::vector<PanelScratch> scratch, source_scratch;                   // per worker
    std::vector<TensorFindings> tensors;                                 // each is written by its unit
};

std::unique_ptr<UnitWork> verify_tensor(VerifyContext& context, size_t index);

}  // namespace nibble
