#include "rl/math_answer.h"

#include "rl/math_expression.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace nibble {
namespace {

constexpr size_t most_answer_bytes = 4096;

std::string_view trimmed(std::string_view s) {
    static constexpr std::string_view outer = " \n\r\t$*";
    const size_t first = s.find_first_not_of(outer);
    if (first == s.npos) return {};
    s = s.substr(first, s.find_last_not_of(outer) - first + 1);
    while (!s.empty() && (s.back() == '.' || s.back() == ',' || s.back() == ';')) s.remove_suffix(1);
    return s;
}

// The bytes between `open` at text[at - 1] and the bracket that closes it.
std::optional<std::string_view> bracketed(std::string_view text, size_t at) {
    int depth = 1;
    for (size_t i = at; i < text.size(); ++i) {
        if (text[i] == '{' && (i == 0 || text[i - 1] != '\\')) ++depth;
        if (text[i] == '}' && text[i - 1] != '\\' && --depth == 0) return text.substr(at, i - at);
    }
    return std::nullopt;
}

std::optional<std::string_view> last_boxed(std::string_view text) {
    static constexpr std::string_view word = "\\boxed{";
    for (size_t at = text.rfind(word); at != text.npos; at = at ? text.rfind(word, at - 1) : text.npos)
        if (const auto inner = bracketed(text, at + word.size())) return inner;
    return std::nullopt;
}

std::optional<std::string_view> behind(std::string_view text, std::string_view lower, std::string_view word) {
    const size_t at = lower.rfind(word);
    if (at == lower.npos) return std::nullopt;
    std::string_view rest = text.substr(at + word.size());
    while (!rest.empty() && (rest[0] == ':' || rest[0] == ' ')) rest.remove_prefix(1);
    rest = rest.substr(0, rest.find('\n'));
    if (const size_t end = rest.find(". "); end != rest.npos) rest = rest.substr(0, end);
    rest = trimmed(rest);
    return rest.empty() ? std::nullopt : std::optional(rest);
}

std::optional<std::string_view> last_number(std::string_view text) {
    const auto part = [](char c) { return (c >= '0' && c <= '9') || c == '.' || c == ',' || c == '/'; };
    for (size_t end = text.size(); end > 0; --end) {
        if (!std::isdigit(static_cast<unsigned char>(text[end - 1]))) continue;
        size_t begin = end;
        while (begin > 0 && part(text[begin - 1])) --begin;
        while (begin < end && (text[begin] == ',' || text[begin] == '.' || text[begin] == '/')) ++begin;
        if (begin > 0 && text[begin - 1] == '-') --begin;
        return text.substr(begin, end - begin);
    }
    return std::nullopt;
}

// "(a, b)" and "\{a, b\}" at their commas outside brackets; one part for everything else.
struct AnswerList {
    std::vector<std::string_view> parts;
    char open = 0, close = 0;  // 0: not a list
};

// Without \left and \right, which say how large a bracket is printed.
std::string without_sizes(std::string_view text) {
    std::string s(text);
    for (const std::string_view word : {"\\left", "\\right"})
        for (size_t at = s.find(word); at != s.npos; at = s.find(word, at))
            if (at + word.size() < s.size() && !std::isalpha(static_cast<unsigned char>(s[at + word.size()])))
                s.erase(at, word.size());
            else
                ++at;
    return s;
}

AnswerList split_answer(std::string_view s) {
    AnswerList list;
    std::string_view inner = s;
    const auto strip = [&](std::string_view open, std::string_view close) {
        if (!s.starts_with(open) || !s.ends_with(close) || s.size() < open.size() + close.size()) return false;
        inner = s.substr(open.size(), s.size() - open.size() - close.size());
        list.open = open.back(), list.close = close.back();
        return true;
    };
    for (const auto& [open, close] : {std::pair{"\\{", "\\}"}, {"(", ")"}, {"[", "]"}, {"(", "]"}, {"[", ")"}})
        if (strip(open, close)) break;
    int depth = 0;
    size_t begin = 0;
    for (size_t i = 0; i <= inner.size(); ++i) {
        const char c = i < inner.size() ? inner[i] : ',';
        if (c == '(' || c == '{' || c == '[') ++depth;
        if (c == ')' || c == '}' || c == ']') --depth;
        const bool thousands =
            i + 3 < inner.size() && i > 0 && std::isdigit(static_cast<unsigned char>(inner[i - 1])) &&
            std::ranges::all_of(inner.substr(i + 1, 3), [](unsigned char d) { return std::isdigit(d); }) &&
            (i + 4 == inner.size() || !std::isdigit(static_cast<unsigned char>(inner[i + 4])));
        if (i == inner.size() || (c == ',' && depth == 0 && !thousands)) {
            list.parts.push_back(trimmed(inner.substr(begin, i - begin)));
            begin = i + 1;
        }
    }
    if (list.parts.size() == 1) return {.parts = {s}};
    return list;
}

std::string folded(std::string_view s) {
    std::string out;
    for (const char c : s)
        if (c != ' ' && c != '\\' && c != '{' && c != '}')
            out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return out;
}

// "\\text{(A)}" and "(A)" are the letter of a choice.
std::string_view without_wrapping(std::string_view s) {
    for (const std::string_view word : {"\\text{", "\\mathrm{", "\\textbf{"})
        if (s.starts_with(word) && s.find('}') == s.size() - 1) s = s.substr(word.size(), s.size() - word.size() - 1);
    if (s.size() == 3 && s.front() == '(' && s.back() == ')') s = s.substr(1, 1);
    return s;
}

bool same_value(std::string_view a, std::string_view b) {
    const auto right_side = [](std::string_view s) {
        const size_t at = s.rfind('=');
        return at == s.npos || at + 1 == s.size() ? s : trimmed(s.substr(at + 1));
    };
    a = without_wrapping(trimmed(right_side(a))), b = without_wrapping(trimmed(right_side(b)));
    if (a.empty() || b.empty()) return false;
    if (folded(a) == folded(b)) return true;
    const auto x = MathExpression::parse(a), y = MathExpression::parse(b);
    if (!x || !y) return false;
    if (equal(*x, *y)) return true;
    // "50" for "50\%", as math-verify has it: the sign may be left away.
    const auto percent = [](std::string_view s) { return s.ends_with("%"); };
    if (percent(a) == percent(b)) return false;
    const auto without = MathExpression::parse(
        trimmed(percent(a) ? a.substr(0, a.find_last_not_of("%\\") + 1) : b.substr(0, b.find_last_not_of("%\\") + 1)));
    return without && equal(*without, percent(a) ? *y : *x);
}

}  // namespace

