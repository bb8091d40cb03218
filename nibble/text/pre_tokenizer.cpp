#include "text/pre_tokenizer.h"

#include "text/normalizer.h"
#include "text/substring.h"
#include "text/tokenizer_json.h"

#include <algorithm>
#include <span>

namespace nibble {
namespace {

constexpr std::string_view gpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

enum class Behavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

Result<Behavior> parse_behavior(std::string_view word) {
    if (word == "Isolated") return Behavior::isolated;
    if (word == "Removed") return Behavior::removed;
    if (word == "MergedWithPrevious") return Behavior::merged_with_previous;
    if (word == "MergedWithNext") return Behavior::merged_with_next;
    if (word == "Contiguous") return Behavior::contiguous;
    return fail("behavior {:?} is not supported", word);
}

// Joins matches and gaps, which cover the text in order, according to the behaviour.
class Joiner {
public:
    Joiner(std::string_view text, bool start, Behavior behavior, PieceSink& next)
        : text_(text), start_(start), behavior_(behavior), next_(next) {}

    Status part(size_t begin, size_t end, bool match) {
        if (begin == end) return Ok{};
        switch (behavior_) {
            case Behavior::isolated:
                return emit(begin, end);
            case Behavior::removed:
                return match ? Status(Ok{}) : emit(begin, end);
            case Behavior::merged_with_previous:
                // A match joins the gap before it; a second consecutive match is a piece of its own.
                if (match && open_ && !last_match_)
                    end_ = end;
                else
                    NIBBLE_CHECK(replace(begin, end));
                break;
            case Behavior::merged_with_next:
                if (!match && open_ && last_match_)
                    end_ = end;
                else
                    NIBBLE_CHECK(replace(begin, end));
                break;
            case Behavior::contiguous:
                if (open_ && match == last_match_)
                    end_ = end;
                else
                    NIBBLE_CHECK(replace(begin, end));
                break;
        }
        last_match_ = match;
        return Ok{};
    }
    Status finish() { return open_ ? emit(begin_, end_) : Status(Ok{}); }

private:
    Status emit(size_t begin, size_t end) {
        return next_.piece(text_.substr(begin, end - begin), start_ && begin == 0);
    }
    Status replace(size_t begin, size_t end) {
        NIBBLE_CHECK(finish());
        open_ = true;
        begin_ = begin;
        end_ = end;
        return Ok{};
    }

    std::string_view text_;
    bool start_;
    Behavior behavior_;
    PieceSink& next_;
    size_t begin_ = 0, end_ = 0;
    bool open_ = false, last_match_ = false;
};

class Split : public PreTokenizerStage {
public:
    Split(Pattern pattern, Behavior behavior, bool invert)
        : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

    Status split(std::string_view text, bool start, Meter& meter, PieceSink& next) const override {
        Joiner joiner(text, start, behavior_, next);
        RegexSearch search(pattern_, text, meter);
        size_t done = 0;
        for (Span match;;) {
            NIBBLE_TRY(const bool found, search.next(match));
            if (!found) break;
            NIBBLE_CHECK(joiner.part(done, match.begin, invert_));
            NIBBLE_CHECK(joiner.part(match.begin, match.end, !invert_));
            done = match.end;
        }
        NIBBLE_CHECK(joiner.part(done, text.size(), invert_));
        return joiner.finish();
    }
    bool keeps_text() const override { return behavior_ != Behavior::removed; }

private:
    Pattern pattern_;
    Behavior behavior_;
    bool invert_;
};

class PrefixSpace : public PreTokenizerStage {
public:
    Status split(std::string_view text, bool start, Meter& meter, PieceSink& next) const override {
        if (text.starts_with(' ')) return next.piece(text, start);
        if (!meter.pay_bytes(static_cast<int64_t>(text.size()))) return meter.error();
        return next.piece(fmt::format(" {}", text), start);
    }
};

enum class Prepend { always, first, never };

class Metaspace : public PreTokenizerStage {
public:
    Metaspace(std::string mark, Prepend prepend, bool split)
        : mark_(std::move(mark)), prepend_(prepend), split_(split) {}

