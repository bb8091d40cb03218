// Questions made on the spot, with answers that can be checked: what a demo learns from, and what experiments choose
// their difficulty from. A question is a function of (task, difficulty, seed, index) alone.
#pragma once

#include "base/error.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace nibble {

enum class TaskKind : uint8_t {
    sum,        // "What is 17 + 5?": difficulty digits in each of two numbers
    sort,       // "Sort these numbers ...": difficulty + 1 numbers below 100, separated by commas
    countdown,  // "Use 2, 5, 9 ... to make 23": difficulty + 1 numbers, + - * / and brackets, each number once
    words,      // a story with difficulty + 1 steps of arithmetic
};
inline constexpr std::array<std::string_view, 4> task_names{"sum", "sort", "countdown", "words"};

struct TaskQuestion {
    std::string prompt;
    std::string answer;      // of countdown: "NUMBERS -> TARGET", for task_reward
    std::string where = {};  // in which file and line, for errors; empty: made on the spot
};

// difficulty 1 ... 6. Error: out of range.
Result<TaskQuestion> task_question(TaskKind kind, int difficulty, uint64_t seed, uint64_t index);

// 0 ... 1: 1 where the text answers the question. sort: the share of numbers in their right place, 1 only if all are;
// countdown: 0.1 for an expression of the right numbers with another value.
double task_reward(TaskKind kind, const TaskQuestion& question, std::string_view text);

// What the text says in the end, as task_reward() reads it: a number, or its first line.
std::string task_answer(TaskKind kind, std::string_view text);

}  // namespace nibble
