#include "text/python_translator.h"

#include "text/python_escapes.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <vector>

namespace nibble {
namespace {

constexpr int most_depth = 100;
constexpr int64_t most_repeats = 65535;  // PCRE2's limit
constexpr int64_t unbounded = std::numeric_limits<int32_t>::max();

// The number of characters that a part can match.
struct Width {
    int64_t low = 0, high = 0;
};

Width operator+(Width a, Width b) { return {std::min(a.low + b.low, unbounded), std::min(a.high + b.high, unbounded)}; }
Width either(Width a, Width b) { return {std::min(a.low, b.low), std::max(a.high, b.high)}; }

struct Flags {
    bool verbose = false, ascii = false, ignore_case = false;
};

// Recursive descent over a pattern, like Python's parser; `out_` is the pattern in PCRE2's syntax. Named groups become
// numbered ones, verbose patterns lose their blanks, every escape becomes a character or a class.
class PythonTranslator {
public:
    explicit PythonTranslator(std::string_view pattern) : from_(pattern) {}

    Result<TranslatedPattern> run() {
        NIBBLE_TRY(const Width width, alternatives({}, 0));
        static_cast<void>(width);
        if (!from_.at_end()) return fail("unbalanced parenthesis");
        if (needed_group_ > groups()) return fail("invalid group reference {}", needed_group_);
        return TranslatedPattern{std::move(out_), options_};
    }

private:
    enum class Item : uint8_t { none, anchor, repeat, atom };

    struct Group {
        Width width;
        bool closed = false;
    };

    int64_t groups() const { return static_cast<int64_t>(groups_.size()); }

    // Parses branches up to the end or a ')'.
    Result<Width> alternatives(Flags flags, int depth) {
        if (depth > most_depth) return fail("groups are nested deeper than {}", most_depth);
        std::optional<Width> width;
        do {
            if (width) out_ += '|';
            NIBBLE_TRY(const Width branch, sequence(flags, depth, depth == 0 && !width));
            width = width ? either(*width, branch) : branch;
        } while (from_.take('|'));
        return *width;
    }

    // Parses one branch. `first`: it may begin with global flags, which apply to the whole pattern.
    Result<Width> sequence(Flags& flags, int depth, bool first) {
        Width before, last_width;
        Item last = Item::none;
        while (!from_.at_end() && from_.peek() != '|' && from_.peek() != ')') {
            if (flags.verbose && skip_blank()) continue;
            const char c = from_.peek();
            if (c == '*' || c == '+' || c == '?' || c == '{') {
                NIBBLE_TRY(const bool repeats, quantifier(last, last_width));
                if (repeats) {
                    last = Item::repeat;
                    continue;
                }
            }
            if (c == '(' && from_.peek(1) == '?' && (from_.peek(2) == '#' || global_flags_here())) {
                if (from_.peek(2) == '#') {
                    if (!from_.until(')')) return fail("missing ), unterminated comment");
                    continue;
                }
                if (!first || last != Item::none) return fail("global flags not at the start of the expression");
                NIBBLE_CHECK(global_flags(flags));
                continue;
            }
            before = before + last_width;
            NIBBLE_TRY(last_width, atom(flags, depth, last));
        }
        return before + last_width;
    }

    bool skip_blank() {
        if (std::string_view(" \t\n\r\v\f").find(from_.peek()) != std::string_view::npos) {
            from_.skip(1);
            return true;
        }
        if (from_.peek() != '#') return false;
        from_.skip_to('\n');
        return true;
    }

