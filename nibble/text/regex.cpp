#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace nibble {
namespace {

// Oniguruma's meaning in PCRE2's words. PCRE2's own \s would also take U+180E.
Result<std::string> translate(std::string_view pattern) {
    constexpr std::string_view white = "\\x{9}-\\x{D}\\x{85}\\p{Z}";
    std::string out;
    int in_class = 0;
    for (size_t i = 0; i < pattern.size(); ++i) {
        const char c = pattern[i];
        if (c == '[') {
            if (in_class) return fail("pattern {:?}: a class inside a class is not supported", pattern.substr(0, 300));
            in_class = 1;
            out += c;
            if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
            continue;
        }
        if (c == ']' && in_class) in_class = 0;
        if (in_class && c == '&' && pattern.substr(i).starts_with("&&"))
            return fail("pattern {:?}: '&&' in a class is not supported", pattern.substr(0, 300));
        if (c != '\\' || i + 1 == pattern.size()) {
            out += c;
            continue;
        }
        const char next = pattern[++i];
        if (next == 's') {
            out += in_class ? std::string(white) : fmt::format("[{}]", white);
        } else if (next == 'S' && !in_class) {
            out += fmt::format("[^{}]", white);
        } else if (std::string_view("wWbBhHvRXSGKNOyYZzAkg").find(next) != std::string_view::npos) {
            return fail("pattern {:?}: the escape '\\{}' is not supported", pattern.substr(0, 300), next);
        } else {
            out += c;
            out += next;
        }
    }
    return out;
}

}  // namespace

Result<Pattern> Pattern::regex(std::string_view pattern) {
    if (pattern.size() > 64 << 10) return fail("a pattern of {} bytes is too long", pattern.size());
    NIBBLE_TRY(const std::string text, translate(pattern));
    int code = 0;
    PCRE2_SIZE offset = 0;
    // PCRE2 checks that the pattern is UTF-8; callbacks (?C) and the like have no effect without a handler.
    pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                         PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset, nullptr);
    if (!compiled) {
        PCRE2_UCHAR message[256] = {};
        pcre2_get_error_message(code, message, sizeof message);
        return fail("pattern {:?}: {} at byte {}", pattern.substr(0, 300), reinterpret_cast<const char*>(message),
                    offset);
    }
    Pattern out;
    out.code_ = std::shared_ptr<pcre2_code>(compiled, pcre2_code_free);
    // Without it (no executable memory) pcre2_match interprets.
    out.compiled_ = pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE) == 0;
    return out;
}

Pattern Pattern::literal(std::string text) {
    Pattern out;
    out.literal_ = std::move(text);
    return out;
}

Search::Search(const Pattern& pattern, std::string_view text) : pattern_(pattern), text_(text) {
    if (pattern.code_) data_ = pcre2_match_data_create(1, nullptr);
}

Search::~Search() { pcre2_match_data_free(static_cast<pcre2_match_data*>(data_)); }

Result<bool> Search::next(Span& match) {
    if (!pattern_.code_) {
        if (pattern_.literal_.empty()) return false;
        const size_t found = text_.find(pattern_.literal_, at_);
        if (found == text_.npos) return false;
        match = {found, found + pattern_.literal_.size()};
        at_ = match.end;
        return true;
    }
    auto* data = static_cast<pcre2_match_data*>(data_);
    if (!data) return fail("out of memory for a regular expression");
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text_.data());
    while (at_ < text_.size()) {
        const pcre2_code* code = pattern_.code_.get();
        int found = pattern_.compiled_
                        ? pcre2_jit_match(code, subject, text_.size(), at_, 0, data, nullptr)
                        : pcre2_match(code, subject, text_.size(), at_, PCRE2_NO_UTF_CHECK, data, nullptr);
        if (found == PCRE2_ERROR_JIT_STACKLIMIT)
            found = pcre2_match(code, subject, text_.size(), at_, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, nullptr);
        if (found == PCRE2_ERROR_NOMATCH) return false;
        if (found < 0) return fail("a regular expression stops at byte {} of the text with PCRE2 error {}", at_, found);
        const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data);
        match = {offsets[0], offsets[1]};
        if (match.end > match.begin) {
            at_ = match.end;
            return true;
        }
        at_ = match.end + 1;
        while (at_ < text_.size() && (static_cast<unsigned char>(text_[at_]) & 0xC0) == 0x80) ++at_;
    }
    return false;
}

}  // namespace nibble
