// Drafts of prediction layers: accepted tokens are counted by position, and drafts affect only the time.
#include "engine/faulty_model.h"
#include "engine/run_requests.h"
#include "engine/small_models.h"

#include <numeric>

namespace nibble::test {
namespace {

class Speculation : public testing::TestWithParam<std::string> {
protected:
    std::shared_ptr<const Model> load(float say, bool prediction = true) {
        ModelOptions options;
        options.prediction = prediction;
        auto model = Model::load(agreeing_model(predicting(GetParam()), say), options, pool_);
        EXPECT_TRUE(model.ok()) << (model.ok() ? "" : model.error().message());
        return std::make_shared<const Model>(*std::move(model));
    }
    static Request request(int64_t prompt, int64_t answer, uint32_t seed = 1) {
        Request r;
        for (int64_t i = 0; i < prompt; ++i) r.prompt.push_back(int32_t((i * 31 + seed * 7 + 3) % 256));
        r.max_tokens = answer;
        r.sampling.temperature = 0;
        return r;
    }
    static EngineOptions options(int64_t drafts) {
        return {.sequences = 8, .step_rows = 48, .drafts = drafts, .drafter = DraftSource::prediction};
    }
    ThreadPool pool_{2};
};

// The next token is a function of the current one, and the layers know this function, so every draft is accepted.
TEST_P(Speculation, AcceptedDraftTokensAreCountedByPosition) {
    const auto model = load(0.0f);
    for (const int64_t drafts : {1, 3, 7}) {
        const Request r = request(100, 1 + 6 * (drafts + 1));
        const auto engine = make_engine(*model, options(drafts));
        const Heard heard = run_all(*engine, {r})[0];
        EXPECT_EQ(heard.choices, run_alone(*model, r).choices);
        const EngineStats s = engine->stats();
        EXPECT_EQ(s.drafts, 6);
        EXPECT_EQ(s.draft_tokens, 6 * drafts);
        EXPECT_EQ(s.accepted_tokens, 6 * drafts);
        for (int64_t i = 0; i < most_drafts; ++i) EXPECT_EQ(s.accepted_at[size_t(i)], i < drafts ? 6 : 0) << i;
        EXPECT_EQ(s.steps, 3 + 6) << "three pieces of the prompt, then drafts + 1 tokens a step";
        EXPECT_EQ(heard.report.draft_tokens, 6 * drafts);
        EXPECT_EQ(heard.report.accepted_tokens, 6 * drafts);
    }
}

// A draft is sampled with the same random numbers as the token itself.
TEST_P(Speculation, SampledTokensAreDraftedToo) {
    const auto model = load(0.0f);
    Request r = request(30, 121);
    r.sampling.temperature = 1.0f;
    r.sampling.top_p = 0.95f;
    const auto engine = make_engine(*model, options(3));
    EXPECT_EQ(run_all(*engine, {r})[0].choices, run_alone(*model, r).choices);
    EXPECT_GT(engine->stats().accepted_tokens, engine->stats().draft_tokens * 3 / 4);
}

TEST_P(Speculation, SomeDraftsAreAcceptedAndTheAnswerIsTheSame) {
    const auto model = load(0.1f), without = load(0.1f, false);
    std::vector<Request> requests;
    for (uint32_t i = 0; i < 12; ++i) {
        Request& r = requests.emplace_back(request(20 + 17 * i, 90, i % 5));
        r.sampling.temperature = i % 3 == 0 ? 0.8f : 0.0f;
        r.sampling.seed = i;
        if (i % 4 == 1) r.choices = 3;
        if (i == 5) r.drafts = 0;
        if (i == 6) r.drafts = 9;
    }
    const auto engine = make_engine(*model, options(4));
    const auto heard = run_all(*engine, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(heard[i].choices, run_alone(*without, requests[i]).choices) << i;
        EXPECT_EQ(heard[i].report.draft_tokens == 0, i == 5) << i;
    }
    const EngineStats s = engine->stats();
    EXPECT_GT(s.accepted_tokens, s.draft_tokens / 20);  // about one in ten, because the layer resembles the model but
                                                        // is not equal
    EXPECT_LT(s.accepted_tokens, s.draft_tokens);
    EXPECT_EQ(std::accumulate(s.accepted_at.begin(), s.accepted_at.end(), int64_t{0}), s.accepted_tokens);
    for (size_t i = 1; i < s.accepted_at.size(); ++i) EXPECT_LE(s.accepted_at[i], s.accepted_at[i - 1]);
    EXPECT_GT(s.accepted_at[2], 0);
    EXPECT_EQ(s.failed_drafts, 0);
    EXPECT_EQ(s.used_pages, 0);
}

// Expected text is used for drafts by every engine that supports this: the answer is the same and needs fewer steps.
TEST_P(Speculation, TheExpectedTextIsDraftedFirst) {
    const auto model = load(0.1f), without = load(0.1f, false);
    Request r = request(40, 60);
    const Heard alone = run_alone(*without, r);
    for (const bool right : {true, false}) {
        r.expected = right ? alone.choices[0].ids : std::vector<int32_t>{4, 4, 4, 5};
        for (const int64_t drafts : {0, 4}) {
            for (const DraftSource drafter : {DraftSource::lookup, DraftSource::prediction}) {
                EngineOptions o = options(drafts);
                o.drafter = drafter;
                const auto engine = make_engine(*model, o);
                const Heard heard = run_all(*engine, {r})[0];
                EXPECT_EQ(heard.choices, alone.choices);
                if (!right) continue;
                const bool recurrent =
                    !GetParam().starts_with("deepseek") && drafts == 0;  // has no copies of states for rewinding
                EXPECT_EQ(heard.report.accepted_tokens > 30, !recurrent) << heard.report.accepted_tokens;
                EXPECT_EQ(engine->stats().steps < 25, !recurrent) << drafts;
            }
        }
    }
    r.drafts = 0;
    EXPECT_EQ(run_all(*make_engine(*model, options(4)), {r})[0].report.draft_tokens, 0);
}

// Pages of the prefix cache include those of the prediction layers.
TEST_P(Speculation, ContinuesAfterACachedPrefix) {
    const auto model = load(0.0f);
    const auto engine = make_engine(*model, options(3));
    for (const int64_t prompt : {130, 150, 200}) {
        const Request r = request(prompt, 33);
        const Heard heard = run_all(*engine, {r})[0];
        EXPECT_EQ(heard.choices, run_alone(*model, r).choices);
        EXPECT_EQ(heard.report.accepted_tokens, heard.report.draft_tokens);
        EXPECT_EQ(heard.report.cached_tokens > 0, prompt > 130);
    }
}

class FailingPredictor : public Faulty {
public:
    explicit FailingPredictor(const LanguageModel& inner) : Faulty(inner, false, 3, 0) {}
    Status predict(const Batch& batch, std::span<const int32_t> rows, bool again,
                   std::span<const TokenRequest> requests, std::span<ChosenToken> chosen) const override {
        if (++calls_ % 5 == 0) return fail("a NaN");
        if (calls_ % 7 == 0) throw std::bad_alloc();
        return Faulty::predict(batch, rows, again, requests, chosen);
    }
    Status evaluate(const Batch& batch, std::span<float> logits) const override {
        return forward(batch, logits, nullptr);
    }

private:
    mutable int calls_ = 0;
};

TEST_P(Speculation, FailedDraftsDoNotChangeAnswers) {
    const auto model = load(0.3f);
    const FailingPredictor failing(*model);
    const auto engine = make_engine(failing, options(3));
    std::vector<Request> requests;
    for (uint32_t i = 0; i < 6; ++i) requests.push_back(request(20 + 9 * i, 60, i));
    const auto heard = run_all(*engine, requests);
    for (size_t i = 0; i < requests.size(); ++i)
        EXPECT_EQ(heard[i].choices, run_alone(*model, requests[i]).choices) << i;
    EXPECT_GT(engine->stats().failed_drafts, 5);
    EXPECT_GT(engine->stats().accepted_tokens, 0);
}

TEST_P(Speculation, NeedsPredictionLayers) {
    const auto model = load(0.3f, false);
    const auto engine = Engine::create(model, {}, options(3));
    ASSERT_FALSE(engine.ok());
    EXPECT_EQ(engine.error().message(), "the model was loaded without layers for multi-token prediction");
}

INSTANTIATE_TEST_SUITE_P(Families, Speculation, testing::Values("deepseek_v3", "deepseek_v32", "nemotron_h", "qwen3_5"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace nibble::test
