#include "engine/histogram.h"

#include "engine/run_requests.h"
#include "engine/small_models.h"

namespace nibble::test {
namespace {

TEST(MetricHistogram, AValueCountsInTheFirstBucketThatContainsIt) {
    MetricHistogram h(histogram_bounds::step);
    for (const double v : {0.5, 1.0, 1.5, 8.0, 9.0, 20000.0}) h.add(v);
    EXPECT_EQ(h.through(0), 2);
    EXPECT_EQ(h.through(1), 4);
    EXPECT_EQ(h.through(2), 5);
    EXPECT_EQ(h.through(h.bounds().size() - 1), 5);
    EXPECT_EQ(h.count(), 6);
    EXPECT_DOUBLE_EQ(h.sum(), 20020.0);
}

TEST(MetricHistogram, BoundsIncreaseAndCoverTheRange) {
    const EngineHistograms h;
    for (const MetricHistogram* one : {&h.time_to_first_token, &h.inter_token_latency, &h.e2e_request_latency,
                                       &h.request_prompt_tokens, &h.iteration_tokens, &h.request_params_n}) {
        EXPECT_GT(one->bounds().size(), 2u);
        EXPECT_LT(one->bounds().size(), MetricHistogram::most_bounds);  // none was dropped
        EXPECT_TRUE(std::ranges::is_sorted(one->bounds()));
    }
}

// Counters and histograms of an engine agree with the events of its sinks.
TEST(EngineHistograms, CountsAddUp) {
    ThreadPool pool(2);
    const auto model = load_small({"llama"}, pool);
    std::vector<Request> requests;
    int64_t prompt = 0;
    for (int i = 0; i < 7; ++i) {
        Request& r = requests.emplace_back();
        r.prompt.assign(size_t(10 + 20 * i), i);
        r.max_tokens = 3 + i;
        r.choices = i == 4 ? 3 : 1;
        prompt += std::ssize(r.prompt);
    }
    requests[2].allowed = {1};
    requests[2].bad_words = {{1}};  // no token is allowed, which is an error
    const auto engine = make_engine(*model, {.sequences = 3, .step_rows = 32});
    const auto heard = run_all(*engine, requests);
    int64_t tokens = 0, longest = 0, gaps = 0, choices = 0;
    for (const Heard& h : heard) {
        int64_t most = 0;
        for (const Answered& a : h.choices) {
            tokens += std::ssize(a.ids), most = std::max(most, std::ssize(a.ids));
            gaps += std::max<int64_t>(0, std::ssize(a.ids) - 1), ++choices;
        }
        longest += most;
    }
    const EngineStats s = engine->stats();
    const EngineHistograms& h = s.histograms;
    EXPECT_EQ(s.finished_error, 1);
    EXPECT_EQ(s.finished_length, choices - 1);
    EXPECT_EQ(s.generated_tokens, tokens);
    EXPECT_EQ(s.prompt_tokens, prompt);
    EXPECT_EQ(h.e2e_request_latency.count(), 7);
    EXPECT_EQ(h.request_queue_time.count(), 7);
    EXPECT_EQ(h.time_to_first_token.count(), 6);
    EXPECT_EQ(h.inter_token_latency.count(), gaps);
    EXPECT_DOUBLE_EQ(h.request_prompt_tokens.sum(), double(prompt));
    EXPECT_DOUBLE_EQ(h.request_generation_tokens.sum(), double(tokens));
    EXPECT_DOUBLE_EQ(h.request_max_num_generation_tokens.sum(), double(longest));
    EXPECT_DOUBLE_EQ(h.request_params_n.sum(), double(choices));
    EXPECT_EQ(h.iteration_tokens.count(), s.steps);
    EXPECT_DOUBLE_EQ(h.iteration_tokens.sum(), double(s.step_rows));
    EXPECT_GE(h.e2e_request_latency.sum(), h.request_inference_time.sum());
}

}  // namespace
}  // namespace nibble::test
