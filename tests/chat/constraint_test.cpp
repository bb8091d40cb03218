// Reasoning before a grammar.
#include "chat/constraint.h"

#include <gtest/gtest.h>

using namespace nibble;

namespace {

struct Thinker {
    std::shared_ptr<const GrammarVocabulary> vocabulary;
    std::shared_ptr<const GrammarTokens> tokens;
    std::vector<std::string> texts{"",    "a",           "b",         "<think>",   "</think>", "\xFF<end>",
                                   "<",   "think>",      "/think>\n", ">",         "x>",       "\n",
                                   "yes", "</think>yes", "no",        "</think>a", "<thi",     "nk>a"};

    Thinker() {
        vocabulary = *GrammarVocabulary::of(texts);
        tokens = std::make_shared<const GrammarTokens>(*Grammar::from_regex("yes|no|<o>"), vocabulary);
    }
    int32_t id(std::string_view text) const {
        return int32_t(std::find(texts.begin(), texts.end(), text) - texts.begin());
    }
    std::string allowed(const AnswerConstraint& constraint) const {
        std::vector<uint32_t> mask(vocabulary->words());
        constraint.mask(mask);
        std::string out;
        for (size_t t = 1; t < texts.size(); ++t)
            if (mask[t / 32] >> (t % 32) & 1) out += (out.empty() ? "" : "|") + texts[t];
        return out;
    }
    // Accepts the texts. The mask must allow each, and the constraint must reject every token that the mask does not
    // allow.
    bool say(AnswerConstraint& constraint, std::initializer_list<std::string_view> said) const {
        for (const std::string_view text : said) {
            std::vector<uint32_t> mask(vocabulary->words());
            constraint.mask(mask);
            for (size_t t = 1; t < texts.size(); ++t) {
                AnswerConstraint copy = constraint;
                EXPECT_EQ(copy.accept(int32_t(t)), (mask[t / 32] >> (t % 32) & 1) != 0) << texts[t] << " at " << text;
            }
            if (!constraint.accept(id(text))) return false;
        }
        return true;
    }
};

ReasoningGate think_gate(bool open) { return {.open = open, .begin = "<think>", .end = "</think>"}; }

}  // namespace

TEST(ReasoningGate, TheGrammarBeginsAfterTheReasoning) {
    const Thinker t;
    for (const auto& end : std::vector<std::vector<std::string>>{{"</think>"}, {"<", "/think>\n"}, {"a", "</think>"}}) {
        AnswerConstraint constraint(think_gate(true), t.tokens, t.vocabulary);
        EXPECT_TRUE(t.say(constraint, {"a", "<", "b", "no"}));
        for (const std::string& text : end) EXPECT_TRUE(t.say(constraint, {text}));
        EXPECT_EQ(t.allowed(constraint), "<|yes|no");
        EXPECT_FALSE(constraint.may_end());
        EXPECT_TRUE(t.say(constraint, {"no"}));
        EXPECT_TRUE(constraint.may_end());
        EXPECT_TRUE(constraint.finished());
    }
    // A token that ends the reasoning and has more text must match the grammar.
    AnswerConstraint constraint(think_gate(true), t.tokens, t.vocabulary);
    EXPECT_FALSE(t.say(constraint, {"</think>a"}));
    EXPECT_TRUE(t.say(constraint, {"</think>yes"}));
    EXPECT_TRUE(constraint.finished());
}

TEST(ReasoningGate, ReasoningIsOptional) {
    const Thinker t;
    AnswerConstraint answer(think_gate(false), t.tokens, t.vocabulary);
    EXPECT_EQ(t.allowed(answer), "<think>|<|yes|no|<thi");
    AnswerConstraint other = answer;
    EXPECT_TRUE(t.say(answer, {"yes"}));
    EXPECT_TRUE(answer.finished());
    EXPECT_TRUE(t.say(other, {"<"}));
    EXPECT_EQ(t.allowed(other), "think>");
    EXPECT_TRUE(t.say(other, {"think>", "b", "</think>", "no"}));
    EXPECT_TRUE(other.finished());
    AnswerConstraint third(think_gate(false), t.tokens, t.vocabulary);
    EXPECT_TRUE(t.say(third, {"<thi", "nk>a", "</think>", "yes"}));
    EXPECT_TRUE(third.finished());
}

TEST(Opening, TheAnswerIsFreeUntilItsOpening) {
    Thinker t;
    t.tokens = std::make_shared<const GrammarTokens>(*Grammar::from_regex("/think>\n(yes|no)"), t.vocabulary);
    const AnswerConstraint start({}, t.tokens, t.vocabulary, "/think>");
    for (const auto& words : std::vector<std::vector<std::string>>{{"/think>\n"}, {"a", "<", "/think>\n"}}) {
        AnswerConstraint constraint = start;
        for (const std::string& word : words) {
            EXPECT_TRUE(constraint.may_end());
            EXPECT_TRUE(t.say(constraint, {word}));
        }
        EXPECT_FALSE(constraint.may_end());
        EXPECT_EQ(t.allowed(constraint), "yes|no");
        EXPECT_TRUE(t.say(constraint, {"no"}));
        EXPECT_TRUE(constraint.finished());
    }
    // A token that completes the opening and has more text must match the grammar.
    AnswerConstraint wrong = start;
    EXPECT_FALSE(t.say(wrong, {"</think>yes"}));
    EXPECT_TRUE(t.say(wrong, {"</think>", "\n", "yes"}));
    EXPECT_TRUE(wrong.finished());
    // Inside reasoning, the opening has no effect.
    AnswerConstraint thinks({ReasoningGate{.open = true, .begin = "<think>", .end = "no"}}, t.tokens, t.vocabulary,
                            "/think>");
    EXPECT_TRUE(t.say(thinks, {"/think>\n", "a", "no", "b", "/think>\n", "yes"}));
    EXPECT_TRUE(thinks.finished());
    // An answer that may begin with reasoning may also begin with the opening.
    AnswerConstraint may({ReasoningGate{.open = false, .begin = "<think>", .end = "no"}}, t.tokens, t.vocabulary,
                         "/think>");
    AnswerConstraint other = may;
    EXPECT_TRUE(t.say(may, {"<", "/think>\n", "yes"}));
    EXPECT_TRUE(may.finished());
    EXPECT_TRUE(t.say(other, {"<thi", "nk>a", "/think>\n", "a", "no", "/think>\n", "no"}));
    EXPECT_TRUE(other.finished());
}

TEST(ReasoningGate, TheBudgetEndsTheReasoning) {
    const Thinker t;
    ReasoningGate gate = think_gate(true);
    gate.budget = 3;
    gate.end_tokens = {t.id("<"), t.id("/think>\n")};
    AnswerConstraint constraint(gate, t.tokens, t.vocabulary);
    EXPECT_TRUE(t.say(constraint, {"a", "b", "a"}));
    EXPECT_EQ(t.allowed(constraint), "<");
    EXPECT_TRUE(t.say(constraint, {"<", "/think>\n", "yes"}));
    EXPECT_TRUE(constraint.finished());

    gate.budget = 0;
    AnswerConstraint none(gate, nullptr, t.vocabulary);  // without a grammar, only the budget applies
    EXPECT_EQ(t.allowed(none), "<");
    EXPECT_FALSE(none.may_end());
    EXPECT_TRUE(t.say(none, {"<", "/think>\n", "a", "no"}));
    EXPECT_TRUE(none.may_end());
    EXPECT_FALSE(none.finished());
}
