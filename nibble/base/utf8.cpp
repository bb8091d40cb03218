#include "base/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace nibble {
namespace {

bool is_ascii(char c) { return static_cast<uint8_t>(c) < 0x80; }

bool moves_a_cursor(char32_t c) {
    return c < 0x20 || (c >= 0x7F && c < 0xA0) || (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

void append_escaped(std::string& out, char32_t c) {
    switch (c) {
        case '\n':
            out += "\\n";
            break;
        case '\r':
            out += "\\r";
            break;
        case '\t':
            out += "\\t";
            break;
        default:
            fmt::format_to(std::back_inserter(out), "\\u{{{:x}}}", static_cast<uint32_t>(c));
    }
}

bool continues_a_character(char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; }

// Precondition: valid UTF-8.
std::string without_middle(const std::string& text, size_t most_bytes) {
    constexpr std::string_view gap = " [...] ";
    const size_t kept = most_bytes - std::min(most_bytes, gap.size());
    size_t head = kept - kept / 2, tail = text.size() - kept / 2;
    while (head > 0 && continues_a_character(text[head])) --head;
    while (tail < text.size() && continues_a_character(text[tail])) ++tail;
    return text.substr(0, head).append(gap).append(text, tail);
}

}  // namespace

Utf8Step utf8_step(std::string_view text, size_t at) {
    if (at >= text.size()) return {};
    const auto byte = [&](size_t k) { return static_cast<uint8_t>(text[at + k]); };
    const uint8_t a = byte(0);
    if (a < 0x80) return {1, a, true, false};
    if (a < 0xC2 || a > 0xF4) return {1, 0xFFFD, false, false};
    const size_t size = a < 0xE0 ? 2 : a < 0xF0 ? 3 : 4;
    char32_t code = a & (0x7Fu >> size);
    for (size_t k = 1; k < size; ++k) {
        if (at + k >= text.size()) return {k, 0xFFFD, false, true};
        // The range of the second byte also excludes overlong forms, surrogates and code points beyond U+10FFFF.
        uint8_t low = 0x80, high = 0xBF;
        if (k == 1 && a == 0xE0) low = 0xA0;
        if (k == 1 && a == 0xED) high = 0x9F;
        if (k == 1 && a == 0xF0) low = 0x90;
        if (k == 1 && a == 0xF4) high = 0x8F;
        if (byte(k) < low || byte(k) > high) return {k, 0xFFFD, false, false};
        code = code << 6 | (byte(k) & 0x3Fu);
    }
    return {size, code, true, false};
}

bool utf8_valid(std::string_view text) {
    for (size_t i = 0; i < text.size();) {
        if (is_ascii(text[i])) {
            ++i;
            continue;
        }
        const Utf8Step step = utf8_step(text, i);
        if (!step.valid) return false;
        i += step.size;
    }
    return true;
}

Status check_utf8(std::string_view text) {
    if (utf8_valid(text)) return Ok{};
    for (size_t at = 0; at < text.size();) {
        const Utf8Step step = utf8_step(text, at);
        if (!step.valid) return fail("byte {} is not UTF-8", at);
        at += step.size;
    }
    return Ok{};
}

std::string_view without_byte_order_mark(std::string_view content) {
    constexpr std::string_view mark = "\xEF\xBB\xBF";
    return content.starts_with(mark) ? content.substr(mark.size()) : content;
}

void utf8_append(std::string& out, char32_t code) {
    if (code < 0x80) {
        out += static_cast<char>(code);
    } else if (code < 0x800) {
        out += static_cast<char>(0xC0 | code >> 6);
        out += static_cast<char>(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        out += static_cast<char>(0xE0 | code >> 12);
        out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
        out += static_cast<char>(0x80 | (code & 0x3F));
    } else {
        out += static_cast<char>(0xF0 | code >> 18);
        out += static_cast<char>(0x80 | (code >> 12 & 0x3F));
        out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
        out += static_cast<char>(0x80 | (code & 0x3F));
    }
}

std::string printable(std::string_view text, size_t most_bytes) {
    std::string out;
    out.reserve(text.size());
    for (size_t i = 0; i < text.size();) {
        const Utf8Step step = utf8_step(text, i);
        if (!step.valid) {
            for (const char c : text.substr(i, step.size))
                fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<uint8_t>(c));
        } else if (moves_a_cursor(step.code)) {
            append_escaped(out, step.code);
        } else {
            out += text.substr(i, step.size);
        }
        i += step.size;
    }
    return out.size() <= most_bytes ? out : without_middle(out, most_bytes);
}

}  // namespace nibble
