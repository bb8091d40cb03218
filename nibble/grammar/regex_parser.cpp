#include "grammar/regex_parser.h"

#include "base/utf8.h"
#include "grammar/character_class.h"

#include <optional>

namespace nibble {
namespace {

// Anchors during parsing: bytes that never occur in UTF-8, at the beginning and end of the text. The automaton skips
// them (nfa.cpp).
const std::string text_begin(1, expression::begin_mark), text_end(1, expression::end_mark);
constexpr size_t most_repeats = 100'000;

class RegexParser {
public:
    RegexParser(std::string_view pattern, Spelling spelling, int max_depth)
        : pattern_(pattern), spelling_(spelling), max_depth_(max_depth) {}

    Result<ExprPtr> run() {
        if (!utf8_valid(pattern_)) return fail("is not UTF-8");
        NIBBLE_TRY(auto out, alternatives(0));
        if (at_ < pattern_.size()) return here("')' without '('");
        return out;
    }
    bool anchored() const { return anchored_; }

private:
    template <class... Args>
    Error here(fmt::format_string<Args...> format, Args&&... args) const {
        size_t n = 1;
        for (size_t i = 0; i < start_; ++n) i += utf8_step(pattern_, i).size;
        return fail("character {}: {}", n, fmt::format(format, std::forward<Args>(args)...));
    }

    bool ends() const { return at_ == pattern_.size(); }
    bool take(std::string_view text) {
        if (!pattern_.substr(at_).starts_with(text)) return false;
        at_ += text.size();
        return true;
    }
    char32_t next() {
        const Utf8Step step = utf8_step(pattern_, at_);
        at_ += step.size;
        return step.code;
    }

    Result<ExprPtr> alternatives(int depth) {
        if (depth > max_depth_) return here("groups are nested deeper than {}", max_depth_);
        std::vector<ExprPtr> items;
        do {
            NIBBLE_TRY(auto item, sequence(depth));
            items.push_back(std::move(item));
        } while (take("|"));
        return expression::choice(std::move(items));
    }

    Result<ExprPtr> sequence(int depth) {
        std::vector<ExprPtr> items;
        while (!ends() && pattern_[at_] != '|' && pattern_[at_] != ')') {
            start_ = at_;
            NIBBLE_TRY(auto item, one(depth));
            NIBBLE_TRY(item, quantified(std::move(item)));
            items.push_back(std::move(item));
        }
        return expression::sequence(std::move(items));
    }

    Result<ExprPtr> one(int depth) {
        const char32_t c = next();
        switch (c) {
            case '(':
                return group(depth);
            case '[':
                return bracket();
            case '.':
                return expression::set(every_line_ ? CodeSet::all() : class_of_dot().narrow, spelling_);
            case '^':
                return anchor(text_begin);
            case '$':
                return anchor(text_end);
            case '\\':
                return escape();
            case '*':
            case '+':
            case '?':
                return here("nothing to repeat");
            default:
                return expression::set({{c, c}}, spelling_);
        }
    }

    ExprPtr anchor(const std::string& mark) {
        anchored_ = true;
        return expression::text(mark);
    }

    Result<ExprPtr> group(int depth) {
        const size_t open = start_;
        const bool outer = every_line_;
        if (take("?")) {
            if (take("s:")) {
                every_line_ = true;
            } else if (take("=") || take("!")) {
                return here("look-ahead is not supported");
            } else if (take("<=") || take("<!")) {
                return here("look-behind is not supported");
            } else if (take("P<") || take("<")) {
                const size_t end = pattern_.find('>', at_);
                if (end == pattern_.npos) return here("the name of a group has no '>'");
                at_ = end + 1;
            } else if (!take(":")) {
                return here("groups with '(?{}' are not supported", pattern_.substr(at_, 1));
            }
        }
        NIBBLE_TRY(auto inner, alternatives(depth + 1));
        every_line_ = outer;
        start_ = open;
        if (!take(")")) return here("'(' without ')'");
        return inner;
    }

