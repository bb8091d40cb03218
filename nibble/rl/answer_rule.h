// What an answer is worth against the right one of a data set's row: 1 or 0 by a rule, and a share for its form.
#pragma once

#include "base/error.h"

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
};
std::span<const std::string_view> answer_rule_names();
// Error: an unknown name; lists the names.
Result<AnswerRule> answer_rule_from_name(std::string_view name);

// The letter that a text chooses: a single letter in what marked_answer() (rl/math_answer.h) finds; otherwise the last
// capital letter from A to J that is a word of its own ("so (B)", "B.", not "Bob").
std::optional<char> choice_answer(std::string_view text);

// What a row of data says under its answer key, as the rule compares it: of `math` what is marked in it (GSM8K's
// "... #### 42"), else all of it; of `choice` the letter. Error: an answer that the rule cannot use, with the reason.
Result<std::string> expected_answer(AnswerRule rule, std::string_view answer);

// What a text says by the rule: math_answer(), choice_answer(), or without one, and by the other rules, the text but
// for white space around it.
std::string given_answer(AnswerRule rule, std::string_view text);

struct AnswerRewardOptions {
    AnswerRule rule = AnswerRule::math;
    std::string format;         // a regular expression that a well formed answer matches somewhere; empty: none
    double format_share = 0.1;  // of the reward, where there is a format: 1 is right and well formed
};

class AnswerReward {
public:
    // Error: a format that is no regular expression.
    static Result<AnswerReward> create(AnswerRewardOptions options);

    // `expected`: from expected_answer(). Error: a regular expression that costs too much on this text.
    Result<double> operator()(std::string_view text, const std::string& expected) const;

private:
    AnswerReward(AnswerRewardOptions options, std::shared_ptr<const Pattern> format)
        : options_(std::move(options)), format_(std::move(format)) {}

    AnswerRewardOptions options_;
    std::shared_ptr<const Pattern> format_;  // null: none
};

}  // namespace nibble
