// Reads questions and expected answers from JSON Lines files in their published form (such as GSM8K).
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
    AnswerRule rule = AnswerRule::math;  // how answers will be compared; see expected_answer()
};

struct QuestionFile {
    std::filesystem::path file;
    std::vector<TaskQuestion> rows;  // at least one, in the file's order
    std::string hash;                // hash of the file's content
};

// Reads one JSON object per line. Empty lines are skipped, and other keys are ignored. The question is text, the answer
// text or a number. Errors: no rows; a file over 256 MiB; and, with file, line and key: a line that is not an object, a
// missing key or one of another type (tests of programs have several types: code_tests()), text that is not UTF-8, an
// answer that the rule cannot use.
Result<QuestionFile> read_question_file(const QuestionFileOptions& options);

// Rows by prompt number. Numbers below validation_prompts_from (rl/rollout.h) are training rows: every epoch has all of
// them, in an order that follows from seed and epoch. Higher numbers are validation rows in the file's order.
class QuestionRows {
public:
    QuestionRows(QuestionFile train, std::optional<QuestionFile> validation, uint64_t seed)
        : train_(std::move(train)), validation_(std::move(validation)), seed_(seed) {}

    // Error: a validation prompt, but there is no validation file.
    Result<TaskQuestion> question(uint64_t number) const;
    int64_t train_rows() const { return std::ssize(train_.rows); }
    int64_t validation_rows() const { return validation_ ? std::ssize(validation_->rows) : 0; }
    const std::string& train_hash() const { return train_.hash; }
    // Checks, before a run, that every row of both files leaves room for an answer. `prompt_tokens` counts the tokens
    // of the complete prompt. Error: names the first row whose prompt has `length` tokens or more, and how many such
    // rows there are.
    Status check_room(const std::function<Result<int64_t>(const TaskQuestion&)>& prompt_tokens, int64_t length) const;

private:
    QuestionFile train_;
    std::optional<QuestionFile> validation_;
    uint64_t seed_;
};

}  // namespace nibble
