// What `nibble train` says about its products: the table at the start, and --check-forward.
#pragma once

#include "cli/command.h"
#include "data/batch_source.h"
#include "train/train_config.h"
#include "train/train_engine.h"
#include "train/train_run.h"

namespace nibble {

// Layers that are treated alike are one line: "layers 0-11 q_proj: forward NVFP4 1x16 x NVFP4 16x16; ...".
void print_train_table(const TrainEngine& trainer);
// A step in the log, and as a line on the screen in MaxText's words.
Json step_json(const StepReport& report, double memory_gib);
void print_step(const StepReport& report, double memory_gib);
// What tensor cores for FP4 would change (train_flops.h), of the first part of the steps; nothing without FP4 operands.
void print_fp4_savings(const TrainEngine& trainer, const TrainConfig& config);

// What --check-forward compares: how K and V are cached ("bf16", "fp8", "fp8_q": queries too, "fp8_page"), and whether
// the forward products are those of the last step (late_forward).
struct ForwardQuestion {
    std::string kv = "bf16";
    bool late = false;
};
TrainCache cache_of(const ForwardQuestion& question);
Status check(const ForwardQuestion& question, const TrainConfig& config);
// The first batch of `data` through check_forward(). Findings: a recipe that promises equal bits has others.
Result<Outcome> report_forward(bool json, bool quiet, TrainEngine& trainer, BatchSource& data,
                               const TrainConfig& config, const ForwardQuestion& question);

}  // namespace nibble
