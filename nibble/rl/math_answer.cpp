#include "rl/math_answer.h"

#include "rl/math_expression.h"

#include <fmt/format.h>

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

// Returns the bytes between the bracket text[at - 1] and the bracket that closes it.
std::optional<std::string_view> bracketed(std::string_view text, size_t at) {
    int depth = 1;
    for (size_t i = at; i < text.size(); ++i) {
        if (text[i] == '{' && (i == 0 || text[i - 1] != '\\')) ++depth;
        if (text[i] == '}' && text[i - 1] != '\\' && --depth == 0) return text.substr(at, i - at);
    }
    return std::nullopt;
}

// Returns true if the text between two boxes is only separators, as in "\\boxed{1} and \\boxed{2}". The boxes are one
// answer then.
bool only_separates(std::string_view s) {
    static constexpr std::string_view words[] = {"\\text{", "\\quad", "\\qquad", "\\[", "\\]",
                                                 "\\(",     "\\)",    "and",     "or"};
    while (!s.empty()) {
        const auto word = std::ranges::find_if(words, [&](std::string_view w) { return s.starts_with(w); });
        if (word != std::end(words))
            s.remove_prefix(word->size());
        else if (std::string_view(" \n\t$,;{}").find(s[0]) != std::string_view::npos)
            s.remove_prefix(1);
        else
            return false;
    }
    return true;
}

// Returns the last box, or the last boxes with only separators between them, as a list.
std::optional<std::string> last_boxed(std::string_view text) {
    static constexpr std::string_view word = "\\boxed{";
    std::optional<std::string> found;
    size_t begin = 0;  // position of the first box of the list
    for (size_t at = text.rfind(word); at != text.npos; at = at ? text.rfind(word, at - 1) : text.npos) {
        const auto inner = bracketed(text, at + word.size());
        if (!inner) continue;
        const auto end = static_cast<size_t>(inner->data() - text.data()) + inner->size() + 1;
        if (found && (end > begin || !only_separates(text.substr(end, begin - end)))) break;
        found = found ? std::string(*inner) + ", " + *found : std::string(*inner);
        begin = at;
    }
    return found;
}

// Returns true if the text has words of prose: at least `least` letters, not a LaTeX command, not a function name.
bool has_words(std::string_view s, size_t least = 3) {
    static constexpr std::string_view functions[] = {"sin", "cos",     "tan",     "log",     "exp",   "abs",  "sqrt",
                                                     "and", "pmatrix", "bmatrix", "vmatrix", "array", "cases"};
    for (size_t i = 0; i < s.size();) {
        size_t end = i;
        while (end < s.size() && std::isalpha(static_cast<unsigned char>(s[end]))) ++end;
        if (end - i >= least && (i == 0 || s[i - 1] != '\\') &&
            std::ranges::count(functions, s.substr(i, end - i)) == 0)
            return true;
        i = std::max(end, i + 1);
    }
    return false;
}

// Removes \\text{...} and similar commands.
std::string without_texts(std::string_view s) {
    std::string out(s);
    for (const std::string_view word : {"\\text{", "\\textbf{", "\\textnormal{", "\\mbox{", "\\mathrm{"})
        for (size_t at = out.find(word); at != out.npos; at = out.find(word)) {
            const auto inner = bracketed(out, at + word.size());
            out.erase(at, word.size() + (inner ? inner->size() + 1 : 0));
        }
    return out;
}

