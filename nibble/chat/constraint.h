// What an answer is held to, token by token: reasoning that ends within its budget, then a grammar.
#pragma once

#include "grammar/matcher.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nibble {

// Where reasoning ends. The texts are searched for in the bytes of the answer.
struct ReasoningGate {
    bool open = true;                 // the answer begins inside of reasoning
    std::string begin;                // else: reasoning begins with this text, if the answer begins with it
    std::string end;                  // "</think>"
    std::vector<int32_t> end_tokens;  // tokens that say `end` where the budget is spent
    std::optional<int64_t> budget;    // tokens of reasoning; none: unlimited
};

// Has the functions of serve's TokenConstraint (serve/request.h; serve/answer_constraint.h joins the two). A copy is
// independent and cheap. Used by one thread at a time.
class AnswerConstraint {
public:
    // Either may be missing. Precondition: gate->end is not empty.
    AnswerConstraint(std::optional<ReasoningGate> gate, std::shared_ptr<const GrammarTokens> grammar,
                     std::shared_ptr<const GrammarVocabulary> vocabulary);

    // Sets the bits of the tokens that may follow and clears all others. End tokens are never set where a grammar is
    // followed; while the answer is free, every bit is set.
    void mask(std::span<uint32_t> allowed) const;
    bool accept(int32_t token);
    bool may_end() const;
    bool finished() const;

private:
    enum class Phase : uint8_t { before, reasoning, ending, answer };
    struct Gate : ReasoningGate {
        std::vector<uint32_t> closing;  // tokens that `end` may be complete with
    };
    std::string_view text_of(uint32_t token) const;
    // Behind the text of a token in reasoning: where the reasoning has ended, what the token says behind it.
    std::optional<std::string_view> behind_end(std::string& joined, uint32_t token) const;
    bool opening(uint32_t token) const;
    void think(std::string_view text);

    std::shared_ptr<const Gate> gate_;
    std::shared_ptr<const GrammarVocabulary> vocabulary_;
    std::optional<GrammarMatcher> start_, matcher_;  // at the start; where the answer is, if it is of the grammar
    Phase phase_ = Phase::answer;
    std::string tail_;     // the last bytes, in which a tag may begin
    int64_t thought_ = 0;  // tokens of reasoning
    size_t ending_ = 0;    // of gate_->end_tokens that were said
};

}  // namespace nibble