    // Returns false for a literal '{'.
    Result<bool> quantifier(Item last, Width& width) {
        const size_t begin = from_.place();
        int64_t low = 0, high = unbounded;
        const char c = from_.next();
        if (c == '+') low = 1;
        if (c == '?') high = 1;
        if (c == '{') {
            const auto number = [&](int64_t& value) {
                bool any = false;
                int64_t n = 0;
                for (; is_pattern_digit(from_.peek()); from_.skip(1), any = true)
                    n = std::min(n * 10 + (from_.peek() - '0'), unbounded - 1);
                if (any) value = n;
                return any;
            };
            bool counts = from_.peek() != '}';
            if (counts) {
                const bool has_low = number(low);
                if (from_.take(',')) {
                    number(high);
                } else {
                    counts = has_low;
                    high = low;
                }
                counts = from_.take('}') && counts;
            }
            if (!counts) {
                from_.go_to(begin);
                return false;
            }
            if (high < low) return fail("min repeat greater than max repeat");
        }
        if (last == Item::none || last == Item::anchor) return fail("nothing to repeat");
        if (last == Item::repeat) return fail("multiple repeat");
        if (low > most_repeats || (high != unbounded && high > most_repeats))
            return fail("repeats above {} are not supported", most_repeats);
        out_ += high == unbounded ? fmt::format("{{{},}}", low) : fmt::format("{{{},{}}}", low, high);
        if (from_.take('?'))
            out_ += '?';
        else if (from_.take('+'))
            out_ += '+';
        const auto times = [](int64_t a, int64_t b) { return a && b > unbounded / a ? unbounded : a * b; };
        width = {times(width.low, low), times(width.high, high)};
        return true;
    }

    Result<Width> atom(Flags flags, int depth, Item& kind) {
        kind = Item::atom;
        switch (from_.peek()) {
            case '(':
                return group(flags, depth);
            case '[': {
                NIBBLE_TRY(const std::string set, character_class(from_, flags.ascii));
                out_ += set;
                return Width{1, 1};
            }
            case '\\':
                return escape(flags, kind);
            case '^':
            case '$':
                kind = Item::anchor;
                out_ += from_.next();
                return Width{};
            case '.':
                out_ += from_.next();
                return Width{1, 1};
            default:
                out_ += pattern_literal(from_.character());
                return Width{1, 1};
        }
    }

    Result<Width> escape(Flags flags, Item& kind) {
        from_.skip(1);
        if (from_.at_end()) return fail("bad escape (end of pattern)");
        const char c = from_.peek();
        const std::string word = fmt::format("[{}]", category_set('w', flags.ascii));
        const auto anchor = [&](std::string_view text) {
            from_.skip(1);
            kind = Item::anchor;
            out_ += text;
            return Width{};
        };
        if (c == 'A') return anchor("\\A");
        if (c == 'Z') return anchor("\\z");
        if (c == 'b') return anchor(fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word));
        if (c == 'B') return anchor(fmt::format("(?:(?<={0})(?={0})|(?!\\A\\z)(?<!{0})(?!{0}))", word));
        if (std::string_view("dDsSwW").find(c) != std::string_view::npos) {
            from_.skip(1);
            const bool negated = c < 'a';
            out_ +=
                fmt::format("[{}{}]", negated ? "^" : "", category_set(negated ? char(c - 'A' + 'a') : c, flags.ascii));
            return Width{1, 1};
        }
        if (c >= '1' && c <= '9') return number_escape();
        char32_t value = 0;
        if (from_.take('0')) {
            NIBBLE_TRY(value, octal_escape(from_, 0, 2));
        } else {
            NIBBLE_TRY(value, character_escape(from_));
        }
        out_ += pattern_literal(value);
        return Width{1, 1};
    }

    // Parses "\12": a group, or with three octal digits a character.
    Result<Width> number_escape() {
        const char first = from_.next();
        int64_t number = first - '0';
        if (is_pattern_digit(from_.peek())) {
            const char second = from_.next();
            if (is_pattern_octal(first) && is_pattern_octal(second) && is_pattern_octal(from_.peek())) {
                NIBBLE_TRY(const char32_t value,
                           octal_escape(from_, static_cast<uint32_t>((first - '0') * 8 + second - '0'), 1));
                out_ += pattern_literal(value);
                return Width{1, 1};
            }
            number = number * 10 + (second - '0');
        }
        return back_reference(number);
    }

    Result<Width> back_reference(int64_t number) {
        if (number > groups()) return fail("invalid group reference {}", number);
        const Group& group = groups_[static_cast<size_t>(number) - 1];
        if (!group.closed) return fail("cannot refer to an open group");
        NIBBLE_CHECK(check_lookbehind(number));
        out_ += fmt::format("\\g{{{}}}", number);
        return group.width;
    }

    Status check_lookbehind(int64_t number) const {
        if (lookbehind_ && number > *lookbehind_)
            return fail("cannot refer to group defined in the same lookbehind subpattern");
        return Ok{};
    }

    // ---- Groups and flags -------------------------------------------------------------------------------------------