// Returns the content of the last $...$, $$...$$, \(...\) or \[...\]. Prose between two dollar prices does not count.
std::optional<std::string_view> last_formula(std::string_view text) {
    struct Found {
        size_t begin = 0, end = 0;
    };
    std::optional<Found> last;
    for (size_t at = 0; at < text.size();) {
        std::string_view close;
        for (const auto& [open, with] :
             {std::pair<std::string_view, std::string_view>{"$$", "$$"}, {"$", "$"}, {"\\(", "\\)"}, {"\\[", "\\]"}})
            if (close.empty() && text.substr(at).starts_with(open)) close = with;
        if (close.empty() || (at > 0 && text[at - 1] == '\\')) {
            ++at;
            continue;
        }
        const size_t begin = at + close.size();
        size_t end = text.find(close, begin);
        while (end != text.npos && close[0] == '$' && text[end - 1] == '\\') end = text.find(close, end + 1);
        if (end == text.npos) break;
        const std::string_view inner = trimmed(text.substr(begin, end - begin));
        const bool prose = close == "$" && inner.find(' ') != inner.npos && has_words(without_texts(inner));
        if (!inner.empty() && !prose) last = Found{begin, end};
        at = prose ? begin : end + close.size();
    }
    if (!last) return std::nullopt;
    return trimmed(text.substr(last->begin, last->end - last->begin));
}

std::optional<std::string_view> text_after(std::string_view text, std::string_view lower, std::string_view word) {
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
        const auto glued = [&] { return begin > 0 && std::isalpha(static_cast<unsigned char>(text[begin - 1])); };
        while (begin < end &&
               (text[begin] == ',' || text[begin] == '/' ||
                (text[begin] == '.' && (glued() || !std::isdigit(static_cast<unsigned char>(text[begin + 1]))))))
            ++begin;
        if (glued()) {  // part of a word such as "AZYUK2A"
            end = begin;
            continue;
        }
        if (begin > 0 && text[begin - 1] == '-') --begin;
        if (text.substr(end).starts_with("%") || text.substr(end).starts_with("\\%")) end = text.find('%', end) + 1;
        return text.substr(begin, end - begin);
    }
    return std::nullopt;
}

// Returns the whole text if it is a LaTeX expression; otherwise its last formula, or a number after that formula. Plain
// words are excluded because the parser would accept "It is 22" as a product of letters.
std::optional<std::string_view> last_value(std::string_view text) {
    const std::string_view whole = trimmed(text);
    if (whole.find('\\') != whole.npos && whole.find('$') == whole.npos && !has_words(whole, 2) &&
        MathExpression::parse(whole).ok())
        return whole;
    const auto formula = last_formula(text);
    if (!formula) return last_number(text);
    const auto end = static_cast<size_t>(formula->data() - text.data()) + formula->size();
    const auto after = last_number(text.substr(end));
    return after ? after : formula;
}

// Removes what affects only the display of a formula: sizes of brackets, spaces.
std::string without_sizes(std::string_view text) {
    std::string s(text);
    const auto cut = [&](std::string_view word, std::string_view instead, bool letters_end_it) {
        std::string out;
        size_t kept = 0;
        for (size_t at = s.find(word); at != s.npos;) {
            const size_t end = at + word.size();
            if (!letters_end_it || end == s.size() || !std::isalpha(static_cast<unsigned char>(s[end]))) {
                out.append(s, kept, at - kept).append(instead);
                kept = end;
            }
            at = s.find(word, end);
        }
        s = out.append(s, kept);
    };
    for (const std::string_view word : {"\\left", "\\right", "\\displaystyle"}) cut(word, "", true);
    for (const std::string_view word : {"\\quad", "\\qquad"}) cut(word, " ", true);
    cut("\\! ", "", false);
    for (const std::string_view word : {"\\!", "\\,", "\\;", "\\:"}) cut(word, "", false);
    cut("\\ ", " ", false);
    cut("\\cfrac", "\\frac", true);
    cut("{bmatrix}", "{pmatrix}", false);
    for (const auto& [word, sign] : {std::pair{"\\geq", ">="},
                                     {"\\ge", ">="},
                                     {"\\leq", "<="},
                                     {"\\le", "<="},
                                     {"\\lt", "<"},
                                     {"\\gt", ">"},
                                     {"\\neq", "!="},
                                     {"\\ne", "!="}})
        cut(word, sign, true);
    for (const std::string_view word : {"\\text{ and }", "\\text{and}", "\\text{ or }", "\\text{or}", " and ", " or "})
        cut(word, ",", false);
    return s;
}

