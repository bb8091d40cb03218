// The job of `nibble train`: pretraining and fine-tuning.
//
//   auto done = train({.config = "train.yaml", .set = {"steps=100"}}, {});
#pragma once

#include "nibble/command_text.h"
#include "nibble/error.h"
#include "nibble/hooks.h"
#include "nibble/report.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

struct TrainOptions {
    std::string config;            // a YAML file; docs/training.md has its keys
    std::string text;              // instead: the text of one
    std::vector<std::string> set;  // "key=value": keys that win over those of the config
    std::string device = "cpu";    // cpu, cuda, cuda:N
    std::string kernels;           // CPU kernels: avx512, avx2, ref; empty: the fastest
    int threads = 0;               // 0: one per core
    std::string profile;           // file for a Chrome trace of the third to fifth step; empty: none
    CommandText command;
};

// One step of the optimizer, after it.
struct TrainedStep {
    int64_t step = 0;  // from 0
    double loss = 0, gradient_norm = 0, learning_rate = 0, seconds = 0;
    int64_t tokens = 0;
    std::optional<double> validation;  // loss on the validation data, where it was due
    bool skipped = false;              // left out: not finite, an outlier, or without a label
    JobReport report;                  // a line for people; the line of the run's log
};

struct TrainHooks {
    JobHooks job;                                     // `note` also gets what the run is: model, recipes, memory
    std::function<void(const TrainedStep&)> on_step;  // called from the thread of the job
};

struct TrainReport {
    int64_t steps = 0;                 // that the run has made, earlier ones included
    int64_t skipped = 0;               // of those that this call made
    bool made_earlier = false;         // the run was complete; nothing was done
    std::vector<std::string> outputs;  // folders and files that were written
    std::vector<std::string> lines;    // what was written, for people
};

// Trains until the config's `steps`. A stop saves the state of the last step and returns an error of kind cancelled;
// the same options with "resume=true" continue to the same bits. Errors by kind: recipe (the config, or keys that do
// not fit the model), file (the output exists, cannot be written or lacks space), checkpoint, device, memory,
// cancelled.
Result<TrainReport> train(const TrainOptions& options, const TrainHooks& hooks);

}  // namespace nibble