    // Returns true if "(?im)", and not "(?im:", follows.
    bool global_flags_here() const {
        size_t end = 2;
        while (is_pattern_letter(from_.peek(end))) ++end;
        return end > 2 && from_.peek(end) == ')' && from_.peek(2) != 'P';
    }

    Status set_flag(char c, Flags& flags, std::string* pcre2) {
        switch (c) {
            case 'i':
                flags.ignore_case = true;
                break;
            case 'a':
                flags.ascii = true;
                break;
            case 'x':
                flags.verbose = true;
                break;
            case 'm':
            case 's':
            case 'u':
                break;
            case 'L':
                return fail("bad inline flags: cannot use 'L' flag with a str pattern");
            default:
                return fail("unknown flag '{}'", c);
        }
        if (pcre2 && (c == 'i' || c == 'm' || c == 's')) *pcre2 += c;
        return Ok{};
    }

    Status check_flags(const Flags& flags, bool unicode) const {
        if (flags.ascii && unicode) return fail("bad inline flags: flags 'a', 'u' and 'L' are incompatible");
        if (flags.ascii && flags.ignore_case) return fail("the flags a and i together are not supported");
        return Ok{};
    }

    Status global_flags(Flags& flags) {
        from_.skip(2);
        bool unicode = false;
        for (char c = from_.next(); c != ')'; c = from_.next()) {
            NIBBLE_CHECK(set_flag(c, flags, nullptr));
            unicode |= c == 'u';
            options_ |= c == 'i' ? PCRE2_CASELESS : c == 'm' ? PCRE2_MULTILINE : c == 's' ? PCRE2_DOTALL : 0;
        }
        return check_flags(flags, unicode);
    }

    // Parses "(?i-s:", the flags of a group, after "(?". Emits the beginning of the group.
    Status group_flags(Flags& flags) {
        std::string on, off, turned_on;
        Flags added;
        bool unicode = false, any_off = false;
        for (; is_pattern_letter(from_.peek()); from_.skip(1)) {
            turned_on += from_.peek();
            unicode |= from_.peek() == 'u';
            NIBBLE_CHECK(set_flag(from_.peek(), added, &on));
        }
        NIBBLE_CHECK(check_flags(added, unicode));
        flags = {.verbose = flags.verbose || added.verbose,
                 .ascii = added.ascii || (flags.ascii && !unicode),
                 .ignore_case = flags.ignore_case || added.ignore_case};
        if (from_.take('-')) {
            for (; is_pattern_letter(from_.peek()); from_.skip(1), any_off = true) {
                const char c = from_.peek();
                Flags removed;
                NIBBLE_CHECK(set_flag(c, removed, &off));
                if (c == 'a' || c == 'u') return fail("bad inline flags: cannot turn off flags 'a', 'u' and 'L'");
                if (turned_on.find(c) != turned_on.npos) return fail("bad inline flags: flag turned on and off");
                flags.verbose &= !removed.verbose;
                flags.ignore_case &= !removed.ignore_case;
            }
            if (!any_off) return fail("missing flag");
        }
        NIBBLE_CHECK(check_flags(flags, false));
        if (!from_.take(':'))
            return from_.at_end() ? fail("missing -, : or )") : fail("unknown extension ?{}", from_.peek());
        out_ += fmt::format("(?{}{}{}:", on, off.empty() ? "" : "-", off);
        return Ok{};
    }

    Result<std::string_view> name_until(char end) {
        const auto name = from_.until(end);
        if (!name) return fail("missing {}, unterminated name", end);
        if (name->empty()) return fail("missing group name");
        return *name;
    }

    static bool identifier(std::string_view name) {
        return !is_pattern_digit(name[0]) && std::ranges::all_of(name, [](char c) {
            return is_pattern_letter(c) || is_pattern_digit(c) || c == '_' || static_cast<unsigned char>(c) >= 128;
        });
    }

    Result<int64_t> group_named(std::string_view name) const {
        if (!identifier(name)) return fail("bad character in group name '{}'", name);
        const auto found = names_.find(name);
        if (found == names_.end()) return fail("unknown group name '{}'", name);
        return found->second;
    }

    Result<Width> close(Result<Width> inside) {
        if (!inside.ok()) return inside;
        if (!from_.take(')')) return fail("missing ), unterminated subpattern");
        out_ += ')';
        return inside;
    }

