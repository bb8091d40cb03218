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

// Either `config` or `text` is required. Values in `set` take precedence over the config's.
struct TrainOptions {
    std::string config;            // a YAML file; docs/topics/training.md lists its keys
    std::string text;              // replaces `config`: the YAML text
    std::vector<std::string> set;  // "key=value": overrides of the config's keys
    std::string device = "cpu";    // cpu, cuda, cuda:N
    std::string kernels;           // CPU kernels: avx512, avx2, ref; empty: the fastest
    int threads = 0;               // 0: one per core
    std::string profile;           // file for a Chrome trace of the third to fifth step; empty: no trace
    CommandText command;
};

// Results of one optimizer step.
struct TrainedStep {
    int64_t step = 0;  // starts at 0
    double loss = 0, gradient_norm = 0, learning_rate = 0, seconds = 0;
    int64_t tokens = 0;
    std::optional<double> validation;  // loss on the validation data, in steps with a validation
    bool skipped = false;              // the update was left out: not finite, an outlier, or no labels
    JobReport report;                  // text(): a line for people; json(): the line of the run's log
};

// Every callback may be empty.
struct TrainHooks {
    JobHooks job;  // `note` also receives a description of the run: model, recipes, memory
    std::function<void(const TrainedStep&)> on_step;  // called from the job's thread
};

// The state of the run at its end.
struct TrainReport {
    int64_t steps = 0;                 // all steps of the run, including earlier ones
    int64_t skipped = 0;               // skipped updates of this call
    bool made_earlier = false;         // the run was already complete; nothing was done
    std::vector<std::string> outputs;  // folders and files that were written
    std::vector<std::string> lines;    // messages about the outputs
};

// Trains until the config's `steps`. A stop saves the state of the last step and returns an error of kind cancelled; a
// call with the same options and "resume=true" continues with the same bits. Errors by kind: recipe (the config, or
// keys that do not fit the model), file (the output exists, cannot be written or lacks space), checkpoint, device,
// memory, cancelled.
Result<TrainReport> train(const TrainOptions& options, const TrainHooks& hooks);

}  // namespace nibble
