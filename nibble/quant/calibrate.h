// Calibration: text goes through the model block by block, and every place whose scale a plan stores is watched.
//
//   NIBBLE_TRY(auto seen, calibrate(*source, plan, corpus, options, pool, hooks));
//   NIBBLE_TRY(auto table, scale_table(seen, plan));            // "....input_scale", "....k_proj.k_scale" ...
//
// One block's weights are in memory at a time; residual streams of all tokens lie in a scratch file beyond a limit.
// Weights are those of the source, unquantized (Model Optimizer's `max`, ptq.md 2.1). Results do not depend on threads,
// on how tokens are batched, or on the order of the sequences.
#pragma once

#include "base/progress.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "model/cpu/block.h"
#include "quant/calibration_gaps.h"
#include "quant/input_scales.h"
#include "quant/output_error.h"
#include "quant/plan.h"
#include "quant/ranges.h"
#include "quant/statistics_store.h"
#include "tensor/device.h"

#include <filesystem>
#include <map>

namespace nibble {

// Raised whenever the same text and settings give other bits (tests/quant/kept_calibration_test.cpp tells): what an
// older nibble kept of an unfinished calibration is then not continued.
inline constexpr int calibration_revision = 1;

struct CalibrationOptions {
    RangeRule range;
    Compute compute = Compute::bf16;  // of the forward pass
    bool all_experts = false;         // every expert sees every token; what flows on is routed as ever
    int64_t expert_tokens = 64;       // an expert that saw fewer is named in the warnings
    int64_t batch_tokens = 4096;      // rows of one forward pass, whole sequences
    // Solvers that read gradients: about this many tokens (every n-th sequence) go back through the model, the others
    // forward only, for the uniform share of H.
    int64_t gradient_tokens = 8192;
    uint64_t seed = 1;                    // of the labels that gradients start from
    int64_t memory = int64_t{2} << 30;    // bytes of streams and statistics each kept in memory
    std::filesystem::path scratch = ".";  // folder of the scratch file
    // Folder of what is found as it is found (calibration_keep.h); what an earlier run of the same calibration left
    // there is taken over. Empty: nothing is kept.
    std::filesystem::path keep;
    JobIdentity job;  // of the source and the settings of the job; part of the kept files' identity
    // Where text goes forward. A GPU streams blocks as the CPU does (quant/device_calibration.h), rounds to BF16
    // between operators (no Compute::f32) and has no backward pass: plans that calibrates_on_device() refuses run on
    // the CPU.
    DeviceChoice device;
};

struct Calibration {
    std::string origin;  // of the text
    int64_t tokens = 0;
    std::map<std::string, Range, std::less<>> inputs;        // by module: "model.layers.0.mlp.up_proj"
    std::map<std::string, Range, std::less<>> keys, values;  // by attention module: "model.layers.0.self_attn"
    std::vector<std::string> warnings;
    std::vector<CalibrationGap> gaps;             // ranges that are missing or zero, experts without tokens
    std::unique_ptr<StatisticsStore> statistics;  // null when the plan has no solver
    std::vector<LayerOutputError> output_errors;  // of linears that were solved, by module
    double seconds = 0;
    bool on_device = false;  // text went forward on CalibrationOptions::device
};

// Whether `plan` stores a scale, or has a solver, that needs activations.
bool needs_calibration(const Plan& plan);
// Whether nothing in it reads gradients.
bool calibrates_on_device(const Plan& plan);

// `sequences`: token ids, none empty. Errors: an architecture or tensor the engine cannot run, an id outside the
// vocabulary, NaN in an activation (names layer, operator and token), a linear of the plan that no forward pass runs.
// Zero ranges, experts without tokens and second moments without an inverse are no errors (calibration_gaps.h).
Result<Calibration> calibrate(const Checkpoint& source, const Plan& plan, std::string_view origin,
                              std::span<const std::vector<int32_t>> sequences, const CalibrationOptions& options,
                              ThreadPool& pool, const JobHooks& hooks);

// The scales as `plan` stores them: amax/2688 or amax/448 by the entry's activation format; amax/448 for K and V. Where
// the maximum is zero, it is that of the format (6 for NVFP4, 448 for FP8, K and V), as in Model Optimizer's export.
ScaleTable scale_table(const Calibration& calibration, const Plan& plan, Arithmetic arithmetic);

}  // namespace nibble
