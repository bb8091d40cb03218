#include "chat/constraint.h"

#include <algorithm>

namespace nibble {
namespace {

constexpr std::string_view white = " \t\r\n";

std::string_view without_white(std::string_view text) {
    text.remove_prefix(std::min(text.find_first_not_of(white), text.size()));
    return text;
}

void set_token(std::span<uint32_t> bits, uint32_t token) { bits[token / 32] |= 1u << (token % 32); }

}  // namespace

AnswerConstraint::AnswerConstraint(std::optional<ReasoningGate> gate, std::shared_ptr<const GrammarTokens> grammar,
                                   std::shared_ptr<const GrammarVocabulary> vocabulary, const std::string& opening)
    : vocabulary_(std::move(vocabulary)) {
    if (grammar) start_.emplace(std::move(grammar));
    if (opening.empty()) {
        matcher_ = start_;
    } else {
        if (!start_->accept_bytes(opening)) start_->accept_bytes(expression::control_text(opening));
        auto made = std::make_shared<Opening>();
        made->text = opening;
        made->closing = closing_tokens(opening);
        opening_ = std::move(made);
        phase_ = Phase::free;
    }
    if (!gate) return;
    auto made = std::make_shared<Gate>();
    static_cast<ReasoningGate&>(*made) = *std::move(gate);
    made->closing = closing_tokens(made->end);
    gate_ = std::move(made);
    if (gate_->open)
        phase_ = Phase::reasoning;
    else if (!gate_->begin.empty())
        phase_ = Phase::before;
    if (phase_ == Phase::reasoning && gate_->budget && *gate_->budget <= 0) phase_ = Phase::ending;
}

std::vector<uint32_t> AnswerConstraint::closing_tokens(const std::string& text) const {
    std::vector<uint32_t> out;
    for (uint32_t t = 0; t < vocabulary_->size(); ++t)
        if (text_of(t).find(text.back()) != std::string_view::npos) out.push_back(t);
    return out;
}

// Returns a token's text without the prefix that marks control tokens.
std::string_view AnswerConstraint::text_of(uint32_t token) const {
    std::string_view text = vocabulary_->text(token);
    if (text.starts_with('\xFF')) text.remove_prefix(1);
    return text;
}

std::optional<std::string_view> AnswerConstraint::after_end(std::string& joined, uint32_t token) const {
    joined = tail_;
    joined += text_of(token);
    const size_t at = joined.find(gate_->end);
    if (at == std::string::npos) return std::nullopt;
    return without_white(std::string_view(joined).substr(at + gate_->end.size()));
}

// Returns true if an answer that began with tail_ and continues with the token may still begin with the tag that opens
// reasoning.
bool AnswerConstraint::begins_reasoning(uint32_t token) const {
    const std::string_view text = text_of(token);
    if (text.empty()) return false;
    const std::string_view left = std::string_view(gate_->begin).substr(tail_.size());
    return left.starts_with(text) || text.starts_with(left);
}

bool AnswerConstraint::may_begin(std::string_view text) const {
    if (opening_) {
        const size_t at = text.find(opening_->text);
        if (at == text.npos) return true;
        text.remove_prefix(at + opening_->text.size());
    }
    GrammarMatcher copy = *start_;
    return copy.accept_bytes(text);
}

// Clears, in a free answer, tokens that complete the opening and continue with text that the grammar does not allow.
void AnswerConstraint::clear_wrong_openings(std::span<uint32_t> allowed) const {
    for (const uint32_t t : opening_->closing)
        if (!may_begin(tail_ + std::string(text_of(t)))) allowed[t / 32] &= ~(1u << (t % 32));
}

// `text`: the end of the free answer so far. Returns false, without a change, if the grammar does not allow the text
// after the opening.
bool AnswerConstraint::go_on_free(std::string text) {
    if (const size_t at = text.find(opening_->text); at != text.npos) {
        GrammarMatcher copy = *start_;
        if (!copy.accept_bytes(std::string_view(text).substr(at + opening_->text.size()))) return false;
        matcher_ = std::move(copy);
        phase_ = Phase::answer;
        return true;
    }
    if (text.size() > opening_->text.size()) text.erase(0, text.size() - opening_->text.size());
    tail_ = std::move(text);
    phase_ = Phase::free;
    return true;
}

void AnswerConstraint::mask(std::span<uint32_t> allowed) const {
    if (phase_ == Phase::ending) {
        std::fill(allowed.begin(), allowed.end(), 0);
        set_token(allowed, uint32_t(gate_->end_tokens[ending_]));
        return;
    }
    if (phase_ == Phase::reasoning || !start_) {
        std::fill(allowed.begin(), allowed.end(), ~0u);
        if (!start_) return;
        std::string joined;
        for (const uint32_t t : gate_->closing)
            if (const auto rest = after_end(joined, t); rest && !rest->empty() && !may_begin(*rest))
                allowed[t / 32] &= ~(1u << (t % 32));
        return;
    }
    if (opening_ && phase_ != Phase::answer) {
        std::fill(allowed.begin(), allowed.end(), ~0u);
        clear_wrong_openings(allowed);
    } else if (matcher_)
        matcher_->mask(allowed);
    else
        std::fill(allowed.begin(), allowed.end(), 0);
    if (phase_ != Phase::before) return;
    for (uint32_t t = 0; t < vocabulary_->size(); ++t)
        if (begins_reasoning(t)) set_token(allowed, t);
}

void AnswerConstraint::end_reasoning() {
    tail_.clear();
    phase_ = opening_ ? Phase::free : Phase::answer;
}

// Adds `text`, which is inside reasoning and does not end it.
void AnswerConstraint::think(std::string_view text) {
    phase_ = Phase::reasoning;
    tail_ += text;
    if (tail_.size() > gate_->end.size()) tail_.erase(0, tail_.size() - gate_->end.size());
    if (gate_->budget && thought_ >= *gate_->budget) phase_ = Phase::ending;
}

bool AnswerConstraint::accept(int32_t token) {
    if (token < 0 || size_t(token) >= vocabulary_->size()) return false;
    const auto id = uint32_t(token);
    switch (phase_) {
        case Phase::answer:
            return !matcher_ || matcher_->accept(token);
        case Phase::free:
            return go_on_free(tail_ + std::string(text_of(id)));
        case Phase::ending:
            if (token != gate_->end_tokens[ending_]) return false;
            if (++ending_ == gate_->end_tokens.size()) end_reasoning();
            return true;
        case Phase::reasoning: {
            std::string joined;
            if (const auto rest = after_end(joined, id)) {
                if (opening_) return go_on_free(std::string(*rest));
                if (start_ && !rest->empty()) {
                    GrammarMatcher copy = *start_;
                    if (!copy.accept_bytes(*rest)) return false;
                    matcher_ = std::move(copy);
                }
                end_reasoning();
                return true;
            }
            ++thought_;
            think(text_of(id));
            return true;
        }
        case Phase::before:
            break;
    }
    // The text is the answer, or the opening tag, or may become either.
    const bool opens = begins_reasoning(id);
    if (opening_ && !opens) return go_on_free(tail_ + std::string(text_of(id)));
    std::optional<GrammarMatcher> answer = matcher_;
    const bool answers = !start_ || (answer && answer->accept(token));
    if (!opens && !answers) return false;
    if (opens && tail_.size() + text_of(id).size() >= gate_->begin.size()) {
        const std::string_view rest = text_of(id).substr(gate_->begin.size() - tail_.size());
        tail_.clear();
        if (!opening_) matcher_ = start_;
        think(rest);
        return true;
    }
    matcher_ = answers ? std::move(answer) : std::nullopt;
    if (opens)
        tail_ += text_of(id);
    else
        phase_ = Phase::answer;
    return true;
}

bool AnswerConstraint::may_end() const {
    if (phase_ == Phase::ending) return false;
    if (!start_ || (opening_ && phase_ != Phase::answer)) return true;
    return phase_ != Phase::reasoning && matcher_ && matcher_->may_end();
}

bool AnswerConstraint::finished() const {
    return phase_ == Phase::answer && start_ && matcher_ && matcher_->finished();
}

}  // namespace nibble
