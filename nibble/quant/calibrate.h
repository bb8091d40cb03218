// Calibration: runs text through the model block by block and records the range of every place for which a plan stores
// a scale, and the statistics of solvers.
//
//   NIBBLE_TRY(auto seen, calibrate(*source, plan, corpus, options, pool, hooks));
//   NIBBLE_TRY(auto table, scale_table(seen, plan));            // "....input_scale", "....k_proj.k_scale" ...
//
// One block's weights are in memory at a time. Residual streams beyond a limit are kept in a scratch file. Weights are
// the source's, unquantized (as in Model Optimizer's `max`). Results do not depend on threads, on batches, or on the
// order of the sequences.
#pragma once

#include "base/progress.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "model/cpu/block.h"
#include "parallel/stage_chain.h"
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

// Incremented whenever the same text and settings give other bits (checked by tests/quant/kept_calibration_test.cpp).
// An unfinished calibration of an older revision is not continued.
inline constexpr int calibration_revision = 1;

struct CalibrationOptions {
    RangeRule range;
    Compute compute = Compute::bf16;  // rounding of the forward pass
    bool all_experts = false;         // every expert observes all tokens; routing does not change
    int64_t expert_tokens = 64;       // experts that saw fewer tokens are named in the warnings
    int64_t batch_tokens = 4096;      // rows of one forward pass; sequences are not split
    // For solvers that read gradients: about this many tokens (every n-th sequence) go through the backward pass. The
    // others go through the forward pass only, for the uniform share of H.
    int64_t gradient_tokens = 8192;
    uint64_t seed = 1;                    // seed of the sampled labels from which gradients start
    int64_t memory = int64_t{2} << 30;    // bytes of residual streams, and of statistics, that are kept in memory
    std::filesystem::path scratch = ".";  // folder of the scratch file, which holds the rest
    // Folder in which results are saved as they are computed (calibration_keep.h). Results that an earlier run of the
    // same calibration saved there are reused. Empty: nothing is saved.
    std::filesystem::path keep;
    JobIdentity job;  // identity of the source and the job's settings; part of the identity of saved files
    // Device of the forward passes. A GPU streams blocks as the CPU does (quant/device_calibration.h) and rounds to
    // BF16 between operators (Compute::f32 is not available). It has no backward pass: plans for which
    // calibrates_on_device() is false run on the CPU.
    DeviceChoice device;
    // Set if several ranks do the calibration together (rank_calibration.h), in this folder: results do not depend on
    // their number. Nothing is saved in `keep` then.
    std::optional<StageChainOptions> ranks;
};

struct Calibration {
    std::string origin;  // source of the text
    int64_t tokens = 0;
    std::map<std::string, Range, std::less<>> inputs;        // by module: "model.layers.0.mlp.up_proj"
    std::map<std::string, Range, std::less<>> keys, values;  // by attention module: "model.layers.0.self_attn"
    std::vector<std::string> warnings;
    std::vector<CalibrationGap> gaps;             // ranges that are missing or zero, experts without tokens
    std::unique_ptr<StatisticsStore> statistics;  // null: the plan has no solver
    std::vector<LayerOutputError> output_errors;  // errors of the solved linears, by module
    double seconds = 0;
    bool on_device = false;  // forward passes ran on CalibrationOptions::device
};

// Returns true if `plan` has a stored scale or a solver that depends on activations.
bool needs_calibration(const Plan& plan);
// Returns true if no solver of the plan reads gradients, so that the calibration can run on a GPU.
bool calibrates_on_device(const Plan& plan);

// Adds an entry to `seen` for every range that the plan needs. Returns whether there is one.
bool init_ranges(const Plan& plan, const RangeRule& rule, Calibration& seen);
// Every n-th sequence goes through the backward pass; returns n.
int64_t gradient_step(int64_t tokens, const CalibrationOptions& options);

// Runs the calibration. `sequences`: token ids, none empty. Errors: an architecture or tensor that the engine cannot
// run, an id outside the vocabulary, a NaN in an activation (with layer, operator and token), a linear of the plan that
// no forward pass runs. Ranges of zero, experts without tokens and singular second moments are accepted
// (calibration_gaps.h).
Result<Calibration> calibrate(const Checkpoint& source, const Plan& plan, std::string_view origin,
                              std::span<const std::vector<int32_t>> sequences, const CalibrationOptions& options,
                              ThreadPool& pool, const JobHooks& hooks);

// Returns the scales that `plan` stores: amax / 2688 (NVFP4) or amax / 448 (FP8, K and V). A maximum of zero is
// replaced by the format's largest value (6 for NVFP4, 448 for FP8, K and V), as in Model Optimizer's export.
ScaleTable scale_table(const Calibration& calibration, const Plan& plan, Arithmetic arithmetic);

}  // namespace nibble
