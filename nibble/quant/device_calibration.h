// Calibration's forward passes on a GPU, for callers without GPU code: quant/device/ implements them. A build without
// CUDA has nibble/no_device.cpp instead, where open_device_calibration() returns an error.
#pragma once

#include "quant/block_solver.h"
#include "quant/calibrate.h"

#include <memory>
#include <string>

namespace nibble {

class DeviceCalibration {
public:
    virtual ~DeviceCalibration() = default;

    struct Pass {
        const Checkpoint& model;  // the source, or with_quantized_inputs() of it
        // If set, inputs are quantized with the model's scales, and GPTQ's moments are those of the quantized rows.
        const ActivationScales* quantized = nullptr;
        Calibration* ranges = nullptr;  // has an entry for every range to collect; null: none
        // Receives the statistics of linears whose solver reads no gradients, except those that `done` holds; null:
        // none are collected.
        BlockSolver* solver = nullptr;
        const StatisticsStore& done;
        bool head = false;  // also collect the input of lm_head
    };
    // Runs all texts through the model, block by block.
    virtual Status run(const Pass& pass, const JobHooks& hooks) = 0;

    // Returns the warning about weights that were rounded to BF16; empty: no weight was.
    virtual std::string note() const = 0;
};

// Source, plan, texts, options and pool must outlive the object. Errors, all before anything is read: no such device,
// shapes without kernels, too little free memory (with the sizes).
Result<std::unique_ptr<DeviceCalibration>> open_device_calibration(const Checkpoint& source, const Plan& plan,
                                                                   std::span<const std::vector<int32_t>> texts,
                                                                   const CalibrationOptions& options, ThreadPool& pool);

}  // namespace nibble
