// Questions and right answers from files of JSON lines, as data sets are published (GSM8K's as it is).
#pragma once

#include "rl/answer_rule.h"
#include "rl/tasks.h"

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

struct QuestionFileOptions {
    std::filesystem::path file;
    std::string input_key = "input", output_key = "output";
    AnswerRule rule = AnswerRule::math;  // what the right answers are for: expected_answer()
};

struct QuestionFile {
    std::filesystem::path file;
    std::vector<TaskQuestion> rows;  // at least one, in the file's order
    std::string hash;                // of the file's content
};

// A JSON object a line; empty lines are skipped, other keys ignored. The question is text, the answer text or a number.
// Errors: no rows, a file beyond 256 MiB; with file, line and key: a line that is no object, a key that is missing or
// of another type (tests of programs have several: code_tests()), text that is not UTF-8, an answer that the rule
// cannot use.
Result<QuestionFile> read_question_file(const QuestionFileOptions& options);

// By the number of a prompt. Below validation_prompts_from (rl/rollout.h) the training rows: every epoch has all of
// them, in an order of its own that follows from seed and epoch. From there the validation rows in the file's order.
class QuestionRows {
public:
    QuestionRows(QuestionFile train, std::optional<QuestionFile> validation, uint64_t seed)
        : train_(std::move(train)), validation_(std::move(validation)), seed_(seed) {}

    // Error: a prompt of validation, and there is no such file.
    Result<TaskQuestion> question(uint64_t number) const;
    int64_t train_rows() const { return std::ssize(train_.rows); }
    int64_t validation_rows() const { return validation_ ? std::ssize(validation_->rows) : 0; }
    const std::string& train_hash() const { return train_.hash; }
    // Before a run: whether every row, of both files, leaves room for an answer. prompt_tokens: of the whole prompt
    // that the model is given. Error: names the first row whose prompt has `length` tokens or more, and how many there
    // are.
    Status check_room(const std::function<Result<int64_t>(const TaskQuestion&)>& prompt_tokens, int64_t length) const;

private:
    QuestionFile train_;
    std::optional<QuestionFile> validation_;
    uint64_t seed_;
};

}  // namespace nibble