// The parts of "(a, b)" or "\{a, b\}", split at commas outside inner brackets. Any other text is one part.
struct AnswerList {
    std::vector<std::string> parts;
    char open = 0, close = 0;  // 0: no bracket
    bool ordered() const { return open == '(' || open == '['; }
};

// Returns the two values of "1 \\pm \\sqrt{2}", split at its first sign.
std::vector<std::string> both_signs(std::string_view s) {
    static constexpr std::string_view word = "\\pm";
    const size_t at = s.find(word);
    if (at == s.npos) return {std::string(s)};
    std::vector<std::string> list;
    for (const char* sign : {"+", "-"})
        list.push_back(fmt::format("{} {} {}", s.substr(0, at), sign, s.substr(at + word.size())));
    return list;
}

// Returns the number of brackets that stay open, or -1 if a bracket closes that was not open.
int depth_of(std::string_view s) {
    int depth = 0;
    for (const char c : s) {
        depth += c == '(' || c == '{' || c == '[';
        depth -= c == ')' || c == '}' || c == ']';
        if (depth < 0) return -1;
    }
    return depth;
}

AnswerList split_answer(std::string_view s) {
    AnswerList list;
    std::string_view inner = s;
    const auto strip = [&](std::string_view open, std::string_view close) {
        if (!s.starts_with(open) || !s.ends_with(close) || s.size() < open.size() + close.size()) return false;
        const std::string_view between = s.substr(open.size(), s.size() - open.size() - close.size());
        if (depth_of(between) != 0) return false;  // such as "(1, 2), (3, 4)"
        inner = between, list.open = open.back(), list.close = close.back();
        return true;
    };
    for (const auto& [open, close] :
         {std::pair{"\\{", "\\}"}, {"{", "}"}, {"(", ")"}, {"[", "]"}, {"(", "]"}, {"[", ")"}})
        if (strip(open, close)) break;
    int depth = 0;
    size_t begin = 0;
    for (size_t i = 0; i <= inner.size(); ++i) {
        const char c = i < inner.size() ? inner[i] : ',';
        if (c == '(' || c == '{' || c == '[') ++depth;
        if (c == ')' || c == '}' || c == ']') --depth;
        const bool thousands =
            c == ',' && i + 3 < inner.size() && i > 0 && std::isdigit(static_cast<unsigned char>(inner[i - 1])) &&
            std::ranges::all_of(inner.substr(i + 1, 3), [](unsigned char d) { return std::isdigit(d); }) &&
            (i + 4 == inner.size() || !std::isdigit(static_cast<unsigned char>(inner[i + 4])));
        if (i == inner.size() || ((c == ',' || c == ';') && depth == 0 && !thousands)) {
            const auto part = trimmed(inner.substr(begin, i - begin));
            if (!part.empty() && list.ordered()) list.parts.emplace_back(part);
            if (!part.empty() && !list.ordered()) std::ranges::move(both_signs(part), std::back_inserter(list.parts));
            begin = i + 1;
        }
    }
    if (list.parts.size() < 2) return {.parts = {std::string(s)}};
    return list;
}

std::string folded(std::string_view s) {
    std::string out;
    for (const char c : s)
        if (c != ' ' && c != '\\' && c != '{' && c != '}')
            out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return out;
}

// Reduces "\\text{(A)}" and "(A)" to the letter.
std::string_view without_wrapping(std::string_view s) {
    for (const std::string_view word : {"\\text{", "\\mathrm{", "\\textbf{"})
        if (s.starts_with(word) && s.find('}') == s.size() - 1) s = s.substr(word.size(), s.size() - word.size() - 1);
    if (s.size() == 3 && s.front() == '(' && s.back() == ')') s = s.substr(1, 1);
    return s;
}

