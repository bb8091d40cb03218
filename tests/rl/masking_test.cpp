// Tests answers that are excluded from the loss but still compared, and the prompts that replace others.
#include "rl/policy_trainer.h"
#include "rl/rl_log.h"
#include "rl/token_task.h"
#include "train/small_trainer.h"

#include <gtest/gtest.h>

namespace nibble::test {
namespace {

RlConfig masking_config() {
    RlConfig c{.prompts = 3, .generations = 4, .steps = 10, .length = 128};
    c.optimizer.learning_rate = 3e-3;
    c.optimizer.weight_decay = 0;
    c.loss.kl_penalty = 0;
    c.generation.most_tokens = 20;
    return c;
}

struct MaskedRun {
    RlStep step;
    std::vector<float> masters;
};

// Runs one step. `other`: the rollouts come from a model with one different weight.
MaskedRun run_step(const RlConfig& config, bool other, const std::vector<int32_t>& ends = {3}) {
    ThreadPool pool(2);
    const auto trainer = small_trainer(pool, {.optimizer = config.optimizer});
    TokenTask task(share_of_even_tokens);
    PolicyTrainerOptions options{.end_tokens = ends};
    if (other) {
        auto checkpoint = small_checkpoint();
        checkpoint->set("model.layers.1.mlp.up_proj.weight", 5, 1.0f);
        auto model = Model::load(checkpoint, {}, pool);
        EXPECT_TRUE(model.ok()) << model.error().message();
        options.generator = std::make_shared<const Model>(*std::move(model));
    }
    const auto policy = PolicyTrainer::create(config, *trainer, task, options);
    EXPECT_TRUE(policy.ok()) << policy.error().message();
    auto step = (*policy)->step(0);
    EXPECT_TRUE(step.ok()) << step.error().message();
    return {step.ok() ? *std::move(step) : RlStep(), all_masters(trainer->parameters())};
}

TEST(RlMasking, AStepWithOnlyCutAnswersIsStillCompared) {
    for (const bool other : {false, true}) {
        RlConfig config = masking_config();
        config.overlong_filtering = true;
        const RlStep step = run_step(config, other, {}).step;
        EXPECT_EQ(step.cut_share, 1);
        EXPECT_EQ(step.metrics.tokens, 0);
        EXPECT_EQ(step.metrics.answers, 0);
        EXPECT_EQ(step.generated_tokens, 12 * 20);
        EXPECT_EQ(step.metrics.compared_tokens, step.generated_tokens);
        EXPECT_EQ(step.metrics.mismatch_tokens > 0, other);
        EXPECT_EQ(step.metrics.max_abs_diff > 0, other);
        const std::string text = step_text(step, {}, 1);
        EXPECT_NE(text.find(" of 240, no token in the loss"), std::string::npos) << text;
        EXPECT_FALSE(to_json(step, {}, 1).contains("token_mult_prob_error"));
    }
}

TEST(RlMasking, AnswersAboveTheThresholdAreMasked) {
    RlConfig config = masking_config();
    const MaskedRun all = run_step(config, true), exact = run_step(config, false);
    EXPECT_FALSE(all.step.masked);
    const PolicyMetrics& m = all.step.metrics;
    const double mean = m.seq_mult_prob_error / 12;
    ASSERT_LT(m.seq_mult_prob_error_min, mean);
    config.seq_error_threshold = mean;
    const MaskedRun some = run_step(config, true);
    ASSERT_TRUE(some.step.masked);
    const RlMasked& masked = *some.step.masked;
    EXPECT_EQ(masked.most, m.seq_mult_prob_error_max);
    EXPECT_EQ(masked.least, m.seq_mult_prob_error_min);
    EXPECT_NEAR(masked.mean, mean, 1e-12);
    EXPECT_GT(masked.answers, 0);
    EXPECT_EQ(some.step.metrics.answers, 12 - masked.answers);
    EXPECT_LT(some.step.metrics.tokens, m.tokens);
    EXPECT_EQ(some.step.metrics.compared_tokens, m.compared_tokens);
    EXPECT_LE(some.step.metrics.seq_mult_prob_error_max, mean);
    EXPECT_NE(some.masters, all.masters);
    const Json line = to_json(some.step, {}, 1);
    EXPECT_EQ(line["num_masked_seqs_by_logprob_error"], masked.answers);
    EXPECT_EQ(line["num_valid_samples"], 12 - masked.answers);
    EXPECT_EQ(line["max_seq_mult_prob_error"], m.seq_mult_prob_error_max);
    EXPECT_LE(line["max_seq_mult_prob_error_after_mask"].get<double>(), mean);
    // Exact rollouts are not masked even at the lowest threshold, and the update is the same.
    config.seq_error_threshold = 1;
    const MaskedRun kept = run_step(config, false);
    ASSERT_TRUE(kept.step.masked);
    EXPECT_EQ(kept.step.masked->answers, 0);
    EXPECT_EQ(kept.step.masked->most, 1);
    EXPECT_EQ(kept.masters, exact.masters);
    EXPECT_EQ(kept.step.metrics.mismatch_tokens, 0);
}

// Counts masked answers with a reward of 1.
TEST(RlMasking, CorrectMaskedAnswersAreCounted) {
    RlStep step;
    step.masked = RlMasked{.most = 3, .mean = 2, .least = 1, .answers = 4, .right = 1};
    EXPECT_EQ(to_json(step, {}, 1)["masked_correct_pct"], 0.25);
}

TEST(RlMasking, ABatchOfDynamicSamplingHasAMultipleOfThePrompts) {
    ThreadPool pool(2);
    RlConfig config = masking_config();
    config.dynamic_sampling = true;
    for (const auto& [multiplier, batches, next] :
         {std::tuple(1.0, 2, 6u), std::tuple(1.5, 2, 8u), std::tuple(3.0, 1, 9u)}) {
        SCOPED_TRACE(multiplier);
        config.batch_multiplier = multiplier;
        const auto trainer = small_trainer(pool, {.optimizer = config.optimizer});
        TokenTask task([](const RolloutPrompt& p, const Rollout& r) {
            return std::stoi(p.question) % 2 ? share_of_even_tokens(p, r) : std::optional(1.0);
        });
        const auto policy = PolicyTrainer::create(config, *trainer, task, {.end_tokens = {3}});
        ASSERT_TRUE(policy.ok()) << policy.error().message();
        const auto step = (*policy)->step(0);  // prompts 1, 3 and 5
        ASSERT_TRUE(step.ok()) << step.error().message();
        EXPECT_EQ(step->sampling_batches, batches);
        EXPECT_EQ(step->prompts, 3);
        EXPECT_EQ(step->answers, 12);
        EXPECT_EQ(step->equal_groups, 0);
        EXPECT_EQ((*policy)->next_prompt(), next);
    }
    config.dynamic_sampling = false;
    const Status refused = check(config);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().message(), "grpo.batch_multiplier 3: needs grpo.use_dynamic_sampling: true");
}

}  // namespace
}  // namespace nibble::test
