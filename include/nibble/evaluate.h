// The job of `nibble eval`: what checkpoints can do, and how far they are from a reference.
#pragma once

#include "nibble/error.h"
#include "nibble/hooks.h"
#include "nibble/model_settings.h"
#include "nibble/report.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nibble {

struct EvaluateOptions {
    std::vector<std::string> models;   // checkpoints: folders or .gguf files
    std::string against;               // the reference checkpoint; empty: none
    std::string reference_cache;       // a file for the reference's log-probabilities; written once, then read
    std::string text;                  // perplexity, and KL divergence from the reference
    int64_t context = 512;             // tokens of a window of the text
    int64_t stride = 0;                // tokens between windows; 0: side by side, as llama-perplexity has them
    int64_t chunks = 0;                // most windows; 0: all
    std::string lambada;               // lines {"text"}: the last word
    std::vector<std::string> choices;  // files of lines {"context", "choices", "answer"}: the likeliest choice
    std::string gsm8k;                 // lines {"question", "answer"}: generated answers
    std::string humaneval;             // lines {"task_id", "prompt"}: writes completions and runs none
    int64_t limit = 0;                 // most items of a task; 0: all
    int64_t shots = 5;                 // worked examples before a question of gsm8k: the file's first lines
    std::string out;  // a folder for eval.json, eval.html, completions and the journal; empty: nothing is kept
    ModelSettings engine;
};

// One number of one task of one model.
struct Measured {
    std::string model;   // its name in the tables
    std::string task;    // "perplexity", "lambada" ...
    std::string metric;  // "perplexity", "KL mean", "accuracy" ...
    double value = 0, standard_error = 0;
};

struct EvaluationReport : JobReport {
    std::vector<Measured> measured;
};

// Errors of kind usage: no task, or options that do not fit together.
Status check_options(const EvaluateOptions& options);

// Tasks of every model in the order of `models`, then of the reference. A stop keeps the finished items in `out`, where
// the same options continue.
//
// Errors by kind: usage (no task, options that exclude each other); file; checkpoint; device; cancelled.
Result<EvaluationReport> evaluate(const EvaluateOptions& options, const JobHooks& hooks);

}  // namespace nibble
