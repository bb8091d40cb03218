// Generated questions with answers that can be checked, for demos and for experiments that need a chosen difficulty. A
// question is a function of (task, difficulty, seed, index) alone.
#pragma once

#include "base/error.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace nibble {

enum class TaskKind : uint8_t {
    sum,        // "What is 17 + 5?": two numbers of `difficulty` digits
    sort,       // "Sort these numbers ...": difficulty + 1 numbers below 100, separated by commas
    countdown,  // "Use 2, 5, 9 ... to make 23": difficulty + 1 numbers, each used once, with + - * / and brackets
    words,      // a story with difficulty + 1 steps of arithmetic
};
inline constexpr std::array<std::string_view, 4> task_names{"sum", "sort", "countdown", "words"};

struct TaskQuestion {
    std::string prompt;
    std::string answer;      // countdown: "NUMBERS -> TARGET", for task_reward()
    std::string where = {};  // file and line, for errors; empty: a generated question
};

// difficulty: 1 to 6. Error: out of range.
Result<TaskQuestion> task_question(TaskKind kind, int difficulty, uint64_t seed, uint64_t index);

// Returns a reward from 0 to 1; 1 if the text answers the question. sort: the share of numbers in their correct place,
// below 1 unless all are. countdown: 0.1 for an expression of the given numbers with another value.
double task_reward(TaskKind kind, const TaskQuestion& question, std::string_view text);

// Returns the answer that task_reward() reads from the text: a number, or the first line.
std::string task_answer(TaskKind kind, std::string_view text);

}  // namespace nibble
