// The job of `nibble eval`: evaluates checkpoints on tasks, and measures their divergence from a reference.
#pragma once

#include "nibble/error.h"
#include "nibble/hooks.h"
#include "nibble/model_settings.h"
#include "nibble/report.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nibble {

// At least one model and one task are required. A task runs if its file is given.
struct EvaluateOptions {
    std::vector<std::string> models;  // checkpoints: folders or .gguf files
    std::string against;              // the reference checkpoint; empty: none
    std::string reference_cache;      // file for the reference's log-probabilities: written once, then read
    std::string text;                 // text for perplexity, and for the KL divergence from the reference
    int64_t context = 512;            // tokens per window of the text
    int64_t stride = 0;               // tokens from one window to the next; 0: adjacent windows, as in llama-perplexity
    int64_t chunks = 0;               // most windows; 0: all
    std::string lambada;              // lines {"text"}: predict the last word
    std::vector<std::string> choices;  // files of lines {"context", "choices", "answer"}: choose the most likely choice
    std::string gsm8k;                 // lines {"question", "answer"}: generate answers
    std::string humaneval;             // lines {"task_id", "prompt"}: write completions, which are not run
    int64_t limit = 0;                 // most items per task; 0: all
    int64_t shots = 5;                 // worked examples before each question of gsm8k: the first lines of the file
    std::string out;  // folder for eval.json, eval.html, completions and the journal; empty: nothing is written
    ModelSettings engine;
};

// One number of one task for one model.
struct Measured {
    std::string model;   // name of the model in the tables
    std::string task;    // "perplexity", "lambada" ...
    std::string metric;  // "perplexity", "KL mean", "accuracy" ...
    double value = 0, standard_error = 0;
};

// The numbers of all tasks; text() shows them as tables.
struct EvaluationReport : JobReport {
    std::vector<Measured> measured;
};

// Errors of kind usage: no task, options that contradict each other.
Status check_options(const EvaluateOptions& options);

// Runs the tasks for every model in the order of `models`, then for the reference. A stop keeps finished items in
// `out`; a call with the same options continues.
//
// Errors by kind: usage (no task, options that contradict each other); file; checkpoint; device; cancelled.
Result<EvaluationReport> evaluate(const EvaluateOptions& options, const JobHooks& hooks);

}  // namespace nibble