    Result<Width> capture(Flags flags, int depth, std::string_view name) {
        groups_.emplace_back();
        const size_t index = groups_.size() - 1;
        if (!name.empty() && !names_.emplace(name, groups()).second)
            return fail("redefinition of group name '{}'", name);
        out_ += '(';
        NIBBLE_TRY(const Width width, close(alternatives(flags, depth + 1)));
        groups_[index] = {width, true};
        return width;
    }

    Result<Width> look(Flags flags, int depth, std::string_view begin, bool lookbehind) {
        out_ += begin;
        const auto outer = lookbehind_;
        if (lookbehind && !lookbehind_) lookbehind_ = groups();
        NIBBLE_TRY(const Width width, close(alternatives(flags, depth + 1)));
        lookbehind_ = outer;
        if (lookbehind && width.low != width.high) return fail("look-behind requires fixed-width pattern");
        return Width{};
    }

    Result<Width> conditional(Flags flags, int depth) {
        NIBBLE_TRY(const std::string_view name, name_until(')'));
        int64_t number = 0;
        if (std::ranges::all_of(name, is_pattern_digit)) {
            for (const char c : name) number = std::min(number * 10 + (c - '0'), unbounded);
            if (number == 0) return fail("bad group number");
        } else {
            NIBBLE_TRY(number, group_named(name));
        }
        NIBBLE_CHECK(check_lookbehind(number));
        needed_group_ = std::max(needed_group_, number);
        out_ += fmt::format("(?({})", number);
        NIBBLE_TRY(const Width yes, sequence(flags, depth + 1, false));
        Width no;
        if (from_.take('|')) {
            out_ += '|';
            NIBBLE_TRY(no, sequence(flags, depth + 1, false));
            if (from_.peek() == '|') return fail("conditional backref with more than two branches");
        }
        return close(either(yes, no));
    }

    Result<Width> group(Flags flags, int depth) {
        if (depth >= most_depth) return fail("groups are nested deeper than {}", most_depth);
        from_.skip(1);
        if (!from_.take('?')) return capture(flags, depth, {});
        if (from_.at_end()) return fail("unexpected end of pattern");
        const char c = from_.peek();
        if (is_pattern_letter(c) && c != 'P') {
            NIBBLE_CHECK(group_flags(flags));
            return close(alternatives(flags, depth + 1));
        }
        from_.skip(1);
        switch (c) {
            case 'P': {
                if (from_.take('<')) {
                    NIBBLE_TRY(const std::string_view name, name_until('>'));
                    if (!identifier(name)) return fail("bad character in group name '{}'", name);
                    return capture(flags, depth, name);
                }
                if (!from_.take('='))
                    return from_.at_end() ? fail("unexpected end of pattern")
                                          : fail("unknown extension ?P{}", from_.peek());
                NIBBLE_TRY(const std::string_view name, name_until(')'));
                NIBBLE_TRY(const int64_t number, group_named(name));
                return back_reference(number);
            }
            case ':':
                out_ += "(?:";
                return close(alternatives(flags, depth + 1));
            case '>':
                out_ += "(?>";
                return close(alternatives(flags, depth + 1));
            case '=':
                return look(flags, depth, "(?=", false);
            case '!':
                return look(flags, depth, "(?!", false);
            case '<':
                if (from_.take('=')) return look(flags, depth, "(?<=", true);
                if (from_.take('!')) return look(flags, depth, "(?<!", true);
                return fail("unknown extension ?<{}", from_.peek());
            case '(':
                return conditional(flags, depth);
            case '-':
                from_.go_to(from_.place() - 1);
                NIBBLE_CHECK(group_flags(flags));
                return close(alternatives(flags, depth + 1));
            default:
                return fail("unknown extension ?{}", c);
        }
    }

    PatternCursor from_;
    std::string out_;
    uint32_t options_ = 0;
    std::vector<Group> groups_;
    std::map<std::string_view, int64_t> names_;
    std::optional<int64_t> lookbehind_;  // groups before the outermost open lookbehind
    int64_t needed_group_ = 0;
};

}  // namespace

Result<TranslatedPattern> translate_python_pattern(std::string_view pattern) { return PythonTranslator(pattern).run(); }

}  // namespace nibble
