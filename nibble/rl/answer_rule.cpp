#include "rl/answer_rule.h"

#include "base/utf8.h"
#include "rl/math_answer.h"
#include "text/regex.h"

#include <fmt/ranges.h>

#include <array>

namespace nibble {
namespace {

std::string_view without_space(std::string_view s) {
    const size_t first = s.find_first_not_of(" \t\r\n");
    return first == s.npos ? std::string_view() : s.substr(first, s.find_last_not_of(" \t\r\n") - first + 1);
}

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Reads the letter in "B", "(b)", "B. 42", "\text{B}", "$B$".
std::optional<char> letter_of(std::string_view marked) {
    for (const std::string_view word : {"\\text{", "\\mathrm{", "\\textbf{"})
        if (marked.starts_with(word)) marked.remove_prefix(word.size());
    marked.remove_prefix(std::min(marked.size(), marked.find_first_not_of("([{ $*")));
    if (marked.empty() || !is_ascii_letter(marked[0])) return {};
    if (marked.size() > 1 && (is_ascii_letter(marked[1]) || (marked[1] == ' ' && marked.size() > 2))) return {};
    const auto upper = static_cast<char>(marked[0] & ~0x20);
    return upper <= 'J' ? std::optional(upper) : std::nullopt;
}

Result<bool> is_found(const Pattern& pattern, std::string_view text) {
    std::string valid;
    if (!utf8_valid(text)) {  // an answer may end inside a UTF-8 sequence
        for (size_t at = 0; at < text.size();) {
            const Utf8Step step = utf8_step(text, at);
            utf8_append(valid, step.code);
            at += step.size;
        }
        text = valid;
    }
    Meter meter(MeterLimits::for_text(text.size()));
    RegexSearch search(pattern, text, meter);
    Span match;
    return search.next(match);
}

}  // namespace

std::optional<char> choice_answer(std::string_view text) {
    if (const auto marked = marked_answer(text))
        if (const auto letter = letter_of(*marked)) return letter;
    const auto part_of_word = [&](size_t i) {
        const auto c = static_cast<unsigned char>(text[i]);
        return is_ascii_letter(text[i]) || (c >= '0' && c <= '9') || c == '_' || c >= 0x80 || c == '\'';
    };
    for (size_t i = text.size(); i-- > 0;) {
        if (text[i] < 'A' || text[i] > 'J') continue;
        if ((i == 0 || !part_of_word(i - 1)) && (i + 1 == text.size() || !part_of_word(i + 1))) return text[i];
    }
    return {};
}

Result<std::string> expected_answer(AnswerRule rule, std::string_view answer) {
    if (without_space(answer).empty()) return fail("is empty");
    switch (rule) {
        case AnswerRule::math:
            return marked_answer(answer).value_or(std::string(without_space(answer)));
        case AnswerRule::exact:
            return std::string(without_space(answer));
        case AnswerRule::regex:
            NIBBLE_CHECK(Pattern::regex(answer));
            return std::string(answer);
        case AnswerRule::code:
            return code_tests(Json(answer));
        case AnswerRule::choice:
            break;
    }
    const auto letter = choice_answer(answer);
    if (!letter && without_space(answer).size() == 1) {
        if (const auto small = letter_of(without_space(answer))) return std::string(1, *small);
    }
    if (!letter) return fail("'{}' is not a letter from A to J", printable(answer, 40));
    return std::string(1, *letter);
}

std::string given_answer(AnswerRule rule, std::string_view text) {
    if (rule == AnswerRule::math) {
        if (auto found = math_answer(text)) return *std::move(found);
    }
    if (rule == AnswerRule::choice) {
        if (const auto letter = choice_answer(text)) return std::string(1, *letter);
    }
    if (rule == AnswerRule::code) return code_of(text);
    return std::string(without_space(text));
}

Status check(const AnswerRewardOptions& options) {
    if (!options.format.empty()) NIBBLE_CHECK(Pattern::regex(options.format));
    return Ok{};
}

Result<AnswerReward> AnswerReward::create(AnswerRewardOptions options) {
    AnswerReward made(std::move(options));
    if (!made.options_.format.empty()) {
        NIBBLE_TRY(Pattern pattern, Pattern::regex(made.options_.format));
        made.format_ = std::make_shared<const Pattern>(std::move(pattern));
    }
    if (made.options_.rule == AnswerRule::code) {
        NIBBLE_TRY(CodeReward code, CodeReward::create(made.options_.code));
        made.code_ = std::make_shared<const CodeReward>(std::move(code));
    }
    return made;
}

Result<double> AnswerReward::by_rule(std::string_view text, const std::string& expected) const {
    switch (options_.rule) {
        case AnswerRule::math:
            return math_reward(text, expected);
        case AnswerRule::exact:
            return without_space(text) == expected;
        case AnswerRule::regex: {
            NIBBLE_TRY(const Pattern pattern, Pattern::regex(expected));
            NIBBLE_TRY(const bool found, is_found(pattern, text));
            return found;
        }
        case AnswerRule::code:
            return (*code_)(text, expected);
        case AnswerRule::choice:
            break;
    }
    const auto letter = choice_answer(text);
    return letter && expected == std::string_view(&*letter, 1);
}

Result<double> AnswerReward::operator()(std::string_view text, const std::string& expected) const {
    NIBBLE_TRY(const double reward, by_rule(text, expected));
    if (!format_) return reward;
    NIBBLE_TRY(const bool well_formed, is_found(*format_, text));
    // The form (1 - share) r + share w is not used: rounding makes it differ from 1 for some shares.
    return reward == 1 && well_formed ? 1 : reward * (1 - options_.format_share) + well_formed * options_.format_share;
}

}  // namespace nibble