    Status split(std::string_view text, bool start, Meter& meter, PieceSink& next) const override {
        const auto spaces = static_cast<size_t>(std::count(text.begin(), text.end(), ' '));
        if (!meter.pay_bytes(static_cast<int64_t>(text.size() + (spaces + 1) * mark_.size()))) return meter.error();
        std::string out;
        for (const char c : text) c == ' ' ? out += mark_ : out += c;
        if ((prepend_ == Prepend::always || (prepend_ == Prepend::first && start)) && !out.starts_with(mark_))
            out.insert(0, mark_);
        if (!split_) return next.piece(out, start);
        Joiner joiner(out, start, Behavior::merged_with_next, next);
        size_t done = 0;
        for (size_t at; (at = find_text(out, mark_, meter, done)) != out.npos; done = at + mark_.size()) {
            NIBBLE_CHECK(joiner.part(done, at, false));
            NIBBLE_CHECK(joiner.part(at, at + mark_.size(), true));
        }
        if (!meter.ok()) return meter.error();
        NIBBLE_CHECK(joiner.part(done, out.size(), false));
        return joiner.finish();
    }

private:
    std::string mark_;
    Prepend prepend_;
    bool split_;
};

Result<std::unique_ptr<PreTokenizerStage>> make_split(std::string_view regex, Behavior behavior, bool invert = false) {
    NIBBLE_TRY(Pattern pattern, Pattern::regex(regex));
    return std::unique_ptr<PreTokenizerStage>(std::make_unique<Split>(std::move(pattern), behavior, invert));
}

Result<std::unique_ptr<PreTokenizerStage>> parse_split(const Json& component) {
    NIBBLE_TRY(Pattern pattern, parse_pattern(component));
    NIBBLE_TRY(const std::string word, json_string(component, "behavior"));
    NIBBLE_TRY(const Behavior behavior, parse_behavior(word));
    NIBBLE_TRY(const bool invert, json_flag(component, "invert", false));
    return std::unique_ptr<PreTokenizerStage>(std::make_unique<Split>(std::move(pattern), behavior, invert));
}

Result<std::unique_ptr<PreTokenizerStage>> parse_metaspace(const Json& component) {
    NIBBLE_TRY(std::string mark, json_string(component, "replacement"));
    if (mark.empty()) return fail("'replacement' is empty");
    NIBBLE_TRY(const bool split, json_flag(component, "split", true));
    NIBBLE_TRY(const bool legacy, json_flag(component, "add_prefix_space", true));
    Prepend prepend = legacy ? Prepend::always : Prepend::never;
    if (component.contains("prepend_scheme")) {
        NIBBLE_TRY(const std::string scheme, json_string(component, "prepend_scheme"));
        if (scheme == "always")
            prepend = Prepend::always;
        else if (scheme == "first")
            prepend = Prepend::first;
        else if (scheme == "never")
            prepend = Prepend::never;
        else
            return fail("prepend_scheme {:?} is not supported", scheme);
    }
    return std::unique_ptr<PreTokenizerStage>(std::make_unique<Metaspace>(std::move(mark), prepend, split));
}

Result<std::unique_ptr<PreTokenizerStage>> parse_stage(const std::string& type, const Json& component) {
    if (type == "Split") return parse_split(component);
    if (type == "Metaspace") return parse_metaspace(component);
    if (type == "Digits") {
        NIBBLE_TRY(const bool single, json_flag(component, "individual_digits", false));
        return make_split("\\p{N}", single ? Behavior::isolated : Behavior::contiguous);
    }
    if (type == "Whitespace")
        return make_split("[\\p{L}\\p{M}\\p{Nd}\\p{Pc}]+|[^\\p{L}\\p{M}\\p{Nd}\\p{Pc}\\s]+", Behavior::removed, true);
    if (type == "WhitespaceSplit") return make_split("\\s", Behavior::removed);
    if (type == "Punctuation") {
        std::string word = "Isolated";
        if (component.contains("behavior")) {
            NIBBLE_TRY(word, json_string(component, "behavior"));
        }
        NIBBLE_TRY(const Behavior behavior, parse_behavior(word));
        return make_split("[\\p{P}$+<=>^`|~]", behavior);
    }
    return fail(
        "pre_tokenizer '{}' is not supported (supported: ByteLevel, Split, Digits, Metaspace, Whitespace, "
        "WhitespaceSplit, "
        "Punctuation, Sequence)",
        type);
}

}  // namespace

Result<PreTokenizer> PreTokenizer::parse(const Json& component) {
    PreTokenizer out;
    NIBBLE_CHECK(out.add(component, 0));
    return out;
}

Status PreTokenizer::add(const Json& component, int depth) {
    if (component.is_null()) return Ok{};
    NIBBLE_TRY(const std::string type, component_type(component, "pre_tokenizer"));
    if (type == "Sequence") {
        const auto list = component.find("pretokenizers");
        if (depth > 8 || list == component.end() || !list->is_array())
            return fail("pre_tokenizer Sequence: 'pretokenizers' is not a list");
        for (const Json& stage : *list) NIBBLE_CHECK(add(stage, depth + 1));
        return Ok{};
    }
    if (byte_level_) return fail("pre_tokenizer '{}' after ByteLevel is not supported", type);
    if (stages_.size() >= 32) return fail("pre_tokenizer: over 32 stages");
    if (type != "ByteLevel") {
        NIBBLE_TRY(auto stage, parse_stage(type, component).within(fmt::format("pre_tokenizer {}", type)));
        keeps_text_ = keeps_text_ && stage->keeps_text();
        stages_.push_back(std::move(stage));
        return Ok{};
    }
    byte_level_ = true;
    NIBBLE_TRY(const bool prefix, json_flag(component, "add_prefix_space", true));
    NIBBLE_TRY(const bool regex, json_flag(component, "use_regex", true));
    if (prefix) stages_.push_back(std::make_unique<PrefixSpace>());
    if (regex) {
        NIBBLE_TRY(auto stage, make_split(gpt2, Behavior::isolated));
        stages_.push_back(std::move(stage));
    }
    return Ok{};
}

namespace {

// A sink that passes its pieces to the remaining stages.
class Rest : public PieceSink {
public:
    Rest(std::span<const std::unique_ptr<PreTokenizerStage>> stages, Meter& meter, PieceSink& out)
        : stages_(stages), meter_(meter), out_(out) {}
    Status piece(std::string_view text, bool start) override {
        if (stages_.empty()) return out_.piece(text, start);
        if (!meter_.pay_look(text.size())) return meter_.error();
        if (stages_.size() == 1) return stages_[0]->split(text, start, meter_, out_);
        Rest rest(stages_.subspan(1), meter_, out_);
        return stages_[0]->split(text, start, meter_, rest);
    }

private:
    std::span<const std::unique_ptr<PreTokenizerStage>> stages_;
    Meter& meter_;
    PieceSink& out_;
};

}  // namespace

Status PreTokenizer::split(std::string_view text, bool start, Meter& meter, PieceSink& out) const {
    if (text.empty()) return Ok{};
    return Rest(stages_, meter, out).piece(text, start);
}

}  // namespace nibble
