#include "text/regex.h"

#include "base/utf8.h"
#include "text/substring.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <vector>

namespace nibble {

struct RegexWorkspace {
    RegexWorkspace() : data(pcre2_match_data_create(1, nullptr)), context(pcre2_match_context_create(nullptr)) {
        if (!context) return;
        pcre2_set_match_limit(context, UINT32_MAX);  // the meter limits the search instead
        pcre2_set_depth_limit(context, UINT32_MAX);
        pcre2_set_heap_limit(context, most_heap_kib);
    }
    ~RegexWorkspace() {
        pcre2_match_data_free(data);
        pcre2_match_context_free(context);
    }
    RegexWorkspace(const RegexWorkspace&) = delete;
    RegexWorkspace& operator=(const RegexWorkspace&) = delete;

    static constexpr uint32_t most_heap_kib = 64 << 10;

    pcre2_match_data* const data;
    pcre2_match_context* const context;
};

namespace {

constexpr std::string_view callout = "(?C)";
constexpr size_t most_between_callouts = 32;

struct Translation {
    std::string text;
    size_t longest_class = 0;  // bytes
};

// Translates Oniguruma's syntax to PCRE2's. PCRE2's own \s would also match U+180E. Callouts are inserted where
// matching can backtrack to: after repeats, after groups, at the start of groups that are repeated a given number of
// times (a search in which the repeats never suffice does not come past their end), and after 32 characters of pattern
// without a callout. The work between two callouts is then bounded by the characters passed, not by a power of the
// text's length.
class Translator {
public:
    explicit Translator(std::string_view pattern) : pattern_(pattern) {}

    Result<Translation> run() {
        while (at_ < pattern_.size()) {
            const char c = pattern_[at_];
            if (c == '[') {
                atom();
                NIBBLE_CHECK(character_class());
            } else if (c == '(') {
                atom();
                NIBBLE_CHECK(group());
                continue;  // no quantifier can follow
            } else if (c == '|') {
                copy(1);
                continue;
            } else if (c == ')') {
                close_group();
                continue;
            } else {
                atom();
                NIBBLE_CHECK(one());
            }
            quantifier();
        }
        return std::move(out_);
    }

private:
    std::string_view shown() const { return pattern_.substr(0, 300); }
    std::string_view rest() const { return pattern_.substr(at_); }
    void copy(size_t n) {
        out_.text += pattern_.substr(at_, n);
        at_ += n;
    }
    void put_callout() {
        out_.text += callout;
        since_ = 0;
    }
    void atom() {
        if (++since_ > most_between_callouts) put_callout();
    }

    // Consumes *, +, ?, {n}, {n,} or {n,m} and its suffix.
    bool quantifier() {
        size_t size = 0;
        if (rest().starts_with('*') || rest().starts_with('+') || rest().starts_with('?')) size = 1;
        if (rest().starts_with('{')) {
            const size_t end = rest().find('}');
            const std::string_view inside = end == rest().npos ? "" : rest().substr(1, end - 1);
            const bool counts = !inside.empty() && inside[0] >= '0' && inside[0] <= '9' &&
                                inside.find_first_not_of("0123456789,") == inside.npos;
            if (counts) size = end + 1;
        }
        if (size == 0) return false;
        copy(size);
        if (rest().starts_with('+') || rest().starts_with('?')) copy(1);
        put_callout();
        return true;
    }

    void open_group(size_t size) {
        copy(size);
        starts_.push_back(out_.text.size());
    }
    void close_group() {
        copy(1);
        const size_t start = starts_.empty() ? 0 : starts_.back();
        if (!starts_.empty()) starts_.pop_back();  // PCRE2 refuses a ')' without '('
        const bool counted = rest().starts_with('{');
        if (!quantifier()) {
            put_callout();
        } else if (counted) {
            out_.text.insert(start, callout);
        }
    }

