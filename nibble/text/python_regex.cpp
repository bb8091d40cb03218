#include "text/python_regex.h"

#include "base/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <vector>

namespace nibble {
namespace {

constexpr size_t most_pattern_bytes = 4096;
constexpr int most_depth = 100;
constexpr int64_t most_repeats = 65535;  // PCRE2's
constexpr uint32_t most_steps = 100'000, most_kib = 4096;
constexpr int64_t unbounded = std::numeric_limits<int32_t>::max();

// Characters that a match of some part takes.
struct Width {
    int64_t low = 0, high = 0;
};

Width operator+(Width a, Width b) { return {std::min(a.low + b.low, unbounded), std::min(a.high + b.high, unbounded)}; }
Width either(Width a, Width b) { return {std::min(a.low, b.low), std::max(a.high, b.high)}; }

struct Flags {
    bool verbose = false, ascii = false, ignore_case = false;
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_octal(char c) { return c >= '0' && c <= '7'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// The inside of a class for \d, \s or \w.
std::string_view category_set(char category, bool ascii) {
    switch (category) {
        case 'd':
            return ascii ? "0-9" : "\\p{Nd}";
        case 's':
            return ascii ? "\\x{9}-\\x{d}\\x{20}"
                         : "\\x{9}-\\x{d}\\x{1c}-\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}"
                           "\\x{202f}\\x{205f}\\x{3000}";
        default:
            return ascii ? "0-9A-Za-z_" : "\\p{L}\\p{N}_";
    }
}

std::string literal(char32_t c) {
    if (c < 128 && (is_letter(char(c)) || is_digit(char(c)) || c == '_')) return std::string(1, char(c));
    return fmt::format("\\x{{{:x}}}", uint32_t(c));
}

// Recursive descent over a pattern as Python's parser walks it; `out_` is the same in PCRE2's words. Named groups
// become numbered ones, verbose patterns lose their blanks, every escape becomes a character or a class.
class PythonTranslator {
public:
    explicit PythonTranslator(std::string_view pattern) : text_(pattern) {}

    // The options that pcre2_compile needs in addition to the text.
    Result<std::pair<std::string, uint32_t>> run() {
        NIBBLE_TRY(const Width width, alternatives({}, 0));
        static_cast<void>(width);
        if (!at_end()) return fail("unbalanced parenthesis");
        if (needed_group_ > groups()) return fail("invalid group reference {}", needed_group_);
        return std::pair(std::move(out_), options_);
    }

private:
    enum class Item : uint8_t { none, anchor, repeat, atom };

    struct Group {
        Width width;
        bool closed = false;
    };

    bool at_end() const { return at_ >= text_.size(); }
    char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
    bool take(char c) {
        if (at_end() || text_[at_] != c) return false;
        ++at_;
        return true;
    }
    char32_t character() {
        const Utf8Step step = utf8_step(text_, at_);
        at_ += step.size;
        return step.code;
    }
    int64_t groups() const { return static_cast<int64_t>(groups_.size()); }

    // Branches between here and the end or a ')'.
    Result<Width> alternatives(Flags flags, int depth) {
        if (depth > most_depth) return fail("groups are nested deeper than {}", most_depth);
        std::optional<Width> width;
        do {
            if (width) out_ += '|';
            NIBBLE_TRY(const Width branch, sequence(flags, depth, depth == 0 && !width));
            width = width ? either(*width, branch) : branch;
        } while (take('|'));
        return *width;
    }

    // One branch. `first`: global flags may stand at its beginning; they hold for the whole pattern.
    Result<Width> sequence(Flags& flags, int depth, bool first) {
        Width before, last_width;
        Item last = Item::none;
        while (!at_end() && peek() != '|' && peek() != ')') {
            if (flags.verbose && skip_blank()) continue;
            const char c = peek();
            if (c == '*' || c == '+' || c == '?' || c == '{') {
                NIBBLE_TRY(const bool repeats, quantifier(last, last_width));
                if (repeats) {
                    last = Item::repeat;
                    continue;
                }
            }
            if (c == '(' && peek(1) == '?' && (peek(2) == '#' || global_flags_here())) {
                if (peek(2) == '#') {
                    const size_t end = text_.find(')', at_);
                    if (end == text_.npos) return fail("missing ), unterminated comment");
                    at_ = end + 1;
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
        if (std::string_view(" \t\n\r\v\f").find(peek()) != std::string_view::npos) {
            ++at_;
            return true;
        }
        if (peek() != '#') return false;
        at_ = std::min(text_.find('\n', at_), text_.size());
        return true;
    }

    // False for a '{' that stands for itself.
    Result<bool> quantifier(Item last, Width& width) {
        const size_t begin = at_;
        int64_t low = 0, high = unbounded;
        const char c = text_[at_++];
        if (c == '+') low = 1;
        if (c == '?') high = 1;
        if (c == '{') {
            const auto number = [&](int64_t& value) {
                bool any = false;
                int64_t n = 0;
                for (; is_digit(peek()); ++at_, any = true) n = std::min(n * 10 + (peek() - '0'), unbounded - 1);
                if (any) value = n;
                return any;
            };
            bool counts = peek() != '}';
            if (counts) {
                const bool has_low = number(low);
                if (take(',')) {
                    number(high);
                } else {
                    counts = has_low;
                    high = low;
                }
                counts = take('}') && counts;
            }
            if (!counts) {
                at_ = begin;
                return false;
            }
            if (high < low) return fail("min repeat greater than max repeat");
        }
        if (last == Item::none || last == Item::anchor) return fail("nothing to repeat");
        if (last == Item::repeat) return fail("multiple repeat");
        if (low > most_repeats || (high != unbounded && high > most_repeats))
            return fail("repeats above {} are not supported", most_repeats);
        out_ += high == unbounded ? fmt::format("{{{},}}", low) : fmt::format("{{{},{}}}", low, high);
        if (take('?'))
            out_ += '?';
        else if (take('+'))
            out_ += '+';
        const auto times = [](int64_t a, int64_t b) { return a && b > unbounded / a ? unbounded : a * b; };
        width = {times(width.low, low), times(width.high, high)};
        return true;
    }

    Result<Width> atom(Flags flags, int depth, Item& kind) {
        kind = Item::atom;
        switch (peek()) {
            case '(':
                return group(flags, depth);
            case '[':
                NIBBLE_CHECK(character_class(flags));
                return Width{1, 1};
            case '\\':
                return escape(flags, kind);
            case '^':
            case '$':
                kind = Item::anchor;
                out_ += text_[at_++];
                return Width{};
            case '.':
                out_ += text_[at_++];
                return Width{1, 1};
            default:
                out_ += literal(character());
                return Width{1, 1};
        }
    }

    // ---- Escapes ----------------------------------------------------------------------------------------------------

    // After "\x", "\u" or "\U".
    Result<char32_t> hexadecimal(size_t digits) {
        uint32_t value = 0;
        for (size_t i = 0; i < digits; ++i) {
            const char c = peek();
            const int digit = is_digit(c)            ? c - '0'
                              : c >= 'a' && c <= 'f' ? c - 'a' + 10
                              : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                     : -1;
            if (digit < 0) return fail("incomplete escape: {} hexadecimal digits are needed", digits);
            value = value << 4 | static_cast<uint32_t>(digit);
            ++at_;
        }
        if (value > 0x10FFFF) return fail("bad escape: no character has the code {:x}", value);
        if (value >= 0xD800 && value <= 0xDFFF) return fail("the surrogate {:x} is not supported", value);
        return static_cast<char32_t>(value);
    }

    // Escapes that are one character wherever they stand; the backslash and `c` are read. Nothing for other ones.
    Result<std::optional<char32_t>> simple_escape(char c) {
        constexpr std::string_view names = "afnrtv\\", values = "\a\f\n\r\t\v\\";
        if (const size_t found = names.find(c); found != names.npos)
            return std::optional(static_cast<char32_t>(values[found]));
        const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
        if (digits) {
            NIBBLE_TRY(const char32_t value, hexadecimal(digits));
            return std::optional(value);
        }
        if (c == 'N') return fail("\\N{{...}} is not supported");
        return std::optional<char32_t>();
    }

    // Up to `more` further octal digits after the ones read.
    Result<char32_t> octal(uint32_t value, int more) {
        for (; more > 0 && is_octal(peek()); --more) value = value * 8 + static_cast<uint32_t>(text_[at_++] - '0');
        if (value > 0377) return fail("octal escape value outside of range 0-0o377");
        return static_cast<char32_t>(value);
    }

    // A character that escaping does not change.
    Result<char32_t> escaped_itself() {
        const char c = peek();
        if (is_letter(c) || is_digit(c)) return fail("bad escape \\{}", c);
        return character();
    }

    Result<Width> escape(Flags flags, Item& kind) {
        ++at_;
        if (at_end()) return fail("bad escape (end of pattern)");
        const char c = peek();
        const std::string word = fmt::format("[{}]", category_set('w', flags.ascii));
        const auto anchor = [&](std::string_view text) {
            ++at_;
            kind = Item::anchor;
            out_ += text;
            return Width{};
        };
        if (c == 'A') return anchor("\\A");
        if (c == 'Z') return anchor("\\z");
        if (c == 'b') return anchor(fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word));
        if (c == 'B') return anchor(fmt::format("(?:(?<={0})(?={0})|(?!\\A\\z)(?<!{0})(?!{0}))", word));
        if (std::string_view("dDsSwW").find(c) != std::string_view::npos) {
            ++at_;
            const bool negated = c < 'a';
            out_ +=
                fmt::format("[{}{}]", negated ? "^" : "", category_set(negated ? char(c - 'A' + 'a') : c, flags.ascii));
            return Width{1, 1};
        }
        if (c >= '1' && c <= '9') return number_escape();
        char32_t value = 0;
        if (c == '0') {
            ++at_;
            NIBBLE_TRY(value, octal(0, 2));
        } else if (is_letter(c) || c == '\\') {
            ++at_;
            NIBBLE_TRY(const auto simple, simple_escape(c));
            if (!simple) return fail("bad escape \\{}", c);
            value = *simple;
        } else {
            NIBBLE_TRY(value, escaped_itself());
        }
        out_ += literal(value);
        return Width{1, 1};
    }

    // "\12": a group, or with three octal digits a character.
    Result<Width> number_escape() {
        const char first = text_[at_++];
        int64_t number = first - '0';
        if (is_digit(peek())) {
            const char second = text_[at_++];
            if (is_octal(first) && is_octal(second) && is_octal(peek())) {
                NIBBLE_TRY(const char32_t value, octal(static_cast<uint32_t>((first - '0') * 8 + second - '0'), 1));
                out_ += literal(value);
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

    // ---- Classes ----------------------------------------------------------------------------------------------------

    // A member of a class: one character, or a category ('d', 'S' ...).
    struct Member {
        char32_t value = 0;
        char category = 0;
    };

    Result<Member> member() {
        if (!take('\\')) return Member{character()};
        if (at_end()) return fail("bad escape (end of pattern)");
        const char c = peek();
        if (std::string_view("dDsSwW").find(c) != std::string_view::npos) {
            ++at_;
            return Member{0, c};
        }
        if (c == 'b') {
            ++at_;
            return Member{8};
        }
        if (is_octal(c)) {
            ++at_;
            NIBBLE_TRY(const char32_t value, octal(static_cast<uint32_t>(c - '0'), 2));
            return Member{value};
        }
        if (is_letter(c) || c == '\\') {
            ++at_;
            NIBBLE_TRY(const auto simple, simple_escape(c));
            if (!simple) return fail("bad escape \\{}", c);
            return Member{*simple};
        }
        NIBBLE_TRY(const char32_t value, escaped_itself());
        return Member{value};
    }

    // PCRE2 classes cannot hold the complement of a class, so \D, \S and \W become alternatives.
    Status character_class(Flags flags) {
        ++at_;
        const bool negated = take('^');
        std::string inside;
        std::vector<std::string_view> complements;
        const auto add = [&](const Member& m) {
            if (!m.category)
                inside += literal(m.value);
            else if (m.category >= 'a')
                inside += category_set(m.category, flags.ascii);
            else
                complements.push_back(category_set(char(m.category - 'A' + 'a'), flags.ascii));
        };
        for (bool empty = true; empty || peek() != ']'; empty = false) {
            if (at_end()) return fail("unterminated character set");
            NIBBLE_TRY(const Member low, member());
            if (peek() != '-' || peek(1) == ']') {
                add(low);
                continue;
            }
            ++at_;
            if (at_end()) return fail("unterminated character set");
            NIBBLE_TRY(const Member high, member());
            if (low.category || high.category || high.value < low.value) return fail("bad character range");
            inside += literal(low.value) + "-" + literal(high.value);
        }
        ++at_;
        if (complements.empty()) {
            out_ += fmt::format("[{}{}]", negated ? "^" : "", inside);
        } else if (!negated) {
            out_ += inside.empty() ? "(?:" : fmt::format("(?:[{}]|", inside);
            for (size_t i = 0; i < complements.size(); ++i)
                out_ += fmt::format("{}[^{}]", i ? "|" : "", complements[i]);
            out_ += ')';
        } else {
            out_ += inside.empty() ? "(?:" : fmt::format("(?:(?![{}])", inside);
            for (size_t i = 0; i + 1 < complements.size(); ++i) out_ += fmt::format("(?=[{}])", complements[i]);
            out_ += fmt::format("[{}])", complements.back());
        }
        return Ok{};
    }

    // ---- Groups and flags -------------------------------------------------------------------------------------------

    // "(?im)" and not "(?im:".
    bool global_flags_here() const {
        size_t end = at_ + 2;
        while (end < text_.size() && is_letter(text_[end])) ++end;
        return end > at_ + 2 && end < text_.size() && text_[end] == ')' && text_[at_ + 2] != 'P';
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
        at_ += 2;
        bool unicode = false;
        for (char c = text_[at_++]; c != ')'; c = text_[at_++]) {
            NIBBLE_CHECK(set_flag(c, flags, nullptr));
            unicode |= c == 'u';
            options_ |= c == 'i' ? PCRE2_CASELESS : c == 'm' ? PCRE2_MULTILINE : c == 's' ? PCRE2_DOTALL : 0;
        }
        return check_flags(flags, unicode);
    }

    // "(?i-s:": the flags of a group, after "(?". Emits the group's beginning.
    Status group_flags(Flags& flags) {
        std::string on, off, turned_on;
        Flags added;
        bool unicode = false, any_off = false;
        for (; is_letter(peek()); ++at_) {
            turned_on += peek();
            unicode |= peek() == 'u';
            NIBBLE_CHECK(set_flag(peek(), added, &on));
        }
        NIBBLE_CHECK(check_flags(added, unicode));
        flags = {.verbose = flags.verbose || added.verbose,
                 .ascii = added.ascii || (flags.ascii && !unicode),
                 .ignore_case = flags.ignore_case || added.ignore_case};
        if (take('-')) {
            for (; is_letter(peek()); ++at_, any_off = true) {
                const char c = peek();
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
        if (!take(':')) return at_end() ? fail("missing -, : or )") : fail("unknown extension ?{}", peek());
        out_ += fmt::format("(?{}{}{}:", on, off.empty() ? "" : "-", off);
        return Ok{};
    }

    Result<std::string_view> name_until(char end) {
        const size_t stop = text_.find(end, at_);
        if (stop == text_.npos) return fail("missing {}, unterminated name", end);
        const std::string_view name = text_.substr(at_, stop - at_);
        if (name.empty()) return fail("missing group name");
        at_ = stop + 1;
        return name;
    }

    static bool identifier(std::string_view name) {
        return !is_digit(name[0]) && std::ranges::all_of(name, [](char c) {
            return is_letter(c) || is_digit(c) || c == '_' || static_cast<unsigned char>(c) >= 128;
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
        if (!take(')')) return fail("missing ), unterminated subpattern");
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

    Result<Width> look(Flags flags, int depth, std::string_view begin, bool behind) {
        out_ += begin;
        const auto outer = lookbehind_;
        if (behind && !lookbehind_) lookbehind_ = groups();
        NIBBLE_TRY(const Width width, close(alternatives(flags, depth + 1)));
        lookbehind_ = outer;
        if (behind && width.low != width.high) return fail("look-behind requires fixed-width pattern");
        return Width{};
    }

    Result<Width> conditional(Flags flags, int depth) {
        NIBBLE_TRY(const std::string_view name, name_until(')'));
        int64_t number = 0;
        if (std::ranges::all_of(name, is_digit)) {
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
        if (take('|')) {
            out_ += '|';
            NIBBLE_TRY(no, sequence(flags, depth + 1, false));
            if (peek() == '|') return fail("conditional backref with more than two branches");
        }
        return close(either(yes, no));
    }

    Result<Width> group(Flags flags, int depth) {
        if (depth >= most_depth) return fail("groups are nested deeper than {}", most_depth);
        ++at_;
        if (!take('?')) return capture(flags, depth, {});
        if (at_end()) return fail("unexpected end of pattern");
        const char c = peek();
        if (is_letter(c) && c != 'P') {
            NIBBLE_CHECK(group_flags(flags));
            return close(alternatives(flags, depth + 1));
        }
        ++at_;
        switch (c) {
            case 'P': {
                if (take('<')) {
                    NIBBLE_TRY(const std::string_view name, name_until('>'));
                    if (!identifier(name)) return fail("bad character in group name '{}'", name);
                    return capture(flags, depth, name);
                }
                if (!take('='))
                    return at_end() ? fail("unexpected end of pattern") : fail("unknown extension ?P{}", peek());
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
                if (take('=')) return look(flags, depth, "(?<=", true);
                if (take('!')) return look(flags, depth, "(?<!", true);
                return fail("unknown extension ?<{}", peek());
            case '(':
                return conditional(flags, depth);
            case '-':
                --at_;
                NIBBLE_CHECK(group_flags(flags));
                return close(alternatives(flags, depth + 1));
            default:
                return fail("unknown extension ?{}", c);
        }
    }

    std::string_view text_;
    size_t at_ = 0;
    std::string out_;
    uint32_t options_ = 0;
    std::vector<Group> groups_;
    std::map<std::string_view, int64_t> names_;
    std::optional<int64_t> lookbehind_;  // groups before the outermost look-behind that is open
    int64_t needed_group_ = 0;
};

}  // namespace

struct PythonRegex::Compiled {
    Compiled() : match(pcre2_match_context_create(nullptr)) {
        if (!match) return;
        pcre2_set_match_limit(match, most_steps);
        pcre2_set_heap_limit(match, most_kib);
    }
    ~Compiled() {
        pcre2_code_free(code);
        pcre2_match_context_free(match);
    }
    Compiled(const Compiled&) = delete;
    Compiled& operator=(const Compiled&) = delete;

    std::string pattern;
    pcre2_code* code = nullptr;
    pcre2_match_context* const match;
};

Result<PythonRegex> PythonRegex::compile(std::string_view pattern) {
    const auto where = [&] { return fmt::format("regular expression '{}'", printable(pattern, 200)); };
    if (pattern.size() > most_pattern_bytes) return fail("{}: is longer than {} bytes", where(), most_pattern_bytes);
    if (!utf8_valid(pattern)) return fail("{}: is not UTF-8", where());
    NIBBLE_TRY(const auto translated, PythonTranslator(pattern).run().within(where()));
    const auto& [text, options] = translated;
    const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
        pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
    auto compiled = std::make_shared<Compiled>();
    if (!context || !compiled->match) return fail("out of memory for a regular expression");
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    int code = 0;
    PCRE2_SIZE offset = 0;
    constexpr uint32_t always = PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C | PCRE2_ALT_CIRCUMFLEX;
    compiled->pattern = pattern;
    compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), always | options, &code,
                                   &offset, context.get());
    if (!compiled->code) {
        PCRE2_UCHAR message[256] = {};
        pcre2_get_error_message(code, message, sizeof message);
        return fail("{}: {}", where(), reinterpret_cast<const char*>(message));
    }
    PythonRegex out;
    out.compiled_ = std::move(compiled);
    return out;
}

Result<bool> PythonRegex::match(std::string_view text) const {
    const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(pcre2_match_data_create(1, nullptr),
                                                                              pcre2_match_data_free);
    if (!data) return fail("out of memory for a regular expression");
    const int found = pcre2_match(compiled_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0,
                                  PCRE2_ANCHORED, data.get(), compiled_->match);
    if (found == PCRE2_ERROR_NOMATCH) return false;
    if (found >= 0) return true;
    const std::string where = fmt::format("regular expression '{}'", printable(compiled_->pattern, 200));
    if (found == PCRE2_ERROR_MATCHLIMIT || found == PCRE2_ERROR_DEPTHLIMIT || found == PCRE2_ERROR_HEAPLIMIT)
        return fail("{}: more than {} steps for '{}'", where, most_steps, printable(text, 200));
    return fail("{}: PCRE2 error {} for '{}'", where, found, printable(text, 200));
}

}  // namespace nibble
