// What an answer is worth against the right one of a data set's row: 1 or 0 by a rule, and a share for its form.
#pragma once

#include "base/error.h"
#include "rl/code_reward.h"

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace nibble {

class Pattern;

enum class AnswerRule : uint8_t {
    math,    // math_reward() (rl/math_answer.h)
    exact,   // the same text but for white space around it
    regex,   // the right answer is a regular expression (text/regex.h) that the text must match somewhere
    choice,  // the right answer is a letter from A to J, which choice_answer() of the text must be
    code,    // the text's program must pass the answer's tests (rl/code_reward.h)
};
inline constexpr std::array<std::string_view, 5> answer_rule_names{"math", "exact", "regex", "choice", "code"};

// The letter that a text chooses: a single letter in what marked_answer() (rl/math_answer.h) finds; otherwise the last
// capital letter from A to J that is a word of its own ("so (B)", "B.", not "Bob").
std::optional<char> choice_answer(std::string_view text);

// What a row of data says under its answer key, as the rule compares it: of `math` what is marked in it (GSM8K's
// "... #### 42"), else all of it; of `choice` the letter; not of `code`, whose answers are code_tests(). Error: an
// answer that the rule cannot use, with the reason.
Result<std::string> expected_answer(AnswerRule rule, std::string_view answer);

// What a text says by the rule: math_answer(), choice_answer(), code_of(), or without one, and by the other rules, the
// text but for white space around it.
std::string given_answer(AnswerRule rule, std::string_view text);

struct AnswerRewardOptions {
    AnswerRule rule = AnswerRule::math;
    std::string format;         // a regular expression that a well formed answer matches somewhere; empty: none
    double format_share = 0.1;  // of the reward, where there is a format: 1 is right and well formed
    CodeRewardOptions code;     // of `code`
};
// Error: a format that is no regular expression.
Status check(const AnswerRewardOptions& options);

class AnswerReward {
public:
    // Error: as check(); by `code` what a sandbox lacks.
    static Result<AnswerReward> create(AnswerRewardOptions options);

    // `expected`: from expected_answer() or code_tests(). Thread-safe. Error: a regular expression that costs too much
    // on this text; a sandbox that failed.
    Result<double> operator()(std::string_view text, const std::string& expected) const;

private:
    explicit AnswerReward(AnswerRewardOptions options) : options_(std::move(options)) {}
    Result<double> by_rule(std::string_view text, const std::string& expected) const;

    AnswerRewardOptions options_;
    std::shared_ptr<const Pattern> format_;   // null: none
    std::shared_ptr<const CodeReward> code_;  // of `code`
};

}  // namespace nibble
