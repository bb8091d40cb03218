// Tests the whole loop at a small size: rollouts, rewards, updates. Engine and trainer give the log-probability of a
// token with the same bits.
#include "rl/frozen_policy.h"
#include "rl/policy_trainer.h"
#include "rl/rl_log.h"
#include "rl/token_task.h"
#include "run/state.h"
#include "support/files.h"
#include "train/small_trainer.h"

#include <cmath>
#include <functional>

namespace nibble::test {
namespace {

RlConfig small_config() {
    RlConfig c{.prompts = 3, .generations = 4, .steps = 10, .length = 128};
    c.optimizer.learning_rate = 3e-3;
    c.loss.kl_penalty = 0;
    c.generation.most_tokens = 75;  // more than a page of 64 positions
    c.optimizer.weight_decay = 0;
    return c;
}

TrainerOptions trainer_options(const RlConfig& c, TrainRecipe recipe) {
    return {.precision = {.recipe = recipe}, .optimizer = c.optimizer};
}

struct SmallRun {
    std::vector<RlStep> steps;
    std::vector<float> masters;
};

SmallRun run_steps(const RlConfig& config, int count, int threads, const TrainPrecision& precision = {},
                   int64_t row_tokens = 0) {
    ThreadPool pool(threads);
    const auto trainer = small_trainer(pool, {.precision = precision, .optimizer = config.optimizer});
    TokenTask task(share_of_even_tokens);
    PolicyTrainerOptions options{.end_tokens = {3}, .row_tokens = row_tokens};
    if (config.loss.kl_penalty > 0) {
        auto reference = FrozenPolicy::create(*small_checkpoint(), precision, "", pool);
        EXPECT_TRUE(reference.ok()) << reference.error().message();
        options.reference = *std::move(reference);
    }
    const auto policy = PolicyTrainer::create(config, *trainer, task, options);
    EXPECT_TRUE(policy.ok()) << policy.error().message();
    SmallRun run;
    for (int s = 0; s < count; ++s) {
        auto step = (*policy)->step(s);
        EXPECT_TRUE(step.ok()) << step.error().message();
        if (!step.ok()) break;
        run.steps.push_back(*std::move(step));
    }
    run.masters = all_masters(trainer->parameters());
    return run;
}

TEST(PolicyLoop, NoBitDiffersBetweenRolloutAndTraining) {
    const TrainPrecision precisions[] = {{.recipe = TrainRecipe::bf16},
                                         {.recipe = TrainRecipe::fp32},
                                         {.recipe = TrainRecipe::fp8_block},
                                         {.recipe = TrainRecipe::mxfp8},
                                         {.recipe = TrainRecipe::nvfp4, .row_scaled = true},
                                         {.recipe = TrainRecipe::nvfp4, .stored_inputs = true}};
    for (const TrainPrecision& precision : precisions) {
        SCOPED_TRACE(train_recipe_name(precision.recipe));
        RlConfig config = small_config();
        config.loss.kl_penalty = 0.01;
        const SmallRun one = run_steps(config, 3, 1, precision), three = run_steps(config, 3, 3, precision);
        ASSERT_EQ(one.steps.size(), 3u);
        ASSERT_EQ(three.steps.size(), 3u);
        for (size_t s = 0; s < 3; ++s) {
            const PolicyMetrics& m = one.steps[s].metrics;
            EXPECT_GT(m.tokens, 100);
            EXPECT_EQ(m.tokens, one.steps[s].generated_tokens);
            EXPECT_EQ(m.mismatch_tokens, 0) << "step " << s;
            EXPECT_EQ(m.max_abs_diff, 0);
            EXPECT_EQ(m.token_mult_prob_error, static_cast<double>(m.tokens));
            EXPECT_EQ(m.probs_ratio_min, 1);
            EXPECT_GT(one.steps[s].update.gradient_norm, 0);
            EXPECT_GT(one.steps[s].longest, 64);
            // Results do not depend on threads.
            EXPECT_EQ(m.loss, three.steps[s].metrics.loss);
            EXPECT_EQ(one.steps[s].reward, three.steps[s].reward);
        }
        EXPECT_EQ(one.masters, three.masters);
        // Before the first update the policy equals the reference bit for bit, afterwards not.
        EXPECT_EQ(one.steps[0].metrics.kl_penalty, 0);
        EXPECT_GT(one.steps[2].metrics.kl_penalty, 0);
    }
}

// Answers packed in a row are separate documents: the log-probabilities of tokens do not change. The update changes
// only by the order in which gradients are added.
TEST(PolicyLoop, PackingChangesNoLogProbability) {
    for (const int64_t train_batch : {0, 6}) {
        RlConfig config = small_config();
        config.loss.kl_penalty = 0.01;
        config.train_batch = train_batch;
        const SmallRun alone = run_steps(config, 1, 2), packed = run_steps(config, 1, 2, {}, 200);
        ASSERT_EQ(alone.steps.size() + packed.steps.size(), 2u);
        const PolicyMetrics &a = alone.steps[0].metrics, &b = packed.steps[0].metrics;
        EXPECT_EQ(b.mismatch_tokens, 0);
        EXPECT_EQ(a.tokens, b.tokens);
        EXPECT_NEAR(a.loss, b.loss, 1e-5);
        EXPECT_NEAR(alone.steps[0].update.gradient_norm, packed.steps[0].update.gradient_norm,
                    1e-4 * alone.steps[0].update.gradient_norm);
        EXPECT_EQ(alone.steps[0].reward, packed.steps[0].reward);
    }
}

// Computes validation by hand: answers that begin with an even token are correct.
TEST(PolicyLoop, ValidationCountsPassAvgAndCons) {
    ThreadPool pool(2);
    RlConfig config = small_config();
    config.validation_prompts = 6;
    config.validation_answers = 4;
    config.generation.most_tokens = 1;
    const auto trainer = small_trainer(pool, {});
    std::vector<int> rights(6);
    TokenTask task([&](const RolloutPrompt&, const Rollout& r) -> std::optional<double> {
        const bool right = r.tokens[0] % 2 == 0;
        rights[r.prompt] += right;
        return right ? 1.0 : 0.0;
    });
    const auto policy = PolicyTrainer::create(config, *trainer, task, {});
    ASSERT_TRUE(policy.ok()) << policy.error().message();
    const auto v = (*policy)->validate();
    ASSERT_TRUE(v.ok()) << v.error().message();
    EXPECT_EQ(v->prompts, 6);
    EXPECT_EQ(v->answers, 4);
    double all = 0, some = 0, most = 0;
    for (const int r : rights) all += r, some += r > 0, most += r > 2 ? 1 : r == 2 ? 0.5 : 0;
    EXPECT_NEAR(v->avg_at_k, all / 24, 1e-12);
    EXPECT_NEAR(v->reward, all / 24, 1e-12);
    EXPECT_NEAR(v->pass_at_k, some / 6, 1e-12);
    // Correct answers to a prompt are one vote and wrong ones another; all texts are empty.
    EXPECT_NEAR(v->cons_at_k, most / 6, 1e-12);
}

TEST(PolicyLoop, RowsOfRollouts) {
    RolloutBatch batch;
    batch.prompts.push_back({.tokens = {1, 2, 3}});
    for (const size_t length : {2u, 4u, 1u, 9u}) {
        Rollout r;
        r.tokens.assign(length, 7);
        r.written.assign(length, 1);
        batch.rollouts.push_back(r);
    }
    const auto rows = rollout_rows(batch, 0, 4, 10);  // rows of 4, 6, 3 and 11 tokens
    ASSERT_EQ(rows.size(), 3u);
    EXPECT_EQ(rows[0].batch.seq, 10);
    EXPECT_EQ(rows[0].batch.documents, (std::vector<int64_t>{0, 4}));
    EXPECT_EQ(rows[0].batch.tokens, (std::vector<int32_t>{1, 2, 3, 7, 1, 2, 3, 7, 7, 7}));
    EXPECT_EQ(rows[0].batch.labels, (std::vector<int32_t>{-1, -1, 7, 7, -1, -1, 7, 7, 7, 7}));
    EXPECT_EQ(rows[0].parts[1].begin, 6u);
    EXPECT_EQ(rows[0].parts[1].size, 4u);
    EXPECT_EQ(rows[1].parts[0].rollout, 2u);
    EXPECT_EQ(rows[2].batch.seq, 11);
    EXPECT_EQ(rollout_rows(batch, 0, 4, 0).size(), 4u);
    EXPECT_LE(3, most_rollout_rows(4, 11, 11));
    EXPECT_EQ(most_rollout_rows(64, 128, 0), 64);
}

// With per-tensor scales the bits of a token depend on its neighbours. This is measured, corrected, and reported.
TEST(PolicyLoop, RecipesThatSeeNeighboursNeedTheCorrection) {
    for (const TrainRecipe recipe : {TrainRecipe::fp8, TrainRecipe::nvfp4}) {
        ThreadPool pool(2);
        RlConfig config = small_config();
        const auto trainer = small_trainer(pool, trainer_options(config, recipe));
        TokenTask task(share_of_even_tokens);
        const auto refused = PolicyTrainer::create(config, *trainer, task, {});
        ASSERT_FALSE(refused.ok());
        EXPECT_NE(refused.error().message().find("use_importance_sampling_correction: true"), std::string::npos);
        config.loss.importance_sampling_correction = true;
        const SmallRun run = run_steps(config, 2, 2, {.recipe = recipe});
        ASSERT_EQ(run.steps.size(), 2u);
        for (const RlStep& s : run.steps) {
            EXPECT_GT(s.metrics.mismatch_tokens, 0);
            EXPECT_GT(s.metrics.token_mult_prob_error, static_cast<double>(s.metrics.tokens));
        }
    }
}

// Negative control: one weight of the generating model differs.
TEST(PolicyLoop, ChangedWeightsInTheEngineAreDetected) {
    ThreadPool pool(2);
    const RlConfig config = small_config();
    for (const bool changed : {false, true}) {
        const auto trainer = small_trainer(pool, trainer_options(config, TrainRecipe::bf16));
        auto checkpoint = small_checkpoint();
        if (changed) checkpoint->set("model.layers.1.mlp.up_proj.weight", 5, 1.0f);
        auto model = Model::load(checkpoint, {}, pool);
        ASSERT_TRUE(model.ok()) << model.error().message();
        TokenTask task(share_of_even_tokens);
        const auto policy = PolicyTrainer::create(
            config, *trainer, task, {.end_tokens = {3}, .generator = std::make_shared<const Model>(*std::move(model))});
        ASSERT_TRUE(policy.ok()) << policy.error().message();
        const auto first = (*policy)->step(0), second = (*policy)->step(1);
        ASSERT_TRUE(first.ok() && second.ok());
        EXPECT_EQ(first->metrics.mismatch_tokens > 0, changed);
        EXPECT_EQ(first->metrics.max_abs_diff > 0, changed);
        // A generator without the update differs more.
        EXPECT_GT(second->metrics.mismatch_tokens, second->metrics.tokens / 2);
        EXPECT_GT(second->metrics.token_mult_prob_error, static_cast<double>(second->metrics.tokens));
    }
}

// Computes the step by hand, from rollouts to slopes.
TEST(PolicyLoop, AnUpdateIsThePolicyGradient) {
    ThreadPool pool(2);
    const RlConfig config = small_config();
    const SmallRun run = run_steps(config, 1, 2);
    const auto trainer = small_trainer(pool, trainer_options(config, TrainRecipe::bf16));
    TokenTask task(share_of_even_tokens);
    const auto engine =
        Engine::create({std::shared_ptr<void>(), &trainer->model()}, std::nullopt, {.sequences = 2, .context = 128});
    ASSERT_TRUE(engine.ok()) << engine.error().message();
    const auto batch = roll_out(
        **engine, task,
        {.prompts = 3, .answers = 4, .length = 128, .most_tokens = 75, .seed = config.seed, .end_tokens = {3}});
    ASSERT_TRUE(batch.ok()) << batch.error().message();
    double tokens = 0, mean = 0;
    for (const Rollout& r : batch->rollouts) tokens += double(r.tokens.size()), mean += *r.reward / 12;
    EXPECT_NEAR(run.steps[0].reward, mean, 1e-12);
    std::vector<TrainBatch> rows;
    std::vector<std::vector<float>> slopes;
    for (size_t i = 0; i < 12; ++i) {
        const Rollout& r = batch->rollouts[i];
        double sum = 0, squares = 0;  // over the other three answers to the prompt
        for (size_t j = i / 4 * 4; j < i / 4 * 4 + 4; ++j)
            if (j != i)
                sum += *batch->rollouts[j].reward, squares += *batch->rollouts[j].reward * *batch->rollouts[j].reward;
        const double b = sum / 3, s = std::sqrt((squares / 3 - b * b) * 3 / 2);
        double a = *r.reward - b;
        if (s > 0) a /= s + 1e-6;
        std::vector<int32_t> all = batch->prompts[r.prompt].tokens;
        all.insert(all.end(), r.tokens.begin(), r.tokens.end());
        const auto seq = static_cast<int64_t>(all.size()) - 1;
        rows.push_back(next_token_batch(all, 1, seq));
        for (size_t t = 0; t < 4; ++t) rows.back().labels[t] = -1;  // a prompt has five tokens
        slopes.emplace_back(static_cast<size_t>(seq), 0.0f);
        for (size_t t = 4; t < slopes[i].size(); ++t) slopes[i][t] = static_cast<float>(-a / tokens);
    }
    const auto step = trainer->step(
        rows,
        [&](int64_t row, std::span<const float>, std::span<float> to, double&) -> Status {
            std::ranges::copy(slopes[static_cast<size_t>(row)], to.begin());
            return Ok{};
        },
        config.optimizer.learning_rate);
    ASSERT_TRUE(step.ok()) << step.error().message();
    EXPECT_NEAR(step->gradient_norm, run.steps[0].update.gradient_norm, 1e-5 * step->gradient_norm);
    const std::vector<float> by_hand = all_masters(trainer->parameters());
    const std::vector<float> before = all_masters(*small_parameters(pool, DType::bf16));
    double apart = 0, moved = 0;
    for (size_t i = 0; i < by_hand.size(); ++i) {
        apart += std::abs(double{by_hand[i]} - run.masters[i]);
        moved += std::abs(double{by_hand[i]} - before[i]);
    }
    EXPECT_GT(moved, 0);
    EXPECT_LT(apart, 1e-3 * moved);
}

TEST(PolicyLoop, ABanditFindsItsBestArms) {
    ThreadPool pool(2);
    RlConfig config = small_config();
    config.prompts = 2, config.generations = 16;
    config.generation.most_tokens = 1;
    config.optimizer.learning_rate = 1e-2;
    const auto trainer = small_trainer(pool, trainer_options(config, TrainRecipe::bf16));
    // Arms are tokens. Every fourth one pays 1, which is the best possible mean reward.
    TokenTask task([](const RolloutPrompt&, const Rollout& r) { return r.tokens[0] % 4 / 3.0; });
    const auto policy = PolicyTrainer::create(config, *trainer, task, {});
    ASSERT_TRUE(policy.ok()) << policy.error().message();
    double first = 0, last = 0;
    for (int s = 0; s < 40; ++s) {
        const auto step = (*policy)->step(s);
        ASSERT_TRUE(step.ok()) << step.error().message();
        EXPECT_EQ(step->metrics.mismatch_tokens, 0);
        if (s < 3) first += step->reward / 3;
        if (s >= 37) last += step->reward / 3;
    }
    EXPECT_LT(first, 0.8);
    EXPECT_GT(last, 0.95);
}

TEST(PolicyLoop, TheGradientNormIsNotThatOfTheLastUpdateAlone) {
    ThreadPool pool(2);
    RlConfig config = small_config();
    config.train_batch = 4;  // one prompt per update; only the middle one has different rewards
    config.loss.kl_penalty = 0;
    const auto trainer = small_trainer(pool, trainer_options(config, TrainRecipe::bf16));
    TokenTask task([](const RolloutPrompt& p, const Rollout& r) {
        return std::stoi(p.question) % 2 ? share_of_even_tokens(p, r) : std::optional(1.0);
    });
    const auto policy = PolicyTrainer::create(config, *trainer, task, {.end_tokens = {3}});
    ASSERT_TRUE(policy.ok());
    const auto step = (*policy)->step(0);
    ASSERT_TRUE(step.ok()) << step.error().message();
    EXPECT_EQ(step->updates, 3);
    EXPECT_EQ(step->equal_groups, 2);
    EXPECT_GT(step->update.gradient_norm, 0);
}

TEST(PolicyLoop, SeveralUpdatesOfAStep) {
    RlConfig config = small_config();
    config.train_batch = 6;
    const SmallRun run = run_steps(config, 2, 2);
    for (const RlStep& s : run.steps) {
        EXPECT_EQ(s.updates, 2);
        EXPECT_EQ(s.metrics.mismatch_tokens, 0);
        EXPECT_EQ(s.metrics.tokens, s.generated_tokens);
        EXPECT_LT(s.metrics.probs_ratio_min, 1);  // from the second update
        EXPECT_GT(s.metrics.probs_ratio_max, 1);
    }
}

TEST(PolicyLoop, DynamicSamplingReplacesGroupsOfEqualRewards) {
    ThreadPool pool(2);
    RlConfig config = small_config();
    config.dynamic_sampling = true;
    const auto trainer = small_trainer(pool, trainer_options(config, TrainRecipe::bf16));
    const auto some = [](const RolloutPrompt& p, const Rollout& r) {
        return std::stoi(p.question) % 2 ? share_of_even_tokens(p, r) : std::optional(1.0);
    };
    TokenTask task(some);
    const auto policy = PolicyTrainer::create(config, *trainer, task, {.end_tokens = {3}});
    ASSERT_TRUE(policy.ok());
    const auto step = (*policy)->step(0);  // prompts 0 ... 5, of which 1, 3 and 5 count
    ASSERT_TRUE(step.ok()) << step.error().message();
    EXPECT_EQ(step->sampling_batches, 2);
    EXPECT_EQ(step->prompts, 3);
    EXPECT_EQ(step->equal_groups, 0);
    EXPECT_LT(step->reward, 1);
    EXPECT_EQ((*policy)->next_prompt(), 6u);

    config.most_batches = 3;
    TokenTask never([](const RolloutPrompt&, const Rollout&) { return 0.5; });
    const auto other = PolicyTrainer::create(config, *trainer, never, {});
    ASSERT_TRUE(other.ok());
    const auto failed = (*other)->step(0);
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(
        failed.error().message(),
        "grpo.dynamic_sampling_max_gen_batches: after 3 batches 0 of 3 prompts have answers of different rewards");

    // Rewards differ only until they are clamped.
    config.scaling = RewardScaling{.source_min = 0, .source_max = 1};
    TokenTask above([](const RolloutPrompt& prompt, const Rollout& r) -> std::optional<double> {
        return 2 + share_of_even_tokens(prompt, r).value_or(0);
    });
    const auto clamped = PolicyTrainer::create(config, *trainer, above, {});
    ASSERT_TRUE(clamped.ok());
    const auto none = (*clamped)->step(0);
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.error().message(), failed.error().message());
}

TEST(PolicyLoop, UnjudgedAndCutAnswersAreExcluded) {
    ThreadPool pool(2);
    RlConfig config = small_config();
    config.overlong_filtering = true;
    const auto trainer = small_trainer(pool, trainer_options(config, TrainRecipe::bf16));
    int64_t counted = 0, failed = 0;
    TokenTask task([&, calls = 0](const RolloutPrompt& p, const Rollout& r) mutable -> std::optional<double> {
        if (++calls % 3 == 0) return ++failed, std::nullopt;
        if (!r.cut) counted += std::ssize(r.tokens);
        return share_of_even_tokens(p, r);
    });
    const auto policy = PolicyTrainer::create(config, *trainer, task, {.end_tokens = {3, 5, 8, 12, 30}});
    ASSERT_TRUE(policy.ok());
    const auto step = (*policy)->step(0);
    ASSERT_TRUE(step.ok()) << step.error().message();
    EXPECT_EQ(step->failures, failed);
    EXPECT_EQ(failed, 4);
    EXPECT_GT(counted, 0);
    EXPECT_EQ(step->metrics.tokens, counted);
    EXPECT_LT(counted, step->generated_tokens);
    const Json line = to_json(*step, std::nullopt, 1.0);
    EXPECT_EQ(line["failures"], 4);
    EXPECT_EQ(line["mismatch_tokens"], 0);

    TokenTask none([](const RolloutPrompt&, const Rollout&) { return std::optional<double>(); });
    const auto other = PolicyTrainer::create(config, *trainer, none, {});
    ASSERT_TRUE(other.ok());
    const auto error = (*other)->step(7);
    ASSERT_FALSE(error.ok());
    EXPECT_EQ(error.error().message(), "step 7: none of the 12 answers could be judged: not judged");
}

// Rewards that training cannot compute with are refused with their value and their sample, and nothing becomes NaN.
TEST(PolicyLoop, RewardsOutOfRangeCountNowhere) {
    ThreadPool pool(2);
    const double infinity = std::numeric_limits<double>::infinity();
    for (const double bad : {1e39, -1e39, 1e16, infinity, -infinity, std::nan("")}) {
        const auto trainer = small_trainer(pool, trainer_options(small_config(), TrainRecipe::bf16));
        TokenTask some([&, calls = 0](const RolloutPrompt& p, const Rollout& r) mutable -> std::optional<double> {
            return ++calls % 4 == 0 ? bad : share_of_even_tokens(p, r);
        });
        const auto policy = PolicyTrainer::create(small_config(), *trainer, some, {});
        ASSERT_TRUE(policy.ok());
        const auto step = (*policy)->step(0);
        ASSERT_TRUE(step.ok()) << step.error().message();
        EXPECT_EQ(step->failures, 3) << bad;
        ASSERT_FALSE(step->failure_reasons.empty());
        const std::string& why = step->failure_reasons[0];
        EXPECT_NE(why.find(fmt::format("the reward {} is not in [-1e+15, 1e+15]", bad)), std::string::npos) << why;
        EXPECT_TRUE(why.starts_with("prompt ")) << why;
        EXPECT_TRUE(std::isfinite(step->metrics.loss) && std::isfinite(step->reward)) << bad;

        TokenTask all([&](const RolloutPrompt&, const Rollout&) { return std::optional(bad); });
        const auto other = PolicyTrainer::create(small_config(), *trainer, all, {});
        ASSERT_TRUE(other.ok());
        EXPECT_NE((*other)->step(1).error().message().find("the reward"), std::string::npos);
    }
}

// The state includes scales of inputs, computed from the first prompts and from earlier updates.
TEST(PolicyLoop, ResumingFromAStateGivesTheSameBits) {
    for (const char* recipe : {"bf16", "nvfp4_w4a4"}) {
        SCOPED_TRACE(recipe);
        RlConfig config = small_config();
        if (recipe != std::string_view("bf16")) config.train_batch = 6;
        const TrainPrecision precision = *train_precision_from_name(recipe);
        const SmallRun whole = run_steps(config, 4, 2, precision);
        TempDir dir;
        const auto file = dir / "state.safetensors";
        ThreadPool pool(2);
        TokenTask task(share_of_even_tokens);
        Json place;
        for (const int begin : {0, 2}) {
            const auto trainer = small_trainer(pool, {.precision = precision, .optimizer = config.optimizer});
            const auto policy = PolicyTrainer::create(config, *trainer, task, {.end_tokens = {3}});
            ASSERT_TRUE(policy.ok());
            if (begin > 0) {
                ASSERT_TRUE(read_state(file, {"same"}, *trainer).ok());
                ASSERT_TRUE((*policy)->set_place(place).ok());
            }
            for (int s = begin; s < begin + 2; ++s) {
                const auto step = (*policy)->step(s);
                ASSERT_TRUE(step.ok()) << step.error().message();
                EXPECT_EQ(step->metrics.mismatch_tokens, 0);
            }
            place = (*policy)->place();
            ASSERT_TRUE(write_state(file, *copy_state(*trainer, {.step = begin + 2, .identity = "same"})).ok());
            if (begin > 0) {
                EXPECT_EQ(all_masters(trainer->parameters()), whole.masters);
            }
        }
        EXPECT_EQ(place, (Json{{"prompt", 12}}));
    }
}

TEST(PolicyLoop, ErrorsNameWhatIsMissing) {
    ThreadPool pool(1);
    RlConfig config = small_config();
    const auto trainer = small_trainer(pool, trainer_options(config, TrainRecipe::bf16));
    TokenTask task(share_of_even_tokens);
    config.loss.kl_penalty = 0.01;
    const auto without = PolicyTrainer::create(config, *trainer, task, {});
    ASSERT_FALSE(without.ok());
    EXPECT_EQ(without.error().message(), "loss_fn.reference_policy_kl_penalty 0.01: there is no reference policy");
}

}  // namespace
}  // namespace nibble::test
