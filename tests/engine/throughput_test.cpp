#include "engine/throughput.h"

#include "engine/faulty_model.h"
#include "engine/run_requests.h"
#include "engine/small_models.h"

namespace nibble::test {
namespace {

TEST(Throughput, CountsEveryTokenOfEveryAnswer) {
    ThreadPool pool(2);
    for (const char* name : {"llama", "hybrid"}) {
        const auto model = load_small({name}, pool);
        const auto engine = make_engine(*model, {.sequences = 3, .step_rows = 40, .context = 32});
        int64_t reported = 0;
        const auto t = measure_throughput(*engine, {.input = 20, .output = 7, .requests = 11},
                                          [&](int64_t finished) { EXPECT_EQ(finished, ++reported); });
        ASSERT_TRUE(t.ok()) << t.error().message();
        EXPECT_EQ(t->requests, 11);
        EXPECT_EQ(reported, 11);
        EXPECT_EQ(t->input_tokens, 220);
        EXPECT_EQ(t->output_tokens, 77);
        EXPECT_GE(t->most_running, 2);
        EXPECT_LE(t->most_running, 3);
        EXPECT_EQ(t->step_rows, 11 * (20 + 6));
        EXPECT_GT(t->seconds, 0);
        EXPECT_DOUBLE_EQ(t->output_per_second(), 77 / t->seconds);
        EXPECT_DOUBLE_EQ(t->total_per_second(), 297 / t->seconds);
        const auto steady = measure_steady_decode(*model, 3, 24, 5);
        ASSERT_TRUE(steady.ok()) << steady.error().message();
        EXPECT_GT(*steady, 0);
        EXPECT_EQ(t->deferred_rows + t->host_rows, 0);
        // Every second request has a mask on the device, every fourth a bias.
        const Overlapping device(*model, 1 << 30, 0);
        const auto overlapping = make_engine(device, {.sequences = 3, .step_rows = 40, .context = 32});
        const auto held =
            measure_throughput(*overlapping, {.input = 20, .output = 7, .requests = 12, .masked = 0.5, .biased = 0.25});
        ASSERT_TRUE(held.ok()) << held.error().message();
        EXPECT_EQ(held->output_tokens, 12 * 7);
        EXPECT_GE(held->deferred_rows, 3 * 7);
        EXPECT_GE(held->host_rows, 3 * 7);
        EXPECT_FALSE(measure_throughput(*engine, {.input = 32, .output = 7, .requests = 1}).ok());
    }
}

}  // namespace
}  // namespace nibble::test
