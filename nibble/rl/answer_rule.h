// Rewards an answer by comparison with the expected answer of a data row: 1 or 0 by a rule, and a share of it for the
// form.
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
    exact,   // equal text, ignoring white space at both ends
    regex,   // the expected answer is a regular expression (text/regex.h) that must match somewhere in the text
    choice,  // the expected answer is a letter from A to J; choice_answer() of the text must equal it
    code,    // the text's program must pass the answer's tests (rl/code_reward.h)
};
inline constexpr std::array<std::string_view, 5> answer_rule_names{"math", "exact", "regex", "choice", "code"};

// Returns the letter that a text chooses: a single letter in the result of marked_answer() (rl/math_answer.h);
// otherwise the last capital letter from A to J that stands alone ("so (B)", "B.", but not "Bob").
std::optional<char> choice_answer(std::string_view text);

// Converts the value of a row's answer key to the form that the rule compares. `math`: the marked part (GSM8K's "...
// #### 42"), or the whole text if nothing is marked. `choice`: the letter. Do not call it for `code`: those answers go
// through code_tests(). Error: the rule cannot use the answer (gives the reason).
Result<std::string> expected_answer(AnswerRule rule, std::string_view answer);

// Returns the part of a text that the rule compares: math_answer(), choice_answer() or code_of(). If that finds
// nothing, and for the other rules, it returns the text without white space at both ends.
std::string given_answer(AnswerRule rule, std::string_view text);

struct AnswerRewardOptions {
    AnswerRule rule = AnswerRule::math;
    // a regular expression that a well-formed answer matches somewhere; empty: no format is checked
    std::string format;
    // share of the reward for the format, if one is set; a correct and well-formed answer gets 1
    double format_share = 0.1;
    CodeRewardOptions code;  // used by the rule `code` only
};
// Returns an error if the format is not a valid regular expression.
Status check(const AnswerRewardOptions& options);

class AnswerReward {
public:
    // Errors: those of check(); for `code`, no usable sandbox.
    static Result<AnswerReward> create(AnswerRewardOptions options);

    // Returns the reward of a text. `expected` comes from expected_answer() or code_tests(). Thread-safe. Errors: the
    // regular expression exceeds its step limit on this text; the sandbox failed.
    Result<double> operator()(std::string_view text, const std::string& expected) const;

private:
    explicit AnswerReward(AnswerRewardOptions options) : options_(std::move(options)) {}
    Result<double> by_rule(std::string_view text, const std::string& expected) const;

    AnswerRewardOptions options_;
    std::shared_ptr<const Pattern> format_;   // null: no format is checked
    std::shared_ptr<const CodeReward> code_;  // set for the rule `code` only
};

}  // namespace nibble