    // Parses an escape after its backslash. Returns its class, possibly of one character.
    Result<CharacterClass> escaped(bool in_class) {
        if (ends()) return here("a backslash at the end");
        const char32_t c = next();
        if (auto found = class_of_escape(c)) return *std::move(found);
        const auto only = [](char32_t code) {
            CharacterClass out;
            out.add(code, code);
            return out;
        };
        static constexpr std::pair<char, char32_t> letters[]{{'n', '\n'}, {'r', '\r'}, {'t', '\t'},
                                                             {'f', '\f'}, {'v', '\v'}, {'a', '\a'}};
        for (const auto& [letter, code] : letters)
            if (c == char32_t(letter)) return only(code);
        if (c == 'b' && in_class) return only('\b');
        if (c == 'b' || c == 'B') return here("word boundaries (\\b, \\B) are not supported");
        if (c == '0' && (ends() || pattern_[at_] < '0' || pattern_[at_] > '9')) return only(0);
        if (c >= '0' && c <= '9') return here("back-references are not supported");
        if (c == 'k') return here("back-references are not supported");
        if (c == 'x' || c == 'u') {
            NIBBLE_TRY(const char32_t code, hexadecimal(c == 'x' ? 2 : 4));
            return only(code);
        }
        if (c == 'c' && !ends() && ((pattern_[at_] | 0x20) >= 'a') && (pattern_[at_] | 0x20) <= 'z')
            return only(next() % 32);
        if (c == 'p' || c == 'P') {
            const size_t end = pattern_.find('}', at_);
            if (!take("{") || end == pattern_.npos) return here("\\p without a name in braces");
            const std::string_view name = pattern_.substr(at_, end - at_);
            at_ = end + 1;
            auto found = class_of_category(name);
            if (!found) return here("\\p{{{}}}: of Unicode's properties only general categories are supported", name);
            return c == 'p' ? *found : found->inverse();
        }
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return here("\\{} is not supported", char(c));
        return only(c);
    }

    Result<char32_t> hexadecimal(size_t digits) {
        const auto read = [&](std::string_view text) -> std::optional<char32_t> {
            char32_t value = 0;
            for (const char d : text) {
                const int n = d >= '0' && d <= '9'   ? d - '0'
                              : d >= 'a' && d <= 'f' ? d - 'a' + 10
                              : d >= 'A' && d <= 'F' ? d - 'A' + 10
                                                     : -1;
                if (n < 0) return std::nullopt;
                value = value * 16 + char32_t(n);
            }
            return value;
        };
        const auto four = [&](size_t at) -> std::optional<char32_t> {
            return at + digits > pattern_.size() ? std::nullopt : read(pattern_.substr(at, digits));
        };
        std::optional<char32_t> code;
        if (digits == 4 && pattern_.substr(at_).starts_with("{")) {
            const size_t end = pattern_.find('}', at_);
            if (end != pattern_.npos && end > at_ + 1 && end < at_ + 8)
                code = read(pattern_.substr(at_ + 1, end - at_ - 1));
            if (code) at_ = end + 1;
        } else if ((code = four(at_))) {
            at_ += digits;
            // Joins the two surrogates of a character beyond U+FFFF.
            if (digits == 4 && *code >= 0xD800 && *code < 0xDC00 && pattern_.substr(at_).starts_with("\\u"))
                if (const auto low = four(at_ + 2); low && *low >= 0xDC00 && *low < 0xE000) {
                    at_ += 6;
                    code = 0x10000 + ((*code - 0xD800) << 10) + (*low - 0xDC00);
                }
        }
        if (!code || *code > 0x10FFFF || (*code >= 0xD800 && *code < 0xE000))
            return here("an escape without the number of a character");
        return *code;
    }

    Result<ExprPtr> escape() {
        if (take("A")) return anchor(text_begin);
        if (take("z") || take("Z")) return anchor(text_end);
        NIBBLE_TRY(const CharacterClass found, escaped(false));
        return expression::set(found.narrow, spelling_);
    }

    Result<ExprPtr> bracket() {
        const size_t open = start_;
        const bool negated = take("^");
        CharacterClass out;
        if (pattern_.substr(at_).starts_with("]"))
            return here("']' at the beginning of a class means something else in every dialect; write '\\]'");
        int64_t from = -1;  // start of a possible range
        while (true) {
            start_ = open;
            if (ends()) return here("'[' without ']'");
            start_ = at_;
            if (take("]")) break;
            if (pattern_.substr(at_).starts_with("[:")) return here("classes such as [:alpha:] are not supported");
            if (take("-") && !ends()) {
                if (pattern_[at_] == ']' || from < 0) {
                    out.add('-', '-');
                    from = -1;
                    continue;
                }
                NIBBLE_TRY(const CharacterClass to, member());
                const auto& ranges = to.narrow.ranges();
                if (ranges.size() != 1 || ranges[0].first != ranges[0].second || to.wide.ranges() != ranges)
                    return here("a range that ends with a class");
                if (int64_t(ranges[0].first) < from) return here("a range that ends before it begins");
                out.add(char32_t(from), ranges[0].first);
                from = -1;
                continue;
            }
            NIBBLE_TRY(const CharacterClass item, member());
            out.add(item);
            const auto& ranges = item.narrow.ranges();
            const bool single = ranges.size() == 1 && ranges[0].first == ranges[0].second;
            from = single && item.wide.ranges() == ranges ? int64_t(ranges[0].first) : -1;
        }
        return expression::set(negated ? out.inverse().narrow : out.narrow, spelling_);
    }

    Result<CharacterClass> member() {
        if (take("\\")) return escaped(true);
        const char32_t c = next();
        CharacterClass out;
        out.add(c, c);
        return out;
    }

