// A stream of long prompts: running answers get a token in every step, each step is short, and short prompts come
// first.
#include "engine/run_requests.h"
#include "engine/small_models.h"

namespace nibble::test {
namespace {

struct Gaps {
    int64_t submitted = 0, first = -1, last = -1, most = 0;  // numbers of steps
    int64_t tokens = 0;
    bool done = false;
    void hear(const AnswerEvent& e, int64_t step) {
        done = done || e.finish != FinishReason::none;
        EXPECT_NE(e.finish, FinishReason::error) << e.error;
        if (e.tokens.empty()) return;
        tokens += std::ssize(e.tokens);
        if (first < 0)
            first = step;
        else
            most = std::max(most, step - last);
        last = step;
    }
};

TEST(Fairness, LongPromptsBlockNeitherRunningAnswersNorShortPrompts) {
    ThreadPool pool(2);
    for (const char* name : {"llama", "hybrid"}) {
        const auto model = load_small({name}, pool);
        constexpr int64_t sequences = 16, mixed = 24;
        std::vector<int64_t> rows;
        EngineOptions options{.sequences = sequences, .step_rows = 128, .mixed_rows = mixed};
        options.on_step = [&](int64_t n) { rows.push_back(n); };
        const auto engine = make_engine(*model, options);
        int64_t step = 0, salt = 0;
        const auto submit = [&](Gaps& gaps, int64_t prompt, int64_t tokens) {
            Request r;
            for (int64_t i = 0; i < prompt; ++i)
                r.prompt.push_back(static_cast<int32_t>((i * 7 + salt * (i / 5)) % model->config().vocab));
            ++salt;
            r.max_tokens = tokens;
            gaps.submitted = step;
            EXPECT_TRUE(engine->submit(r, [&](const AnswerEvent& e) { gaps.hear(e, step); }).accepted());
        };
        std::vector<Gaps> running(5), longs(20), shorts(20);
        for (Gaps& g : running) submit(g, 20, 400);
        while (std::ranges::any_of(running, [](const Gaps& g) { return g.first < 0; })) {
            ASSERT_TRUE(engine->step());
            ++step;
        }
        rows.clear();
        // A long prompt takes about 17 steps with its share, so prompts arrive as fast as they are read.
        for (size_t i = 0; i < longs.size(); ++i) {
            submit(longs[i], 400, 3);
            for (int k = 0; k < 17; ++k) {
                if (k == 8) submit(shorts[i], 6, 4);
                ASSERT_TRUE(engine->step());
                ++step;
            }
        }
        EXPECT_LE(*std::ranges::max_element(rows), sequences + mixed);
        for (const Gaps& g : running) {
            EXPECT_GT(g.tokens, 300);
            EXPECT_EQ(g.most, 1) << name;
        }
        for (const Gaps& g : shorts) {
            ASSERT_GE(g.first, 0);
            EXPECT_LE(g.first - g.submitted, 3) << name;  // one step to read it, in addition to the share of the oldest
                                                          // prompt
            EXPECT_EQ(g.most, 1);
        }
        int64_t read = 0;
        for (const Gaps& g : longs) read += g.first >= 0;
        EXPECT_GE(read, 15) << name << ": the long ones starve";
        while (engine->step()) ++step;
        for (const auto* all : {&running, &longs, &shorts})
            for (const Gaps& g : *all) EXPECT_TRUE(g.done);
        EXPECT_EQ(engine->stats().preemptions, 0);
    }
}

}  // namespace
}  // namespace nibble::test
