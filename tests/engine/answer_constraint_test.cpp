// Answers with a grammar together with answers without.
#include "engine/answer_constraint.h"

#include "engine/answer_all.h"
#include "engine/engine.h"
#include "support/chat_model.h"

#include <gtest/gtest.h>

using namespace nibble;
using namespace nibble::test;

TEST(AnswerConstraints, ConstrainedAnswersMatchTheGrammarAndFreeOnesAreUnchanged) {
    ChatModel chat;
    const auto schema = parse_json(
        R"({"type":"object","properties":{"city":{"type":"string","maxLength":6},"n":{"type":"integer","minimum":1,)"
        R"("maximum":99},"ok":{"type":"boolean"}},"required":["city","n"],"additionalProperties":false})");
    ASSERT_TRUE(schema.ok());
    const auto grammar = Grammar::from_json_schema(*schema);
    ASSERT_TRUE(grammar.ok());
    const auto eos = chat.model->config().eos;
    const auto vocabulary = GrammarVocabulary::of(*chat.tokenizer, eos, size_t(chat.model->config().vocab));
    ASSERT_TRUE(vocabulary.ok()) << vocabulary.error().message();
    const auto tokens = std::make_shared<const GrammarTokens>(*grammar, *vocabulary);
    const auto held = token_constraint(AnswerConstraint({}, tokens, *vocabulary));

    const auto request = [&](uint64_t seed, bool constrained) {
        Request out;
        out.prompt = chat.encode("the city");
        out.sampling.temperature = 1;
        out.sampling.seed = seed;
        out.max_tokens = 120;
        out.eos = eos;
        if (constrained) out.constraint = held;
        return out;
    };
    const auto run = [&](std::vector<Request> requests) {
        auto engine = Engine::create(std::shared_ptr<LanguageModel>(&*chat.model, [](LanguageModel*) {}),
                                     *chat.tokenizer, {.sequences = 16});
        EXPECT_TRUE(engine.ok());
        std::vector<WholeAnswer> answers;
        EXPECT_TRUE(answer_all(**engine, std::move(requests), {}, answers).ok());
        return answers;
    };
    std::vector<Request> mixed;
    for (uint64_t seed = 0; seed < 24; ++seed) mixed.push_back(request(seed, seed % 3 != 0));
    const auto answers = run(std::move(mixed));
    ASSERT_EQ(answers.size(), 24u);
    int ended = 0;
    for (uint64_t seed = 0; seed < 24; ++seed) {
        const WholeAnswer& answer = answers[seed];
        if (seed % 3 == 0) {
            std::vector<Request> one;
            one.push_back(request(seed, false));
            EXPECT_EQ(run(std::move(one))[0].tokens, answer.tokens);
        } else if (answer.finish == FinishReason::stop) {
            ++ended;
            EXPECT_TRUE((*grammar)->matches(answer.text)) << answer.text;
            EXPECT_TRUE(parse_json(answer.text).ok()) << answer.text;
        } else {
            EXPECT_EQ(answer.finish, FinishReason::length) << answer.text;
        }
    }
    EXPECT_GT(ended, 8);
}
