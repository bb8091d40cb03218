#include "text/jinja_lexer.h"

#include "text/jinja_text.h"

#include <fmt/format.h>

#include <charconv>

namespace nibble::jinja {
namespace {

// Converts \r\n and \r to \n and removes one newline at the end of the template.
std::string normalize(std::string_view source) {
    std::string out;
    out.reserve(source.size());
    for (size_t i = 0; i < source.size(); ++i) {
        if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
        out += source[i] == '\r' ? '\n' : source[i];
    }
    if (!out.empty() && out.back() == '\n') out.pop_back();
    return out;
}

bool digit(char c) { return c >= '0' && c <= '9'; }
bool name_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<unsigned char>(c) >= 0x80;
}

class Lexer {
public:
    explicit Lexer(std::string_view source) : text_(normalize(source)) {}

    std::vector<Token> run() {
        while (at_ < text_.size()) root();
        emit(TokenKind::end);
        return std::move(tokens_);
    }

private:
    [[noreturn]] void fail(std::string message) const { throw Failure{line_, std::move(message)}; }
    char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
    bool starts(std::string_view what) const { return std::string_view(text_).substr(at_).starts_with(what); }
    void skip(size_t n) {
        for (; n > 0; --n) line_ += text_[at_++] == '\n';
    }
    void skip_spaces() {
        while (at_ < text_.size()) {
            size_t next = at_;
            if (!is_space(next_code_point(text_, next))) break;
            skip(next - at_);
        }
    }
    void emit(TokenKind kind, std::string text = {}) { tokens_.push_back({kind, line_, std::move(text)}); }

    // Reads text up to the next "{{", "{%" or "{#", then that construct.
    void root() {
        size_t open = at_;
        for (;; ++open) {
            open = text_.find('{', open);
            if (open == text_.npos || open + 1 >= text_.size()) open = text_.size();
            if (open == text_.size() || text_[open + 1] == '{' || text_[open + 1] == '%' || text_[open + 1] == '#')
                break;
        }
        std::string_view data = std::string_view(text_).substr(at_, open - at_);
        if (open < text_.size())
            data = cut_before(data, text_[open + 1], open + 2 < text_.size() ? text_[open + 2] : '\0');
        if (!data.empty()) emit(TokenKind::data, std::string(data));
        skip(open - at_);
        if (at_ >= text_.size()) return;
        const char kind = peek(1);
        skip(2);
        const bool sign = peek() == '-' || peek() == '+';
        if (kind == '#') {
            comment();
            return;
        }
        if (sign) skip(1);
        if (kind == '%' && raw()) return;
        emit(kind == '{' ? TokenKind::variable_begin : TokenKind::block_begin);
        expression(kind == '{' ? '}' : '%');
    }

    // "{%-" removes all white space before it. "{%" and "{#" remove the blanks before them on their own line
    // (lstrip_blocks).
    std::string_view cut_before(std::string_view data, char kind, char sign) const {
        if (sign == '-') return strip(data, Side::right);
        if (sign == '+' || kind == '{') return data;
        const size_t newline = data.rfind('\n');
        const size_t line_start = newline == data.npos ? 0 : newline + 1;
        const bool starts_line = line_start > 0 || at_ == 0 || text_[at_ - 1] == '\n';
        if (starts_line && strip(data.substr(line_start)).empty()) return data.substr(0, line_start);
        return data;
    }

    // Called at "-", "+" or the first character of the end marker `close` ("%}", "#}"). Consumes the marker and the
    // white space that it removes.
    bool block_end(std::string_view close) {
        if (peek() == '-' && std::string_view(text_).substr(at_ + 1).starts_with(close)) {
            skip(1 + close.size());
            skip_spaces();
        } else if (peek() == '+' && close != "}}" && std::string_view(text_).substr(at_ + 1).starts_with(close)) {
            skip(1 + close.size());
        } else if (starts(close)) {
            skip(close.size());
            if (close != "}}" && peek() == '\n') skip(1);  // trim_blocks
        } else {
            return false;
        }
        return true;
    }

