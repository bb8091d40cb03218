#include "text/python_escapes.h"

#include "base/utf8.h"

#include <fmt/format.h>

#include <vector>

namespace nibble {

char32_t PatternCursor::character() {
    const Utf8Step step = utf8_step(text_, at_);
    at_ += step.size;
    return step.code;
}

std::optional<std::string_view> PatternCursor::until(char c) {
    const size_t end = text_.find(c, at_);
    if (end == text_.npos) return std::nullopt;
    const std::string_view before = text_.substr(at_, end - at_);
    at_ = end + 1;
    return before;
}

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

std::string pattern_literal(char32_t c) {
    if (c < 128 && (is_pattern_letter(char(c)) || is_pattern_digit(char(c)) || c == '_'))
        return std::string(1, char(c));
    return fmt::format("\\x{{{:x}}}", uint32_t(c));
}

namespace {

// Reads the digits after "\x", "\u" or "\U".
Result<char32_t> hexadecimal(PatternCursor& from, size_t digits) {
    uint32_t value = 0;
    for (size_t i = 0; i < digits; ++i) {
        const char c = from.peek();
        const int digit = is_pattern_digit(c)    ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) return fail("incomplete escape: {} hexadecimal digits are needed", digits);
        value = value << 4 | static_cast<uint32_t>(digit);
        from.skip(1);
    }
    if (value > 0x10FFFF) return fail("bad escape: no character has the code {:x}", value);
    if (value >= 0xD800 && value <= 0xDFFF) return fail("the surrogate {:x} is not supported", value);
    return static_cast<char32_t>(value);
}

// Reads a character that escaping does not change.
Result<char32_t> escaped_itself(PatternCursor& from) {
    const char c = from.peek();
    if (is_pattern_letter(c) || is_pattern_digit(c)) return fail("bad escape \\{}", c);
    return from.character();
}

// A member of a class: one character, or a category ('d', 'S' ...).
struct ClassMember {
    char32_t value = 0;
    char category = 0;
};

Result<ClassMember> class_member(PatternCursor& from) {
    if (!from.take('\\')) return ClassMember{from.character()};
    if (from.at_end()) return fail("bad escape (end of pattern)");
    const char c = from.peek();
    if (std::string_view("dDsSwW").find(c) != std::string_view::npos) {
        from.skip(1);
        return ClassMember{0, c};
    }
    if (c == 'b') {
        from.skip(1);
        return ClassMember{8};
    }
    if (is_pattern_octal(c)) {
        from.skip(1);
        NIBBLE_TRY(const char32_t value, octal_escape(from, static_cast<uint32_t>(c - '0'), 2));
        return ClassMember{value};
    }
    NIBBLE_TRY(const char32_t value, character_escape(from));
    return ClassMember{value};
}

}  // namespace

Result<char32_t> character_escape(PatternCursor& from) {
    constexpr std::string_view names = "afnrtv\\", values = "\a\f\n\r\t\v\\";
    const char c = from.peek();
    if (!is_pattern_letter(c) && c != '\\') return escaped_itself(from);
    from.skip(1);
    if (const size_t found = names.find(c); found != names.npos) return static_cast<char32_t>(values[found]);
    if (const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0) return hexadecimal(from, digits);
    if (c == 'N') return fail("\\N{{...}} is not supported");
    return fail("bad escape \\{}", c);
}

Result<char32_t> octal_escape(PatternCursor& from, uint32_t value, int more) {
    for (; more > 0 && is_pattern_octal(from.peek()); --more)
        value = value * 8 + static_cast<uint32_t>(from.next() - '0');
    if (value > 0377) return fail("octal escape value outside of range 0-0o377");
    return static_cast<char32_t>(value);
}

// PCRE2 classes cannot hold the complement of a class, so \D, \S and \W become alternatives.
Result<std::string> character_class(PatternCursor& from, bool ascii) {
    from.skip(1);
    const bool negated = from.take('^');
    std::string inside, out;
    std::vector<std::string_view> complements;
    const auto add = [&](const ClassMember& m) {
        if (!m.category)
            inside += pattern_literal(m.value);
        else if (m.category >= 'a')
            inside += category_set(m.category, ascii);
        else
            complements.push_back(category_set(char(m.category - 'A' + 'a'), ascii));
    };
    for (bool empty = true; empty || from.peek() != ']'; empty = false) {
        if (from.at_end()) return fail("unterminated character set");
        NIBBLE_TRY(const ClassMember low, class_member(from));
        if (from.peek() != '-' || from.peek(1) == ']') {
            add(low);
            continue;
        }
        from.skip(1);
        if (from.at_end()) return fail("unterminated character set");
        NIBBLE_TRY(const ClassMember high, class_member(from));
        if (low.category || high.category || high.value < low.value) return fail("bad character range");
        inside += pattern_literal(low.value) + "-" + pattern_literal(high.value);
    }
    from.skip(1);
    if (complements.empty()) {
        out += fmt::format("[{}{}]", negated ? "^" : "", inside);
    } else if (!negated) {
        out += inside.empty() ? "(?:" : fmt::format("(?:[{}]|", inside);
        for (size_t i = 0; i < complements.size(); ++i) out += fmt::format("{}[^{}]", i ? "|" : "", complements[i]);
        out += ')';
    } else {
        out += inside.empty() ? "(?:" : fmt::format("(?:(?![{}])", inside);
        for (size_t i = 0; i + 1 < complements.size(); ++i) out += fmt::format("(?=[{}])", complements[i]);
        out += fmt::format("[{}])", complements.back());
    }
    return out;
}

}  // namespace nibble