    Status group() {
        constexpr std::string_view kinds[]{"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
        for (const std::string_view kind : kinds)
            if (rest().starts_with(kind)) {
                open_group(kind.size());
                return Ok{};
            }
        size_t end = 0;
        if (rest().starts_with("(?<")) {
            end = rest().find('>');
        } else if (rest().starts_with("(?")) {
            end = rest().find_first_not_of("ims-", 2);
            if (end != rest().npos && rest()[end] == ')') {
                copy(end + 1);
                return Ok{};
            }
            if (end != rest().npos && rest()[end] != ':') end = rest().npos;
        } else if (rest().starts_with("(*")) {
            end = rest().npos;
        }
        if (end == rest().npos)
            return fail("pattern {:?}: the group '{}' is not supported", shown(), rest().substr(0, 3));
        open_group(end + 1);
        return Ok{};
    }

    Status character_class() {
        const size_t begin = at_;
        copy(1);
        if (rest().starts_with('^')) copy(1);
        while (at_ < pattern_.size() && pattern_[at_] != ']') {
            if (pattern_[at_] == '[') return fail("pattern {:?}: a class inside a class is not supported", shown());
            if (rest().starts_with("&&")) return fail("pattern {:?}: '&&' in a class is not supported", shown());
            NIBBLE_CHECK(escape_or_character(true));
        }
        if (at_ < pattern_.size()) copy(1);
        out_.longest_class = std::max(out_.longest_class, at_ - begin);
        return Ok{};
    }

    Status one() { return escape_or_character(false); }

    Status escape_or_character(bool in_class) {
        constexpr std::string_view white = "\\x{9}-\\x{D}\\x{85}\\p{Z}";
        if (pattern_[at_] != '\\' || at_ + 1 == pattern_.size()) {
            copy(std::max<size_t>(1, utf8_step(pattern_, at_).size));
            return Ok{};
        }
        const char next = pattern_[at_ + 1];
        if (next == 's') {
            out_.text += in_class ? std::string(white) : fmt::format("[{}]", white);
            at_ += 2;
        } else if (next == 'S' && !in_class) {
            out_.text += fmt::format("[^{}]", white);
            at_ += 2;
        } else if (std::string_view("wWbBhHvRXSGKNOyYZzAkg").find(next) != std::string_view::npos) {
            return fail("pattern {:?}: the escape '\\{}' is not supported", shown(), next);
        } else if (std::string_view("pPxo").find(next) != std::string_view::npos && at_ + 2 < pattern_.size() &&
                   pattern_[at_ + 2] == '{') {
            const size_t end = rest().find('}');
            copy(end == rest().npos ? rest().size() : end + 1);
        } else {
            copy(1 + std::max<size_t>(1, utf8_step(pattern_, at_ + 1).size));
        }
        return Ok{};
    }

    std::string_view pattern_;
    size_t at_ = 0, since_ = 0;
    std::vector<size_t> starts_;  // starts of open groups in out_.text
    Translation out_;
};

// Keeps PCRE2's workspaces for reuse: most searches take less than a microsecond.
class IdleWorkspaces {
public:
    std::unique_ptr<RegexWorkspace> take() {
        if (idle_.empty()) return std::make_unique<RegexWorkspace>();
        auto out = std::move(idle_.back());
        idle_.pop_back();
        return out;
    }
    void give_back(std::unique_ptr<RegexWorkspace> workspace) {
        if (idle_.size() < 32) idle_.push_back(std::move(workspace));
    }

private:
    std::vector<std::unique_ptr<RegexWorkspace>> idle_;
};

IdleWorkspaces& idle_workspaces() {
    thread_local IdleWorkspaces idle;
    return idle;
}

int on_callout(pcre2_callout_block* block, void* search) {
    return static_cast<RegexSearch*>(search)->pay(block->current_position) ? 0 : PCRE2_ERROR_CALLOUT;
}

}  // namespace

Result<Pattern> Pattern::regex(std::string_view pattern) {
    if (pattern.size() > 64 << 10) return fail("a pattern of {} bytes is too long", pattern.size());
    NIBBLE_TRY(const Translation translated, Translator(pattern).run());
    const std::string& text = translated.text;
    int code = 0;
    PCRE2_SIZE offset = 0;
    // PCRE2 checks that the pattern is valid UTF-8.
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
    out.weight_ = 1 + static_cast<int64_t>(translated.longest_class) / 16;
    // Without JIT (no executable memory) pcre2_match interprets the pattern.
    out.compiled_ = pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE) == 0;
    return out;
}

Pattern Pattern::literal(std::string text) {
    Pattern out;
    out.literal_ = std::move(text);
    return out;
}

RegexSearch::RegexSearch(const Pattern& pattern, std::string_view text, Meter& meter)
    : pattern_(pattern), text_(text), meter_(meter) {
    if (!pattern.code_) return;
    workspace_ = idle_workspaces().take();
    if (workspace_->context) pcre2_set_callout(workspace_->context, on_callout, this);
}

RegexSearch::~RegexSearch() {
    if (workspace_) idle_workspaces().give_back(std::move(workspace_));
}

bool RegexSearch::pay(size_t at) {
    const size_t passed = at > seen_ ? at - seen_ : seen_ - at;
    seen_ = at;
    return meter_.pay_steps(1 + static_cast<int64_t>(passed) * pattern_.weight_ / 64);
}

Result<bool> RegexSearch::next(Span& match) {
    if (!pattern_.code_) {
        if (pattern_.literal_.empty()) return false;
        const size_t found = find_text(text_, pattern_.literal_, meter_, at_);
        if (!meter_.ok()) return meter_.error();
        if (found == text_.npos) return false;
        match = {found, found + pattern_.literal_.size()};
        at_ = match.end;
        return true;
    }
    pcre2_match_data* const data = workspace_->data;
    pcre2_match_context* const context = workspace_->context;
    if (!data || !context) return fail("out of memory for a regular expression");
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text_.data());
    while (at_ < text_.size()) {
        seen_ = at_;
        const pcre2_code* code = pattern_.code_.get();
        int found = pattern_.compiled_
                        ? pcre2_jit_match(code, subject, text_.size(), at_, 0, data, context)
                        : pcre2_match(code, subject, text_.size(), at_, PCRE2_NO_UTF_CHECK, data, context);
        if (found == PCRE2_ERROR_JIT_STACKLIMIT)
            found = pcre2_match(code, subject, text_.size(), at_, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, context);
        if (found == PCRE2_ERROR_NOMATCH && pay(text_.size())) return false;
        if (!meter_.ok()) return meter_.error();
        if (found == PCRE2_ERROR_HEAPLIMIT)
            return fail("a regular expression needs more than {} MiB at byte {} of the text",
                        RegexWorkspace::most_heap_kib >> 10, at_);
        if (found < 0) return fail("a regular expression stops at byte {} of the text with PCRE2 error {}", at_, found);
        const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data);
        match = {offsets[0], offsets[1]};
        if (!pay(match.end)) return meter_.error();
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
