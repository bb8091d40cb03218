#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

namespace nibble {
namespace {

constexpr std::string_view replacement = "\uFFFD";

bool is_ascii(char c) { return static_cast<uint8_t>(c) < 0x80; }

bool composes(NormalForm form) { return form == NormalForm::nfc || form == NormalForm::nfkc; }

// Appends the normal form of `text`, which must begin where it cannot combine with the text before it.
void normalize_span(std::string_view text, NormalForm form, std::string& out) {
    int options = UTF8PROC_STABLE | (composes(form) ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE);
    if (form == NormalForm::nfkc || form == NormalForm::nfkd) options |= UTF8PROC_COMPAT;
    std::vector<utf8proc_int32_t> codes;
    codes.reserve(text.size());
    for (size_t i = 0; i < text.size();) {
        const Utf8Step step = utf8_step(text, i);
        i += step.size;
        utf8proc_int32_t parts[32];  // Unicode's longest decomposition has 18
        int boundary = 0;
        const auto n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(step.code), parts, 32,
                                               static_cast<utf8proc_option_t>(options), &boundary);
        if (n > 0 && n <= 32)
            codes.insert(codes.end(), parts, parts + n);
        else
            codes.push_back(static_cast<utf8proc_int32_t>(step.code));
    }
    // Sorts combining marks here: utf8proc_decompose would swap neighbours, quadratic in the length of a run.
    const auto mark_class = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
    for (size_t i = 0; i < codes.size();) {
        size_t end = i;
        while (end < codes.size() && mark_class(codes[end]) != 0) ++end;
        if (end > i + 1)
            std::stable_sort(codes.begin() + i, codes.begin() + end,
                             [&](auto a, auto b) { return mark_class(a) < mark_class(b); });
        i = end + 1;
    }
    auto n = static_cast<utf8proc_ssize_t>(codes.size());
    if (composes(form)) n = utf8proc_normalize_utf32(codes.data(), n, static_cast<utf8proc_option_t>(options));
    for (utf8proc_ssize_t i = 0; i < n; ++i) utf8_append(out, static_cast<char32_t>(codes[i]));
}

}  // namespace

std::string utf8_lossy(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for (size_t i = 0; i < text.size();) {
        const Utf8Step step = utf8_step(text, i);
        out += step.valid ? text.substr(i, step.size) : replacement;
        i += step.size;
    }
    return out;
}

void utf8_drain(std::string& pending, std::string& out) {
    size_t i = 0;
    while (i < pending.size()) {
        const Utf8Step step = utf8_step(pending, i);
        if (step.cut) break;
        out += step.valid ? std::string_view(pending).substr(i, step.size) : replacement;
        i += step.size;
    }
    pending.erase(0, i);
}

bool is_white_space(char32_t c) {
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word(char32_t c) {
    switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
        case UTF8PROC_CATEGORY_LU:
        case UTF8PROC_CATEGORY_LL:
        case UTF8PROC_CATEGORY_LT:
        case UTF8PROC_CATEGORY_LM:
        case UTF8PROC_CATEGORY_LO:
        case UTF8PROC_CATEGORY_MN:
        case UTF8PROC_CATEGORY_MC:
        case UTF8PROC_CATEGORY_ME:
        case UTF8PROC_CATEGORY_ND:
        case UTF8PROC_CATEGORY_PC:
            return true;
        default:
            return false;
    }
}

std::string normal_form(std::string_view text, NormalForm form) {
    std::string out;
    out.reserve(text.size());
    size_t i = 0;
    while (i < text.size()) {
        // ASCII is unchanged in every normal form. Only the last ASCII character before other characters may combine
        // with a mark.
        size_t other = i;
        while (other < text.size() && is_ascii(text[other])) ++other;
        const size_t begin = other < text.size() && other > i ? other - 1 : other;
        out += text.substr(i, begin - i);
        if (other == text.size()) break;
        size_t end = other;
        while (end < text.size() && !is_ascii(text[end])) ++end;
        normalize_span(text.substr(begin, end - begin), form, out);
        i = end;
    }
    return out;
}

}  // namespace nibble