    // Parses {n}, {n,} or {n,m}. Any other text after a brace is literal.
    bool bounds(size_t& least, size_t& most) {
        const size_t end = pattern_.find('}', at_);
        if (end == pattern_.npos) return false;
        const std::string_view inner = pattern_.substr(at_ + 1, end - at_ - 1);
        const size_t comma = inner.find(',');
        const auto number = [](std::string_view digits, size_t& out) {
            out = 0;
            for (const char d : digits) {
                if (d < '0' || d > '9') return false;
                out = std::min<size_t>(out * 10 + size_t(d - '0'), most_repeats + 1);
            }
            return !digits.empty();
        };
        if (!number(inner.substr(0, comma), least)) return false;
        most = least;
        if (comma != inner.npos) {
            most = GrammarExpression::unlimited;
            if (comma + 1 < inner.size() && !number(inner.substr(comma + 1), most)) return false;
        }
        at_ = end + 1;
        return true;
    }

    Result<ExprPtr> quantified(ExprPtr item) {
        size_t least = 0, most = GrammarExpression::unlimited;
        start_ = at_;
        if (take("*")) {
        } else if (take("+")) {
            least = 1;
        } else if (take("?")) {
            most = 1;
        } else if (!pattern_.substr(at_).starts_with("{") || !bounds(least, most)) {
            return item;
        }
        if (least > most_repeats || (most > most_repeats && most != GrammarExpression::unlimited))
            return here("a repetition of more than {} times", most_repeats);
        if (least > most) return here("a repetition whose most is less than its least");
        if (take("+")) return here("possessive quantifiers are not supported");
        take("?");
        start_ = at_;
        if (!ends() && (pattern_[at_] == '*' || pattern_[at_] == '+' || pattern_[at_] == '?'))
            return here("nothing to repeat");
        return expression::repeat(std::move(item), least, most);
    }

    std::string_view pattern_;
    Spelling spelling_;
    int max_depth_;
    size_t at_ = 0, start_ = 0;  // start_: position for error messages
    bool anchored_ = false;
    bool every_line_ = false;  // "." matches line ends, as inside (?s: )
};

// Returns true if `item` is the anchor `mark`.
bool is_anchor(const ExprPtr& item, const std::string& mark) {
    return item->kind == GrammarExpression::Kind::text && item->text == mark;
}

bool holds_anchor(const GrammarExpression& e) {
    if (e.kind == GrammarExpression::Kind::text) return e.text == text_begin || e.text == text_end;
    for (const ExprPtr& item : e.items)
        if (holds_anchor(*item)) return true;
    return false;
}

}  // namespace

Result<ExprPtr> parse_regex(std::string_view pattern, const RegexOptions& options, GrammarBudget& budget) {
    if (pattern.size() > budget.limits.max_source_bytes)
        return fail("is longer than {} bytes", budget.limits.max_source_bytes);
    RegexParser parser(pattern, options.spelling, budget.limits.max_depth);
    NIBBLE_TRY(ExprPtr parsed, parser.run());
    const ExprPtr anything = expression::repeat(expression::set(CodeSet::all(), options.spelling), 0);
    bool from_begin = !options.search, to_end = !options.search;
    if (parser.anchored()) {
        // The usual positions: the beginning and end of the whole expression.
        std::vector<ExprPtr> items =
            parsed->kind == GrammarExpression::Kind::sequence ? parsed->items : std::vector<ExprPtr>{parsed};
        while (!items.empty() && is_anchor(items.front(), text_begin)) {
            from_begin = true;
            items.erase(items.begin());
        }
        while (!items.empty() && is_anchor(items.back(), text_end)) {
            to_end = true;
            items.pop_back();
        }
        const ExprPtr rest = expression::sequence(items);
        if (holds_anchor(*rest)) {
            // Anchors at other positions: matches texts between marks, with the marks at their positions.
            const ExprPtr begin = expression::text(text_begin), end = expression::text(text_end);
            const ExprPtr marks = expression::repeat(expression::choice({begin, end}), 0);
            const ExprPtr around =
                options.search ? expression::repeat(expression::choice({anything, begin, end}), 0) : marks;
            NIBBLE_TRY(const Dfa found, Dfa::of(*expression::sequence({around, parsed, around}), budget));
            NIBBLE_TRY(
                const Dfa shape,
                Dfa::of(*expression::sequence({expression::repeat(begin, 1), anything, expression::repeat(end, 1)}),
                        budget));
            NIBBLE_TRY(Dfa both, Dfa::both(found, shape, budget));
            return expression::automaton(std::move(both));
        }
        parsed = rest;
    }
    if (from_begin && to_end) return parsed;
    std::vector<ExprPtr> items;
    if (!from_begin) items.push_back(anything);
    items.push_back(std::move(parsed));
    if (!to_end) items.push_back(anything);
    return expression::sequence(std::move(items));
}

}  // namespace nibble
