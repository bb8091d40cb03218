// Tasks that compare log-likelihoods of continuations, as defined by lm-evaluation-harness 0.4.
#pragma once

#include "eval/data_files.h"
#include "eval/log_probs.h"
#include "eval/task.h"

namespace nibble {

// Returns the tokens of `prefix`, context and continuation, and the start of the continuation. Both texts are encoded
// as one; spaces at the end of the context move to the continuation. Error: no token precedes the continuation.
Result<Continuation> encode_pair(const Subject& subject, std::span<const int32_t> prefix, std::string context,
                                 std::string continuation);

// Lines {"text"}. Measures whether the last word is the model's greedy choice, and its likelihood.
class LambadaTask : public Task {
public:
    explicit LambadaTask(LinesFile file) : file_(std::move(file)) {}
    std::string name() const override { return "lambada"; }
    Json settings() const override { return {{"file", file_.name}, {"hash", file_.hash}, {"items", items()}}; }
    Status prepare(const Subject& subject) override;
    int64_t items() const override { return std::ssize(file_.lines); }
    int64_t batch() const override { return 16; }
    Result<std::vector<Json>> run(const Subject& subject, int64_t begin, int64_t end) override;
    Result<TaskResult> summarize(std::span<const Json> results) const override;

private:
    LinesFile file_;
    std::vector<Continuation> items_;
};

// Lines {"context", "choices": [...], "answer": index}. Measures whether the correct choice is the likeliest, in total
// (acc) and per character (acc_norm). A choice follows the context after a space.
class ChoiceTask : public Task {
public:
    explicit ChoiceTask(LinesFile file) : file_(std::move(file)) {}
    std::string name() const override { return file_.name; }
    Json settings() const override { return {{"file", file_.name}, {"hash", file_.hash}, {"items", items()}}; }
    Status prepare(const Subject& subject) override;
    int64_t items() const override { return std::ssize(file_.lines); }
    int64_t batch() const override { return 4; }
    Result<std::vector<Json>> run(const Subject& subject, int64_t begin, int64_t end) override;
    Result<TaskResult> summarize(std::span<const Json> results) const override;

private:
    struct Item {
        std::vector<Continuation> choices;
        std::vector<double> characters;  // number of characters of each choice
        size_t answer = 0;
    };
    LinesFile file_;
    std::vector<Item> items_;
};

}  // namespace nibble