// Returns true for a name before "=": "x", "x_1", "f(x)", "(p, q)", or "k" in "k = 3". An expression is not a name.
bool is_name(std::string_view s) {
    int letters = 0;
    for (size_t i = 0; i < s.size(); ++i) {
        const auto c = static_cast<unsigned char>(s[i]);
        const bool below =
            i > 0 && (s[i - 1] == '_' || s[i - 1] == '{' || std::isdigit(static_cast<unsigned char>(s[i - 1])));
        if (std::isalpha(c) && !below)
            ++letters;
        else if (!std::isalpha(c) && !(std::isdigit(c) && below) &&
                 std::string_view(" _{}(),|:\\").find(s[i]) == s.npos)
            return false;
    }
    return letters > 0;
}

// Removes the unit, as in "15 \mbox{ cm}^2".
std::string_view without_unit(std::string_view s) {
    for (const std::string_view word : {"\\text{", "\\mbox{", "\\textbf{", "\\textnormal{", "\\mathrm{"}) {
        const size_t at = s.rfind(word);
        if (at == s.npos || at == 0) continue;
        const size_t end = s.find('}', at);
        if (end == s.npos) continue;
        std::string_view rest = s.substr(end + 1);
        if (rest.starts_with("^")) rest.remove_prefix(1);
        if (rest.find_first_not_of("{}0123456789 ") == rest.npos) return trimmed(s.substr(0, at));
    }
    for (const std::string_view unit : {"mm", "cm", "dm", "km", "mg", "kg", "ml", "ft", "lb", "lbs", "oz", "hr", "hrs",
                                        "min", "sec", "mph", "km/h", "m/s"}) {
        if (!s.ends_with(unit) || s.size() < unit.size() + 2 || s[s.size() - unit.size() - 1] != ' ') continue;
        const std::string_view rest = trimmed(s.substr(0, s.size() - unit.size()));
        if (!rest.empty() && std::isdigit(static_cast<unsigned char>(rest.back()))) return rest;
    }
    return s;
}

// Replaces "28 percent" with "28%".
std::string with_percent(std::string_view s) {
    for (const std::string_view word : {"percentage", "percent", "pct"})
        if (s.ends_with(word)) return std::string(trimmed(s.substr(0, s.size() - word.size()))) + "%";
    return std::string(s);
}

// Splits "x > 3" and "3 < x" into "x" and "3". Returns nothing unless there is exactly one comparison sign.
struct Order {
    std::string_view large, small;
    bool strict = true;
};
std::optional<Order> order_of(std::string_view s) {
    const size_t at = s.find_first_of("<>");
    if (at == s.npos || s.find_first_of("<>", at + 1) != s.npos) return std::nullopt;
    const bool strict = !s.substr(at + 1).starts_with("=");
    const std::string_view left = trimmed(s.substr(0, at)), right = trimmed(s.substr(at + (strict ? 1 : 2)));
    if (left.empty() || right.empty() || right.find('=') != right.npos) return std::nullopt;
    return s[at] == '>' ? Order{left, right, strict} : Order{right, left, strict};
}

// Returns the last side of "x = 5 + 6 = 11", the first side of "2x + 1 = y", and the left side of an approximation
// unless that is a name.
struct NamedValue {
    std::string_view name, value;  // name: set for equations with two sides
};
NamedValue named_value(std::string_view s) {
    if (const size_t about = s.find("\\approx"); about != s.npos) {
        const std::string_view left = trimmed(s.substr(0, about));
        s = is_name(left) ? trimmed(s.substr(about + 7)) : left;
    }
    const size_t first = s.find('='), last = s.rfind('=');
    if (first == s.npos || last + 1 == s.size() || s.find_first_of("<>!") != s.npos) return {{}, s};
    const std::string_view left = trimmed(s.substr(0, first)), right = trimmed(s.substr(last + 1));
    if (is_name(left)) return {first == last ? left : std::string_view(), right};
    return first == last && is_name(right) ? NamedValue{right, left} : NamedValue{{}, s};
}

// "x = 1" differs from "y = 1", but "f(x) = x" may equal "y = x".
bool names_differ(std::string_view a, std::string_view b) {
    const std::string_view x = named_value(a).name, y = named_value(b).name;
    return x.size() == 1 && y.size() == 1 && x != y;
}

