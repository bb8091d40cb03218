// The job of `nibble eval`: what checkpoints can do, and how far they are from a reference.
#pragma once

#include "eval/report.h"
#include "eval/text_task.h"
#include "jobs/job.h"
#include "jobs/loaded_model.h"

#include <string>
#include <vector>

namespace nibble {

struct EvaluateOptions {
    std::vector<std::string> models;  // checkpoints: folders or .gguf files
    std::string against;              // the reference checkpoint; empty: none
    std::string reference_cache;      // a file for the reference's log-probabilities; written once, then read
    std::string text;                 // perplexity, and KL divergence from the reference
    TextTaskOptions perplexity;
    std::string lambada;               // lines {"text"}: the last word
    std::vector<std::string> choices;  // files of lines {"context", "choices", "answer"}: the likeliest choice
    std::string gsm8k;                 // lines {"question", "answer"}: generated answers
    std::string humaneval;             // lines {"task_id", "prompt"}: writes completions and runs none
    int64_t limit = 0;                 // most items of a task; 0: all
    int64_t shots = 5;                 // worked examples before a question of gsm8k: the file's first lines
    std::string out;  // a folder for eval.json, eval.html, completions and the journal; empty: nothing is kept
    ModelSettings engine;
};

// Errors of kind usage: no task, or options that do not fit together.
Status check_options(const EvaluateOptions& options);

// Tasks of every model in the order of `models`, then of the reference. A stop keeps the finished items in `out`, where
// the same options continue.
//
// Errors by kind: usage (no task, options that exclude each other); file; checkpoint; device; cancelled.
Result<EvalReport> evaluate(const EvaluateOptions& options, const JobHooks& hooks);

}  // namespace nibble