    void comment() {
        if (at_ >= text_.size()) return;  // like Jinja: "{#" at the very end is not an error
        const int opened = line_;
        while (at_ < text_.size())
            if (block_end("#}"))
                return;
            else
                skip(1);
        line_ = opened;
        fail("a comment is not closed: missing '#}'");
    }

    // Called after "{%" and its sign. Consumes a whole {% raw %}...{% endraw %}.
    bool raw() {
        size_t i = at_;
        const auto spaces = [&](size_t from) {
            while (from < text_.size()) {
                size_t next = from;
                if (!is_space(next_code_point(text_, next))) break;
                from = next;
            }
            return from;
        };
        i = spaces(i);
        if (text_.compare(i, 3, "raw") != 0) return false;
        i = spaces(i + 3);
        const bool minus = i < text_.size() && text_[i] == '-';
        if (text_.compare(i + minus, 2, "%}") != 0) return false;
        const int opened = line_;
        skip(i + minus + 2 - at_);
        if (minus) skip_spaces();
        for (size_t close = text_.find("{%", at_); close != text_.npos; close = text_.find("{%", close + 2)) {
            const char sign = close + 2 < text_.size() ? text_[close + 2] : '\0';
            size_t j = spaces(close + 2 + (sign == '-' || sign == '+'));
            if (text_.compare(j, 6, "endraw") != 0) continue;
            j = spaces(j + 6);
            const std::string_view rest = std::string_view(text_).substr(j);
            if (!rest.starts_with("%}") && !rest.starts_with("-%}") && !rest.starts_with("+%}")) continue;
            const auto data = cut_before(std::string_view(text_).substr(at_, close - at_), '%', sign);
            if (!data.empty()) emit(TokenKind::data, std::string(data));
            skip(j - at_);
            block_end("%}");
            return true;
        }
        line_ = opened;
        fail("a raw block is not closed: missing '{% endraw %}'");
    }

    void expression(char close) {
        const std::string_view ending = close == '}' ? "}}" : "%}";
        const int opened = line_;
        std::string stack;  // open brackets; inside them "}}" is two braces
        for (;;) {
            if (stack.empty()) {
                const int line = line_;
                if (block_end(ending)) {
                    tokens_.push_back({close == '}' ? TokenKind::variable_end : TokenKind::block_end, line, {}});
                    return;
                }
            }
            if (at_ >= text_.size()) {
                line_ = opened;
                fail(fmt::format("a tag is not closed: missing '{}'", ending));
            }
            const size_t before = at_;
            skip_spaces();
            if (at_ != before) continue;
            const char c = peek();
            if (c == '"' || c == '\'')
                string_literal();
            else if (digit(c))
                number();
            else if (name_start(c)) {
                size_t n = 1;
                while (name_start(peek(n)) || digit(peek(n))) ++n;
                if (n > 1000) fail("a name is longer than 1000 bytes");
                emit(TokenKind::name, text_.substr(at_, n));
                skip(n);
            } else
                operation(stack);
        }
    }

    void operation(std::string& stack) {
        const char c = peek();
        for (const std::string_view two : {"//", "**", "==", "!=", ">=", "<="})
            if (starts(two)) {
                emit(TokenKind::op, std::string(two));
                return skip(2);
            }
        if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos || c == '\0') {
            size_t next = at_;
            next_code_point(text_, next);
            fail(fmt::format("unexpected character '{}'",
                             c == '\0' ? std::string("\\0") : text_.substr(at_, next - at_)));
        }
        if (c == '(' || c == '[' || c == '{') stack += c == '(' ? ')' : c == '[' ? ']' : '}';
        if (c == ')' || c == ']' || c == '}') {
            if (stack.empty()) fail(fmt::format("unexpected '{}'", c));
            if (stack.back() != c) fail(fmt::format("unexpected '{}', expected '{}'", c, stack.back()));
            stack.pop_back();
        }
        emit(TokenKind::op, std::string(1, c));
        skip(1);
    }