std::optional<std::string> marked_answer(std::string_view text) {
    if (const auto boxed = last_boxed(text)) return std::string(trimmed(*boxed));
    std::string lower(text);
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    for (const std::string_view word : {"####", "answer is", "answer:"})
        if (const auto found = behind(text, lower, word)) return std::string(*found);
    return std::nullopt;
}

std::optional<std::string> math_answer(std::string_view text) {
    if (auto marked = marked_answer(text)) return marked;
    if (const auto found = last_number(text)) return std::string(*found);
    return std::nullopt;
}

bool same_math_answer(std::string_view expected, std::string_view given) {
    if (expected.size() > most_answer_bytes || given.size() > most_answer_bytes) return false;
    const std::string a = without_sizes(trimmed(expected)), b = without_sizes(trimmed(given));
    const AnswerList x = split_answer(a), y = split_answer(b);
    if (x.parts.size() != y.parts.size()) return false;
    if (x.parts.size() > 1 && (x.open != y.open || x.close != y.close)) return false;
    if (x.open != '{') return std::ranges::equal(x.parts, y.parts, same_value);
    std::vector<std::string_view> rest = y.parts;
    for (const std::string_view part : x.parts) {
        const auto found = std::ranges::find_if(rest, [&](std::string_view other) { return same_value(part, other); });
        if (found == rest.end()) return false;
        rest.erase(found);
    }
    return true;
}

double math_reward(std::string_view text, std::string_view expected) {
    const auto found = math_answer(text);
    return found && same_math_answer(expected, *found) ? 1 : 0;
}

}  // namespace nibble