bool same_value(std::string_view left, std::string_view right) {
    if (const auto x = order_of(left), y = order_of(right); x && y)
        return x->strict == y->strict && same_value(x->large, y->large) && same_value(x->small, y->small);
    if (names_differ(left, right)) return false;
    const std::string of_left = with_percent(without_unit(named_value(left).value)),
                      of_right = with_percent(without_unit(named_value(right).value));
    std::string_view a = of_left, b = of_right;
    a = without_wrapping(trimmed(a)), b = without_wrapping(trimmed(b));
    if (a.empty() || b.empty()) return false;
    if (folded(a) == folded(b)) return true;
    const auto x = MathExpression::parse(a), y = MathExpression::parse(b);
    if (!x || !y) return false;
    if (equal(*x, *y)) return true;
    // "50" equals "50\%", as in math-verify: the percent sign is optional.
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
        if (const auto found = text_after(text, lower, word)) return std::string(*found);
    return std::nullopt;
}

std::optional<std::string> math_answer(std::string_view text) {
    if (auto marked = marked_answer(text)) {
        if (!has_words(*marked) || last_boxed(text)) return marked;
        return std::string(last_value(*marked).value_or(*marked));  // such as "the answer is that there are 5"
    }
    if (const auto found = last_value(text)) return std::string(*found);
    return std::nullopt;
}

namespace {

// Splits "[0, 1) \\cup (2, 3]" at the \\cup outside brackets.
std::vector<std::string_view> united(std::string_view s) {
    static constexpr std::string_view word = "\\cup";
    std::vector<std::string_view> parts;
    size_t begin = 0;
    for (size_t at = s.find(word); at != s.npos; at = s.find(word, at + 1)) {
        if (depth_of(s.substr(begin, at - begin)) != 0) continue;
        parts.push_back(trimmed(s.substr(begin, at - begin)));
        begin = at + word.size();
    }
    parts.push_back(trimmed(s.substr(begin)));
    return parts;
}

bool same_answer(std::string_view a, std::string_view b, int depth) {
    if (folded(a) == folded(b)) return !folded(a).empty();
    const auto within = [&](const auto& some, const auto& all) {
        return std::ranges::all_of(some, [&](std::string_view part) {
            return std::ranges::any_of(all,
                                       [&](std::string_view other) { return same_answer(part, other, depth - 1); });
        });
    };
    const auto a_of = united(a), b_of = united(b);
    if (depth > 0 && a_of.size() > 1 && b_of.size() > 1) return within(a_of, b_of) && within(b_of, a_of);
    const AnswerList x = split_answer(a), y = split_answer(b);
    if ((x.parts.size() == 1 && y.parts.size() == 1) || depth == 0) return same_value(a, b);
    const auto same = [&](std::string_view one, std::string_view other) { return same_answer(one, other, depth - 1); };
    if (x.ordered() || y.ordered())
        return x.open == y.open && x.close == y.close && std::ranges::equal(x.parts, y.parts, same);
    return within(x.parts, y.parts) && within(y.parts, x.parts);  // sets: repeated elements count once
}

// Removes the name before a list: "(p, q) = (3, 2)", "x \\in [0, 1]".
std::string without_name(const std::string& s) {
    for (const std::string_view sign : {"\\in ", "="})
        if (const size_t at = s.find(sign);
            at != s.npos && at > 0 && s.find(sign, at + 1) == s.npos && is_name(std::string_view(s).substr(0, at)))
            return std::string(trimmed(std::string_view(s).substr(at + sign.size())));
    return s;
}

}  // namespace

bool same_math_answer(std::string_view expected, std::string_view given) {
    if (expected.size() > most_answer_bytes || given.size() > most_answer_bytes) return false;
    const std::string right = without_sizes(trimmed(expected)), other = without_sizes(trimmed(given));
    return !names_differ(right, other) && same_answer(without_name(right), without_name(other), 2);
}

double math_reward(std::string_view text, std::string_view expected) {
    const auto found = math_answer(text);
    return found && same_math_answer(expected, *found) ? 1 : 0;
}

}  // namespace nibble
