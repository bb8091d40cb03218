// Constrains an answer token by token: reasoning that ends within its budget, then a grammar, which may begin only
// after a given opening text.
#pragma once

#include "grammar/matcher.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nibble {

// Detects the end of reasoning. The texts are searched for in the bytes of the answer.
struct ReasoningGate {
    bool open = true;                 // the answer begins inside reasoning
    std::string begin;                // if not open: reasoning begins with this text, if the answer begins with it
    std::string end;                  // "</think>"
    std::vector<int32_t> end_tokens;  // tokens that write `end` when the budget is used up
    std::optional<int64_t> budget;    // most tokens of reasoning; no value: unlimited
};

// Has the functions of serve's TokenConstraint (engine/request.h; engine/answer_constraint.h connects them). A copy is
// independent and cheap. Not thread-safe.
class AnswerConstraint {
public:
    // Gate and grammar are optional. `opening`: a text with which every text of the grammar begins, as characters or as
    // a control token. After the reasoning, the answer is free until this text appears; empty: the grammar applies to
    // the whole answer. Preconditions: gate->end is not empty; an opening requires a grammar.
    AnswerConstraint(std::optional<ReasoningGate> gate, std::shared_ptr<const GrammarTokens> grammar,
                     std::shared_ptr<const GrammarVocabulary> vocabulary, const std::string& opening = {});

    // Sets the bits of the tokens that may follow and clears all others. End tokens are never set while the grammar
    // applies; while the answer is free, every bit is set.
    void mask(std::span<uint32_t> allowed) const;
    bool accept(int32_t token);
    bool may_end() const;
    bool finished() const;

private:
    enum class Phase : uint8_t { before, reasoning, ending, free, answer };
    struct Gate : ReasoningGate {
        std::vector<uint32_t> closing;  // tokens that may complete `end`
    };
    struct Opening {
        std::string text;
        std::vector<uint32_t> closing;  // tokens that may complete `text`
    };
    std::vector<uint32_t> closing_tokens(const std::string& text) const;
    std::string_view text_of(uint32_t token) const;
    // If this token ends the reasoning, returns the part of its text after the end tag.
    std::optional<std::string_view> after_end(std::string& joined, uint32_t token) const;
    bool begins_reasoning(uint32_t token) const;
    void think(std::string_view text);
    void end_reasoning();
    // Returns true if an answer may begin with `text` directly after the reasoning.
    bool may_begin(std::string_view text) const;
    void clear_wrong_openings(std::span<uint32_t> allowed) const;
    bool go_on_free(std::string text);

    std::shared_ptr<const Gate> gate_;
    std::shared_ptr<const GrammarVocabulary> vocabulary_;
    std::shared_ptr<const Opening> opening_;         // null: the grammar applies from the beginning
    std::optional<GrammarMatcher> start_, matcher_;  // start_: after the opening; matcher_: current state, if the
                                                     // answer is inside the grammar
    Phase phase_ = Phase::answer;
    std::string tail_;     // the last bytes, in which a tag may begin
    int64_t thought_ = 0;  // tokens of reasoning
    size_t ending_ = 0;    // written tokens of gate_->end_tokens
};

}  // namespace nibble
