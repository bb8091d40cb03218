// Tests the page of an RL run and the samples that it shows.
#include "rl/rl_page.h"
#include "rl/rl_samples.h"
#include "run/log.h"
#include "support/files.h"
#include "support/markup_check.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

namespace nibble::test {
namespace {

Json step_line(int64_t step) {
    Json line{{"step", step},
              {"loss", step == 3 ? NAN : 0.1},
              {"gradient_norm", 1.0},
              {"learning_rate", 1e-5},
              {"seconds", 2.0},
              {"tokens", 100},
              {"reward", 0.01 * double(step)},
              {"shaped_reward", 0.01 * double(step)},
              {"accuracy", 0.005 * double(step)},
              {"prompts", 4},
              {"answers", 16},
              {"failures", 0},
              {"equal_groups", 1},
              {"generated_tokens", 120},
              {"mean_gen_tokens_per_sample", 7.5},
              {"longest_answer", 12},
              {"cut_share", 0.25},
              {"max_turns_reached_rate", 0.0},
              {"mismatch_tokens", step == 30 ? 3 : 0},
              {"compared_tokens", 100},
              {"off_policy_tokens", 0},
              {"kl_penalty", 0.0},
              {"token_mult_prob_error", 1.0},
              {"approx_entropy", 1.5},
              {"probs_ratio", 1.0},
              {"generate_seconds", 1.0},
              {"reward_seconds", 0.25},
              {"train_seconds", 0.5}};
    if (step % 10 == 9)
        line["validation_reward"] = 0.5, line["validation_prompts"] = 40, line["validation_answers"] = 1;
    return line;
}

void write_log(const TempDir& dir, int64_t steps) {
    auto log = RunLog::create(dir / run_log_name, {{"run", {{"name", "<run>"}, {"parameters", 1'000'000}}}});
    ASSERT_TRUE(log.ok());
    for (int64_t i = 0; i < steps; ++i) ASSERT_TRUE(log->add(step_line(i)).ok());
    ASSERT_TRUE(log->add({{"step", steps}, {"warning", "the disk is <full>"}}).ok());
}

RolloutBatch batch_of_rewards(const std::vector<std::optional<double>>& rewards) {
    RolloutBatch batch;
    batch.prompts.push_back({.question = "What is <1> + 1?", .expected = "2"});
    for (const auto& reward : rewards) {
        Rollout r{.tokens = {5, 6, 7}, .generated = {-0.01f, 0, -3.0f}, .written = {1, 0, 1}, .steps = {4, 4, 3}};
        r.reward = reward;
        if (!reward) r.failure = "not <judged>";
        batch.rollouts.push_back(r);
    }
    return batch;
}

TEST(RlSamples, AreSpreadFromTheBestToTheWorst) {
    const RolloutBatch batch = batch_of_rewards({0.5, 0, 1, std::nullopt, 0.25, 0.75, 0.1});
    const auto samples = choose_samples(batch, 3, 4);
    ASSERT_EQ(samples.size(), 3u);
    EXPECT_EQ(samples[0].reward, 1);
    EXPECT_EQ(samples[1].reward, 0.25);
    EXPECT_FALSE(samples[2].reward.has_value());
    EXPECT_EQ(samples[0].stale, (std::vector<uint8_t>{0, 0, 1}));
    EXPECT_EQ(choose_samples(batch, 1, 4).front().reward, 1);
    EXPECT_EQ(choose_samples(batch, 99, 4).size(), 7u);
    EXPECT_TRUE(choose_samples({}, 3, 4).empty());
}

TEST(RlPage, HoldsTheCurvesAndTheSamples) {
    TempDir dir;
    write_log(dir, 700);
    auto samples = choose_samples(batch_of_rewards({1, std::nullopt}), 2, 4);
    samples[0].previous = {-0.01f, 0, -3.0f}, samples[0].current = {-0.01f, 0, -2.0f};
    samples[1].previous = {-0.02f, 0, -3.0f}, samples[1].current = {-0.5f, 0, -3.0f};
    write_file(dir / samples_name, samples_text(4, samples, {}));
    const auto page = rl_page(dir.path());
    ASSERT_TRUE(page.ok()) << page.error().message();
    EXPECT_EQ(check_markup(*page).error, "");
    for (const char* word : {"https:", "<run>", "<judged>", "<full>", "<1>", "http-equiv=\"refresh\""})
        EXPECT_EQ(page->find(word), std::string::npos) << word;
    EXPECT_LT(page->size(), 500'000u);
    const Json data = page_data(*page);
    EXPECT_EQ(data["name"], "<run>");
    EXPECT_EQ(data["about"], Json({{"parameters", 1'000'000}}));
    EXPECT_EQ(data["steps"], 700);
    EXPECT_EQ(data["warnings"], Json({"the disk is <full>"}));
    EXPECT_EQ(data["samples"], *read_json_file(dir / samples_name));
    EXPECT_EQ(data["validation"]["step"], 699);
    EXPECT_EQ(data["newest"]["answers"], 16);
    const Json& fields = data["fields"];
    EXPECT_EQ(fields["compared_tokens"]["sum"], 70'000);
    EXPECT_EQ(fields["mismatch_tokens"]["sum"], 3);
    EXPECT_NEAR(fields["reward"]["last"].get<double>(), 6.895, 1e-9) << "the mean of the last 20 steps";
    EXPECT_NEAR(fields["reward"]["first"].get<double>(), 0.095, 1e-9);
    EXPECT_EQ(fields["reward"]["curve"].size(), 234u);
    EXPECT_EQ(fields["reward"]["curve"][1], Json({3, 5, 0.04, 0.03, 0.05}));
    EXPECT_EQ(fields["validation_reward"]["curve"].size(), 70u);
    EXPECT_FALSE(fields.contains("step"));
    // While the run continues, the browser reloads the page.
    EXPECT_NE(rl_page(dir.path(), 10)->find("<meta http-equiv=\"refresh\" content=\"10\">"), std::string::npos);
}

TEST(RlPage, OneStepWithoutSamplesIsAPageAndNoStepIsNone) {
    TempDir dir;
    write_log(dir, 1);
    const auto page = rl_page(dir.path());
    ASSERT_TRUE(page.ok()) << page.error().message();
    EXPECT_TRUE(page_data(*page)["samples"].is_null());
    EXPECT_TRUE(page_data(*page)["validation"].is_null());
    for (const char* damaged : {"{\"tokens\": 7}", "{}", "[]", "{\"tokens\": [{\"text\": 7}]}"}) {
        write_file(dir / samples_name, fmt::format("{{\"samples\": [{}]}}", damaged));
        const auto refused = rl_page(dir.path());
        ASSERT_FALSE(refused.ok()) << damaged;
        EXPECT_NE(refused.error().message().find(samples_name), std::string::npos);
    }
    write_file(dir / run_log_name, "{\"run\": {}}\n");
    EXPECT_NE(rl_page(dir.path()).error().message().find("no steps yet"), std::string::npos);
}

}  // namespace
}  // namespace nibble::test
