#include "text/jinja_text.h"

#include <utf8proc.h>

namespace nibble::jinja {

char32_t next_code_point(std::string_view text, size_t& position) {
    const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
    const unsigned first = byte(position);
    const int more = first < 0x80 ? 0 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
    char32_t c = more == 0 ? first : first & (0x3Fu >> more);
    for (int k = 1; k <= more; ++k) c = c << 6 | (byte(position + size_t(k)) & 0x3F);
    position = std::min(text.size(), position + 1 + size_t(more));
    return c;
}

void append_code_point(std::string& out, char32_t c) {
    utf8proc_uint8_t bytes[4];
    const auto n = utf8proc_encode_char(utf8proc_int32_t(c), bytes);
    out.append(reinterpret_cast<const char*>(bytes), size_t(n));
}

size_t code_points(std::string_view text) {
    size_t n = 0;
    for (const char c : text) n += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    return n;
}

std::vector<size_t> offsets(std::string_view text) {
    std::vector<size_t> out;
    out.reserve(text.size() + 1);
    for (size_t i = 0; i < text.size(); ++i)
        if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) out.push_back(i);
    out.push_back(text.size());
    return out;
}

bool is_space(char32_t c) {
    return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::string_view strip(std::string_view text, Side side, const std::string_view* set) {
    const auto drop = [&](std::string_view one) {
        if (set) return set->find(one) != set->npos;  // in valid UTF-8 a whole code point matches only itself
        size_t at = 0;
        return is_space(next_code_point(one, at));
    };
    if (int(side) & int(Side::left))
        while (!text.empty()) {
            size_t n = 0;
            next_code_point(text, n);
            if (!drop(text.substr(0, n))) break;
            text.remove_prefix(n);
        }
    if (int(side) & int(Side::right))
        while (!text.empty()) {
            size_t at = text.size() - 1;
            while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
            if (!drop(text.substr(at))) break;
            text.remove_suffix(text.size() - at);
        }
    return text;
}

namespace {

void append_upper(std::string& out, char32_t c) {
    if (c == 0xDF)
        out += "SS";  // the only common letter whose upper case has two letters
    else
        append_code_point(out, char32_t(utf8proc_toupper(utf8proc_int32_t(c))));
}

bool is_letter(char32_t c) {
    const auto category = utf8proc_category(utf8proc_int32_t(c));
    return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL || category == UTF8PROC_CATEGORY_LT;
}

}  // namespace

std::string upper(std::string_view text) {
    std::string out;
    for (size_t i = 0; i < text.size();) append_upper(out, next_code_point(text, i));
    return out;
}

std::string lower(std::string_view text) {
    std::string out;
    for (size_t i = 0; i < text.size();)
        append_code_point(out, char32_t(utf8proc_tolower(utf8proc_int32_t(next_code_point(text, i)))));
    return out;
}

std::string capitalize(std::string_view text) {
    if (text.empty()) return {};
    std::string out;
    size_t i = 0;
    append_code_point(out, char32_t(utf8proc_totitle(utf8proc_int32_t(next_code_point(text, i)))));
    return out + lower(text.substr(i));
}

std::string title(std::string_view text) {
    std::string out;
    bool inside = false;
    for (size_t i = 0; i < text.size();) {
        const auto c = utf8proc_int32_t(next_code_point(text, i));
        append_code_point(out, char32_t(inside ? utf8proc_tolower(c) : utf8proc_totitle(c)));
        inside = is_letter(char32_t(c));
    }
    return out;
}

}  // namespace nibble::jinja
