#include "text/python_regex.h"

#include "base/utf8.h"
#include "text/python_translator.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace nibble {
namespace {

constexpr size_t most_pattern_bytes = 4096;
constexpr uint32_t most_steps = 100'000, most_kib = 4096;

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
    NIBBLE_TRY(const auto translated, translate_python_pattern(pattern).within(where()));
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