    void number() {
        std::string digits;
        int base = 10;
        bool real = false;
        size_t n = 0;
        const auto take = [&](auto&& accept) {
            while (accept(peek(n)) || (peek(n) == '_' && accept(peek(n + 1)))) {
                if (peek(n) != '_') digits += peek(n);
                ++n;
            }
        };
        const char kind = char(peek(1) | 0x20);
        if (peek() == '0' && (kind == 'x' || kind == 'o' || kind == 'b')) {
            base = kind == 'x' ? 16 : kind == 'o' ? 8 : 2;
            n = 2;
            take([&](char c) {
                return base == 16 ? std::isxdigit(static_cast<unsigned char>(c)) != 0 : c >= '0' && c < '0' + base;
            });
        } else {
            take(digit);
            if (peek(n) == '.' && digit(peek(n + 1))) {
                real = true;
                digits += '.';
                ++n;
                take(digit);
            }
            const size_t sign = peek(n + 1) == '-' || peek(n + 1) == '+';
            if ((peek(n) == 'e' || peek(n) == 'E') && digit(peek(n + 1 + sign))) {
                real = true;
                digits += 'e';
                if (sign) digits += peek(n + 1);
                n += 1 + sign;
                take(digit);
            }
        }
        Token token{real ? TokenKind::real : TokenKind::integer, line_, digits};
        const char* end = digits.data() + digits.size();
        const auto parsed = real ? std::from_chars(digits.data(), end, token.real)
                                 : std::from_chars(digits.data(), end, token.integer, base);
        if (parsed.ec != std::errc{} || parsed.ptr != end)
            fail(fmt::format("{} is not a valid number, or too large", text_.substr(at_, n)));
        tokens_.push_back(std::move(token));
        skip(n);
    }

    // Decodes Python's escapes; an unknown escape keeps its backslash.
    void string_literal() {
        const char quote = peek();
        const int opened = line_;
        std::string out;
        size_t i = at_ + 1;
        const auto code = [&](size_t count, int base) {
            char32_t value = 0;
            const char* first = text_.data() + i;
            const char* last = text_.data() + std::min(text_.size(), i + count);
            uint32_t read = 0;
            const auto parsed = std::from_chars(first, last, read, base);
            value = read;
            const auto used = size_t(parsed.ptr - first);
            if (base == 16 && used != count) fail("a string holds a cut-off escape");
            if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000))
                fail("a string holds an escape that is no character");
            append_code_point(out, value);
            i += used;
        };
        for (; i < text_.size() && text_[i] != quote;) {
            if (text_[i] != '\\') {
                out += text_[i++];
                continue;
            }
            if (++i >= text_.size()) break;
            const char c = text_[i++];
            switch (c) {
                case '\n':
                    break;
                case 'n':
                    out += '\n';
                    break;
                case 't':
                    out += '\t';
                    break;
                case 'r':
                    out += '\r';
                    break;
                case 'a':
                    out += '\a';
                    break;
                case 'b':
                    out += '\b';
                    break;
                case 'f':
                    out += '\f';
                    break;
                case 'v':
                    out += '\v';
                    break;
                case '\\':
                case '\'':
                case '"':
                    out += c;
                    break;
                case 'x':
                    code(2, 16);
                    break;
                case 'u':
                    code(4, 16);
                    break;
                case 'U':
                    code(8, 16);
                    break;
                case 'N':
                    fail("\\N{...} in a string is not supported");
                    break;
                default:
                    if (c >= '0' && c <= '7')
                        --i, code(3, 8);
                    else
                        (out += '\\') += c;
            }
        }
        if (i >= text_.size()) {
            line_ = opened;
            fail("a string is not closed");
        }
        emit(TokenKind::string, std::move(out));
        skip(i + 1 - at_);
    }

    std::string text_;
    size_t at_ = 0;
    int line_ = 1;
    std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace nibble::jinja
