#include "rl/tasks.h"

#include "base/philox.h"
#include "rl/math_answer.h"
#include "rl/math_expression.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <vector>

namespace nibble {
namespace {

// Random numbers of one question.
class QuestionDraws {
public:
    QuestionDraws(TaskKind kind, int difficulty, uint64_t seed, uint64_t index)
        : stream_{seed, 0x7461736B00000000ull + static_cast<uint64_t>(kind) * 256 + static_cast<uint64_t>(difficulty)},
          next_(index << 8) {}

    // Returns a number from `low` to `high`, inclusive.
    int64_t number(int64_t low, int64_t high) {
        const uint64_t bits = stream_.block(next_++).word[0];
        return low + static_cast<int64_t>(bits * static_cast<uint64_t>(high - low + 1) >> 32);
    }

private:
    PhiloxStream stream_;
    uint64_t next_;
};

TaskQuestion sum_question(int difficulty, QuestionDraws& draws) {
    int64_t low = 1, high = 9;
    for (int i = 1; i < difficulty; ++i) low *= 10, high = high * 10 + 9;
    const int64_t a = draws.number(low, high), b = draws.number(low, high);
    return {fmt::format("What is {} + {}?", a, b), std::to_string(a + b)};
}

TaskQuestion sort_question(int difficulty, QuestionDraws& draws) {
    std::vector<int64_t> numbers;
    while (std::ssize(numbers) < difficulty + 1)
        if (const int64_t n = draws.number(0, 99); std::ranges::count(numbers, n) == 0) numbers.push_back(n);
    std::string prompt =
        fmt::format("Sort these numbers from small to large, separated by commas: {}", fmt::join(numbers, ", "));
    std::ranges::sort(numbers);
    return {std::move(prompt), fmt::format("{}", fmt::join(numbers, ", "))};
}

// Joins the numbers one after another with random operations, so that the target can be reached.
TaskQuestion countdown_question(int difficulty, QuestionDraws& draws) {
    std::vector<int64_t> numbers{draws.number(1, 20)};
    int64_t target = numbers[0];
    while (std::ssize(numbers) < difficulty + 1) {
        const int64_t n = draws.number(1, 20), operation = draws.number(0, 2);
        if (operation == 1 && target - n < 1) continue;
        if (operation == 2 && target * n > 500) continue;
        target = operation == 0 ? target + n : operation == 1 ? target - n : target * n;
        numbers.push_back(n);
    }
    for (size_t i = numbers.size() - 1; i > 0; --i)
        std::swap(numbers[i], numbers[static_cast<size_t>(draws.number(0, static_cast<int64_t>(i)))]);
    const std::string list = fmt::format("{}", fmt::join(numbers, ", "));
    return {fmt::format("Use each of the numbers {} once, with + - * / and brackets, to make {}. Answer with the "
                        "expression.",
                        list, target),
            fmt::format("{} -> {}", list, target)};
}

TaskQuestion words_question(int difficulty, QuestionDraws& draws) {
    static constexpr std::array people{"Anna", "Ben", "Chen", "Dora", "Emil", "Fay"};
    static constexpr std::array things{"apples", "books", "coins", "stamps", "cards", "shells"};
    const std::string_view who = people[static_cast<size_t>(draws.number(0, 5))];
    const std::string_view what = things[static_cast<size_t>(draws.number(0, 5))];
    int64_t have = draws.number(2, 20);
    std::string story = fmt::format("{} has {} {}.", who, have, what);
    for (int step = 0; step < difficulty + 1; ++step) {
        const int64_t n = draws.number(2, 9);
        switch (draws.number(0, have > n ? 2 : 1)) {
            case 0:
                story += fmt::format(" {} finds {} more.", who, n), have += n;
                break;
            case 1:
                story += fmt::format(" A friend makes it {} times as many.", n), have *= n;
                break;
            default:
                story += fmt::format(" {} gives {} away.", who, n), have -= n;
                break;
        }
    }
    return {fmt::format("{} How many {} does {} have now?", story, what, who), std::to_string(have)};
}

std::vector<int64_t> numbers_in(std::string_view text) {
    std::vector<int64_t> found;
    for (size_t i = 0; i < text.size();) {
        int64_t value = 0;
        const auto [end, error] = std::from_chars(text.data() + i, text.data() + text.size(), value);
        if (error == std::errc{} && text[i] != '-')
            found.push_back(value), i = static_cast<size_t>(end - text.data());
        else
            ++i;
    }
    return found;
}

double sort_reward(std::string_view answer, std::string_view text) {
    const std::vector<int64_t> want = numbers_in(answer), got = numbers_in(text.substr(0, text.find('\n')));
    if (got.size() != want.size()) return 0;
    double right = 0;
    for (size_t i = 0; i < want.size(); ++i) right += want[i] == got[i];
    return right / static_cast<double>(want.size());
}

double countdown_reward(std::string_view answer, std::string_view text) {
    const size_t arrow = answer.find(" -> ");
    std::vector<int64_t> want = numbers_in(answer.substr(0, arrow));
    std::string_view line = text.substr(0, text.find('\n'));
    line = line.substr(0, line.find('='));
    if (line.find_first_not_of("0123456789+-*/() ") != line.npos) return 0;  // only an expression is allowed
    std::vector<int64_t> used = numbers_in(line);
    for (int64_t& n : used) n = std::abs(n);
    std::ranges::sort(want), std::ranges::sort(used);
    if (want != used) return 0;
    const auto expression = MathExpression::parse(line), target = MathExpression::parse(answer.substr(arrow + 4));
    if (!expression || !target) return 0;
    return equal(*expression, *target) ? 1 : 0.1;
}

}  // namespace

Result<TaskQuestion> task_question(TaskKind kind, int difficulty, uint64_t seed, uint64_t index) {
    if (difficulty < 1 || difficulty > 6) return fail("difficulty {}: must be 1 to 6", difficulty);
    QuestionDraws draws(kind, difficulty, seed, index);
    switch (kind) {
        case TaskKind::sum:
            return sum_question(difficulty, draws);
        case TaskKind::sort:
            return sort_question(difficulty, draws);
        case TaskKind::countdown:
            return countdown_question(difficulty, draws);
        case TaskKind::words:
            break;
    }
    return words_question(difficulty, draws);
}

double task_reward(TaskKind kind, const TaskQuestion& question, std::string_view text) {
    switch (kind) {
        case TaskKind::sort:
            return sort_reward(question.answer, text);
        case TaskKind::countdown:
            return countdown_reward(question.answer, text);
        case TaskKind::sum:
        case TaskKind::words:
            break;
    }
    return math_reward(text, question.answer);
}

std::string task_answer(TaskKind kind, std::string_view text) {
    if (kind == TaskKind::sum || kind == TaskKind::words)
        if (auto found = math_answer(text)) return *std::move(found);
    return std::string(text.substr(0, text.find('\n')));
}

}  // namespace nibble
