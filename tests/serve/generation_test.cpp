#include "serve/generation.h"

#include "support/chat_model.h"

#include <gtest/gtest.h>

#include <bit>

namespace nibble {
namespace {

const std::vector<std::string> texts{"hello world", "The quick brown fox", "a", "Numbers: 1 2 3 4 5 6 7 8 9 10", "x y"};

struct Answer {
    std::vector<int32_t> ids;
    std::vector<uint32_t> log_prob_bits;
    std::string text;
    FinishReason finish;
    bool operator==(const Answer&) const = default;
};

Answer answer_of(const Generation& g) {
    Answer a{{}, {}, g.text(), g.finish()};
    for (const GeneratedToken& t : g.tokens()) {
        a.ids.push_back(t.id);
        a.log_prob_bits.push_back(std::bit_cast<uint32_t>(t.logprob));
    }
    return a;
}

GenerationParams params_of(float temperature, int64_t max_tokens = 24) {
    GenerationParams params{.max_tokens = max_tokens};
    params.sampling.temperature = temperature;
    params.sampling.seed = 11;
    params.eos = {271};
    return params;
}

std::vector<Answer> run(const test::ChatModel& m, const GenerationParams& params, GenerateOptions options,
                        std::span<const size_t> which) {
    std::vector<Generation> generations;
    for (const size_t i : which)
        generations.emplace_back(*m.tokenizer, m.encode(texts[i]), params, i, m.model->config().context);
    const auto stats = generate(*m.model, generations, options);
    EXPECT_TRUE(stats.ok()) << stats.error().message();
    std::vector<Answer> answers;
    for (const Generation& g : generations) answers.push_back(answer_of(g));
    return answers;
}

TEST(Generate, BitsOfAnAnswerDoNotDependOnBatchChunkOrThreads) {
    const test::ChatModel m;
    const std::vector<size_t> all{0, 1, 2, 3, 4};
    for (const float temperature : {0.0f, 1.0f}) {
        const auto params = params_of(temperature);
        const auto want = run(m, params, {.batch = 1}, all);
        EXPECT_EQ(run(m, params, {.batch = 5}, all), want);
        EXPECT_EQ(run(m, params, {.batch = 3, .step_rows = 4}, all), want);
        EXPECT_EQ(run(m, params, {.batch = 2, .step_rows = 1}, all), want);
        const std::vector<size_t> two{3, 1};
        const auto some = run(m, params, {.batch = 2}, two);
        EXPECT_EQ(some[0], want[3]);
        EXPECT_EQ(some[1], want[1]);
        const test::ChatModel one_thread(1);
        EXPECT_EQ(run(one_thread, params, {.batch = 5}, all), want);
        const test::ChatModel ref(2, test::test_data("chat"), "ref");
        EXPECT_EQ(run(ref, params, {.batch = 5}, all), want);
    }
}

// A model that chooses tokens itself, as one on a GPU does, and leaves every third row to the host.
class Chooser : public LanguageModel {
public:
    explicit Chooser(const LanguageModel& inner) : inner_(inner) {}
    const ModelConfig& config() const override { return inner_.config(); }
    Result<std::unique_ptr<KvPool>> make_pool(int64_t tokens, int64_t sequences) const override {
        return inner_.make_pool(tokens, sequences);
    }
    Status forward(const Batch&, std::span<float>, Observer*) const override { return fail("asked for logits"); }
    bool chooses() const override { return true; }
    Status choose(const Batch& batch, std::span<const TokenRequest> requests,
                  std::span<ChosenToken> chosen) const override {
        const auto vocab = static_cast<size_t>(config().vocab);
        logits_.resize(requests.size() * vocab);
        NIBBLE_CHECK(inner_.forward(batch, logits_));
        std::vector<float> row(vocab), log_probs(vocab);
        for (size_t i = 0; i < requests.size(); ++i) {
            row.assign(&logits_[i * vocab], &logits_[i * vocab] + vocab);
            workspace().elementwise->log_softmax(row.data(), int64_t(vocab), log_probs.data());
            if (left_++ % 3 == 0) continue;
            const TokenRequest& r = requests[i];
            std::vector<int32_t> prompt;
            for (const SeenToken& s : r.seen) prompt.push_back(s.id);
            Sampler sampler(r.params, r.sequence, prompt);
            for (const SeenToken& s : r.seen)
                for (int32_t k = 0; k < s.answer; ++k) sampler.accept(s.id);
            const int32_t id = sampler.sample(row, r.position);
            chosen[i] = {id, log_probs[size_t(id)]};
        }
        return Ok{};
    }
    Status logits_of(int64_t row, std::span<float> logits) const override {
        std::copy_n(logits_.begin() + row * config().vocab, logits.size(), logits.begin());
        return Ok{};
    }
    Workspace& workspace() const override { return inner_.workspace(); }
    std::string kernels() const override { return inner_.kernels(); }

private:
    const LanguageModel& inner_;
    mutable std::vector<float> logits_;
    mutable int left_ = 0;
};

TEST(Generate, AModelThatChoosesTokensGivesTheSameAnswers) {
    const test::ChatModel m;
    const std::vector<size_t> all{0, 1, 2, 3, 4};
    for (const float temperature : {0.0f, 1.0f}) {
        auto params = params_of(temperature);
        params.sampling.top_p = temperature > 0 ? 0.9f : 1.0f;
        params.sampling.repetition_penalty = 1.2f;
        params.sampling.frequency_penalty = 0.3f;
        const auto want = run(m, params, {.batch = 3}, all);
        const Chooser chooser(*m.model);
        std::vector<Generation> generations;
        for (const size_t i : all)
            generations.emplace_back(*m.tokenizer, m.encode(texts[i]), params, i, m.model->config().context);
        const auto stats = generate(chooser, generations, {.batch = 4, .step_rows = 9});
        ASSERT_TRUE(stats.ok()) << stats.error().message();
        for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(answer_of(generations[i]), want[i]);
    }
}

TEST(Generate, GreedyFollowsTheForwardPassAndTellsItsLogProbabilities) {
    const test::ChatModel m;
    const std::vector<size_t> first{0};
    const Answer answer = run(m, params_of(0), {}, first)[0];
    std::vector<int32_t> tokens = m.encode(texts[0]);
    const size_t prompt = tokens.size(), vocab = 272;
    tokens.insert(tokens.end(), answer.ids.begin(), answer.ids.end());
    const auto log_probs = m.log_probs(tokens);
    for (size_t i = prompt; i < tokens.size(); ++i) {
        const double* row = &log_probs[(i - 1) * vocab];
        EXPECT_EQ(std::max_element(row, row + vocab) - row, tokens[i]);
        EXPECT_NEAR(std::bit_cast<float>(answer.log_prob_bits[i - prompt]), row[tokens[i]], 1e-5);
    }
}

TEST(Generate, StreamsExactlyTheTextAndStopsAtAStopString) {
    const test::ChatModel m;
    const std::vector<size_t> all{0, 1, 2, 3, 4};
    std::vector<std::string> streamed(5);
    std::vector<int> finished(5);
    const GenerateOptions options{.on_text = [&](size_t i, std::string_view t) { streamed[i] += t; },
                                  .on_finish = [&](size_t i) { ++finished[i]; }};
    const auto answers = run(m, params_of(1), options, all);
    for (size_t i = 0; i < 5; ++i) {
        EXPECT_EQ(streamed[i], answers[i].text);
        EXPECT_EQ(finished[i], 1);
    }
    // Two characters from the middle of an answer, wherever tokens cut it.
    const std::vector<size_t> third{3};
    const std::string whole = answers[3].text;
    ASSERT_GT(whole.size(), 12u);
    auto params = params_of(1);
    params.stop = {whole.substr(7, 3)};
    const Answer stopped = run(m, params, {}, third)[0];
    EXPECT_EQ(stopped.text, whole.substr(0, whole.find(params.stop[0])));
    EXPECT_EQ(stopped.finish, FinishReason::stop);
    EXPECT_LE(stopped.ids.size(), answers[3].ids.size());
}

TEST(Generate, EndsAtAnEndTokenAtTheLimitAndWhereTheContextEnds) {
    const test::ChatModel m;
    const std::vector<size_t> first{0};
    const Answer free = run(m, params_of(0), {}, first)[0];
    ASSERT_GE(free.ids.size(), 3u);
    auto params = params_of(0);
    params.eos = {free.ids[2]};
    const Answer ended = run(m, params, {}, first)[0];
    EXPECT_EQ(ended.finish, FinishReason::stop);
    EXPECT_LE(ended.ids.size(), 3u);
    EXPECT_EQ(ended.ids.back(), free.ids[2]);
    EXPECT_EQ(run(m, params_of(0, 2), {}, first)[0].ids.size(), 2u);
    EXPECT_EQ(run(m, params_of(0, 2), {}, first)[0].finish, FinishReason::length);
    std::vector<Generation> last;
    last.emplace_back(*m.tokenizer, m.encode("hello world"), params_of(0, 100), 0, 6);
    ASSERT_TRUE(generate(*m.model, last, {}).ok());
    EXPECT_EQ(last[0].prompt().size() + last[0].tokens().size(), 6u);
    EXPECT_EQ(last[0].finish(), FinishReason::length);
}

TEST(Generate, ARequestToStopCancelsWhatIsUnfinished) {
    const test::ChatModel m;
    std::atomic<bool> stop{false};
    int pieces = 0;
    std::vector<Generation> generations;
    for (size_t i = 0; i < 3; ++i)
        generations.emplace_back(*m.tokenizer, m.encode(texts[i]), params_of(1), i, m.model->config().context);
    const GenerateOptions options{.batch = 2,
                                  .on_text =
                                      [&](size_t, std::string_view) {
                                          if (++pieces == 4) stop = true;
                                      },
                                  .stop = &stop};
    ASSERT_TRUE(generate(*m.model, generations, options).ok());
    for (const Generation& g : generations) EXPECT_TRUE(g.finished());
    EXPECT_EQ(generations[2].finish(), FinishReason::cancelled);
    EXPECT_TRUE(generations[2].tokens().empty());
}

TEST(Generate, AConversationThatContinuesItsPastGivesTheSameBitsAsAFreshOne) {
    const test::ChatModel m;
    const auto pool = test::make_pool(*m.model, 256);
    Past past{pool->sequence(), {}};
    std::vector<int32_t> prompt = m.encode(texts[1]);
    const auto turn = [&](Past& p, KvPool& from) {
        Generation g(*m.tokenizer, prompt, params_of(1, 8), 5, 256);
        const auto stats = generate(*m.model, from, p, g, {});
        EXPECT_TRUE(stats.ok());
        return std::pair(answer_of(g), *stats);
    };
    const auto [first, stats] = turn(past, *pool);
    EXPECT_EQ(stats.prompt_tokens_reused, 0);
    EXPECT_EQ(std::ssize(past.tokens), past.sequence.position());
    prompt.insert(prompt.end(), first.ids.begin(), first.ids.end());
    for (const int32_t id : m.encode(" and then", false)) prompt.push_back(id);
    const auto [second, reused] = turn(past, *pool);
    EXPECT_GT(reused.prompt_tokens_reused, 8);
    const auto fresh_pool = test::make_pool(*m.model, 256);
    Past fresh{fresh_pool->sequence(), {}};
    EXPECT_EQ(turn(fresh, *fresh_pool).first, second);
    // Another beginning: the past is of no use.
    prompt = m.encode(texts[3]);
    EXPECT_EQ(turn(past, *pool).second.prompt_tokens_reused, 0);
}

TEST(CheckPrompt, NamesWhatIsWrong) {
    const auto message = [](std::vector<int32_t> ids) {
        const Status s = check_prompt(ids, 10, 4);
        return s.ok() ? std::string() : s.error().message();
    };
    EXPECT_EQ(message({1, 2, 9}), "");
    EXPECT_EQ(message({}), "the prompt has no tokens");
    EXPECT_EQ(message({1, 10}), "the prompt's token 1 is 10; the model's vocabulary has 10");
    EXPECT_EQ(message({-1}), "the prompt's token 0 is -1; the model's vocabulary has 10");
    EXPECT_EQ(message({1, 2, 3, 4}), "the prompt has 4 tokens; the model's context of 4 leaves no room for an answer");
}

}  // namespace
}  // namespace nibble
