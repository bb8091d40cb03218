// Tests an FP8 KV cache on both sides: training reads K and V as the engine's pages store them, under scales that are
// constant during a step. Also tests rollouts in another precision than the updates.
#include "rl/frozen_policy.h"
#include "rl/generation_policy.h"
#include "rl/policy_trainer.h"
#include "rl/rl_log.h"
#include "rl/token_task.h"
#include "train/check_forward.h"
#include "train/small_trainer.h"

#include <nlohmann/json.hpp>

#include <cmath>

namespace nibble::test {
namespace {

RlConfig cache_config() {
    RlConfig c{.prompts = 3, .generations = 4, .steps = 10, .length = 128};
    c.optimizer.learning_rate = 3e-3;
    c.loss.kl_penalty = 0;
    c.generation.most_tokens = 75;  // more than a page of 64 positions
    c.optimizer.weight_decay = 0;
    return c;
}

constexpr TrainCache fp8_cache{.format = KvFormat::fp8};
constexpr TrainCache fp8_queries{.format = KvFormat::fp8, .queries = true};

struct CachedRun {
    std::vector<RlStep> steps;
    std::vector<float> masters, scales;
};

// `before_step` may change the trainer's state.
CachedRun run_cached(const RlConfig& config, int count, const TrainPrecision& precision, const TrainCache& cache,
                     const std::function<void(Trainer&, int)>& before_step = {}) {
    ThreadPool pool(2);
    const auto trainer = small_trainer(pool, {.precision = precision, .optimizer = config.optimizer, .cache = cache});
    TokenTask task(share_of_even_tokens);
    PolicyTrainerOptions options{.end_tokens = {3}};
    if (config.loss.kl_penalty > 0) {
        auto reference = FrozenPolicy::create(*small_checkpoint(), precision, "", pool, 1, cache);
        EXPECT_TRUE(reference.ok()) << reference.error().message();
        options.reference = *std::move(reference);
    }
    const auto policy = PolicyTrainer::create(config, *trainer, task, options);
    EXPECT_TRUE(policy.ok()) << policy.error().message();
    CachedRun run;
    for (int s = 0; s < count; ++s) {
        if (before_step) before_step(*trainer, s);
        auto step = (*policy)->step(s);
        EXPECT_TRUE(step.ok()) << step.error().message();
        if (!step.ok()) break;
        run.steps.push_back(*std::move(step));
    }
    run.masters = all_masters(trainer->parameters());
    if (trainer->cache_scales()) run.scales = trainer->cache_scales()->state();
    return run;
}

TEST(CachedPolicy, NoBitDiffersWithAnFp8Cache) {
    const TrainPrecision precisions[] = {{.recipe = TrainRecipe::bf16},
                                         {.recipe = TrainRecipe::fp8_block},
                                         {.recipe = TrainRecipe::nvfp4, .row_scaled = true},
                                         {.recipe = TrainRecipe::nvfp4, .weights_only = true},
                                         {.recipe = TrainRecipe::nvfp4, .stored_inputs = true}};
    const TrainCache caches[] = {fp8_cache, {.format = KvFormat::fp8_page}, fp8_queries};
    for (const TrainPrecision& precision : precisions)
        for (const TrainCache& cache : caches)
            for (const int64_t train_batch : {0, 6}) {
                SCOPED_TRACE(fmt::format("{}, {}, {}, {}", train_precision_json(precision).dump(),
                                         kv_name(cache.format), cache.queries, train_batch));
                RlConfig config = cache_config();
                config.loss.kl_penalty = 0.01;
                config.train_batch = train_batch;
                const CachedRun run = run_cached(config, 3, precision, cache);
                ASSERT_EQ(run.steps.size(), 3u);
                int64_t longest = 0;
                for (const RlStep& step : run.steps) {
                    EXPECT_GT(step.metrics.tokens, 100);
                    EXPECT_EQ(step.metrics.mismatch_tokens, 0) << "step " << step.step;
                    EXPECT_EQ(step.metrics.max_abs_diff, 0);
                    longest = std::max(longest, step.longest);
                    EXPECT_GT(step.update.gradient_norm, 0);
                    EXPECT_EQ(step.cache.has_value(), cache.format == KvFormat::fp8);
                }
                EXPECT_GT(longest, 64);  // more than a page
                // The reference computes its scales from the same prompts, so before an update it equals the policy.
                if (train_batch == 0) {
                    EXPECT_EQ(run.steps[0].metrics.kl_penalty, 0);
                }
                if (cache.format == KvFormat::fp8) {
                    EXPECT_GT(run.steps[2].cache->values, 1000);
                    EXPECT_TRUE(to_json(run.steps[2], {}, 1).contains("kv_clipped"));
                    EXPECT_EQ(run.steps[2].cache->q_values > 1000, cache.queries);
                    EXPECT_EQ(to_json(run.steps[2], {}, 1).contains("q_clipped"), cache.queries);
                }
            }
}

// The cache rounds K and V, and queries are rounded: the weights differ from those without a cache.
TEST(CachedPolicy, TheCacheIsNotThatOf16Bits) {
    const CachedRun fp8 = run_cached(cache_config(), 2, {}, fp8_cache), plain = run_cached(cache_config(), 2, {}, {}),
                    queries = run_cached(cache_config(), 2, {}, fp8_queries);
    EXPECT_NE(fp8.masters, plain.masters);
    EXPECT_NE(queries.masters, fp8.masters);
    EXPECT_FALSE(fp8.scales.empty());
    EXPECT_EQ(2 * queries.scales.size(), 3 * fp8.scales.size());
    for (const CachedRun& run : {fp8, queries})
        for (const float s : run.scales) EXPECT_GT(s, 0);
}

// A scale that changes between the rollouts and the training of a step is detected.
TEST(CachedPolicy, OneChangedScaleIsDetected) {
    ThreadPool pool(2);
    const auto trainer = small_trainer(pool, {.cache = fp8_queries});
    const auto other = small_trainer(pool, {.cache = fp8_queries});
    const TrainBatch batch = random_batch(3, 80, 40, 5);
    ASSERT_TRUE(trainer->calibrate({&batch, 1}).ok());
    const auto state = trainer->cache_scales()->state();
    ASSERT_TRUE(other->cache_scales()->set_state(state).ok());
    ASSERT_TRUE(other->renew().ok());
    const auto same = check_forward(*trainer, batch, other->model());
    ASSERT_TRUE(same.ok()) << same.error().message();
    EXPECT_EQ(same->mismatches(), 0);
    for (const size_t side : {0, 1, 2}) {  // K, V and Q of the first block
        auto nudged = state;
        nudged[side] *= 1.01f;
        ASSERT_TRUE(other->cache_scales()->set_state(nudged).ok());
        ASSERT_TRUE(other->renew().ok());
        const auto apart = check_forward(*trainer, batch, other->model());
        ASSERT_TRUE(apart.ok()) << apart.error().message();
        for (const ForwardWay& way : apart->ways) EXPECT_GT(way.mismatches, 0) << way.name << ", " << side;
    }
}

// A restored state has the scales that the next step would have used.
TEST(CachedPolicy, ScalesBelongToTheState) {
    ThreadPool pool(2);
    const auto trainer = small_trainer(pool, {.cache = fp8_cache});
    const TrainBatch batch = random_batch(3, 40, 40, 5);
    ASSERT_TRUE(trainer->calibrate({&batch, 1}).ok());
    const auto state = trainer->state();
    ASSERT_TRUE(state.ok());
    EXPECT_EQ(state->recipe, trainer->cache_scales()->state());
    EXPECT_EQ(std::ssize(state->recipe), trainer->recipe_size());
    EXPECT_FALSE(trainer->cache_scales()->set_state(std::vector<float>(state->recipe.size())).ok());
    EXPECT_FALSE(trainer->cache_scales()->set_state(std::vector<float>(1, 1.0f)).ok());
    std::vector<float> broken = state->recipe;
    broken[0] = -1;
    EXPECT_FALSE(trainer->cache_scales()->set_state(broken).ok());
    EXPECT_EQ(trainer->cache_scales()->state(), state->recipe);
}

// Compares maxima of rows with known numbers: the largest one, and NeMo RL's rule.
TEST(CachedPolicy, ScalesByHand) {
    ThreadPool pool(1);
    for (const double percentile : {100.0, 50.0}) {
        const auto trainer = small_trainer(
            pool, {.cache = {.format = KvFormat::fp8, .calibration = {.percentile = percentile, .margin = 1.05}}});
        CacheScales& scales = *trainer->cache_scales();
        const std::string prefix = scales.blocks()[0].prefix;
        for (const float most : {3.0f, -8.0f, 5.0f}) {
            scales.begin_row();
            const float k[] = {1, most, -2}, v[] = {0.5f, 2 * most, 1};
            ASSERT_TRUE(scales.kv(prefix, k, v, 1, 3, 3).ok());
        }
        scales.renew();
        const float k = percentile == 100 ? 8 : 5;
        EXPECT_EQ(scales.blocks()[0].k, k * 1.05f / 448);
        EXPECT_EQ(scales.blocks()[0].v, 2 * k * 1.05f / 448);
        EXPECT_EQ(scales.blocks()[1].k, 1);  // saw no values
        EXPECT_EQ(scales.last_use().values, 18);
        EXPECT_EQ(scales.last_use().clipped, 0);
        const float far[] = {k * 1.04f, k * 1.06f, -k * 1.06f}, none[] = {0, 0, 0};
        scales.begin_row();
        ASSERT_TRUE(scales.kv(prefix, far, none, 1, 3, 3).ok());
        scales.renew();
        EXPECT_EQ(scales.last_use().clipped, 2);
        EXPECT_FALSE(scales.kv("no.such.block", far, none, 1, 3, 3).ok());
    }
}

double length(std::span<const float> x) {
    double sum = 0;
    for (const float v : x) sum += double{v} * v;
    return std::sqrt(sum);
}

// Gradients pass unchanged through the rounding of queries, but not through clipped values.
TEST(CachedPolicy, GradientsThroughRoundedQueries) {
    ThreadPool pool(2);
    const auto rounded = small_trainer(pool, {.cache = fp8_queries}), plain = small_trainer(pool, {.cache = fp8_cache});
    const TrainBatch batch = random_batch(3, 80, 40, 5);
    for (Trainer* t : {rounded.get(), plain.get()}) {
        ASSERT_TRUE(t->calibrate({&batch, 1}).ok());
        ASSERT_TRUE(t->backward({&batch, 1}).ok());
    }
    const Parameters& parameters = rounded->parameters();
    for (size_t id = 0; id < parameters.count(); ++id) {
        const auto got = rounded->gradients().gradient(id), want = plain->gradients().gradient(id);
        ASSERT_EQ(got.size(), want.size());
        if (want.empty()) continue;
        double both = 0;
        for (size_t i = 0; i < got.size(); ++i) both += double{got[i]} * want[i];
        EXPECT_GT(both / (length(got) * length(want)), 0.98) << parameters.tensors()[id].name;
    }
    auto state = rounded->cache_scales()->state();
    state[2] *= 1e-6f;
    ASSERT_TRUE(rounded->set_cache_scales(state).ok());
    ASSERT_TRUE(rounded->backward({&batch, 1}).ok());
    const size_t of_q = *parameters.id(rounded->cache_scales()->blocks()[0].prefix + ".q_proj.weight");
    EXPECT_LT(length(rounded->gradients().gradient(of_q)), 1e-6 * length(plain->gradients().gradient(of_q)));
    EXPECT_GT(length(rounded->gradients().gradient(of_q + 1)), 0);
}

TEST(CachedPolicy, ScalesOfQueriesByHand) {
    ThreadPool pool(1);
    const auto trainer = small_trainer(pool, {.cache = fp8_queries});
    CacheScales& scales = *trainer->cache_scales();
    const std::string prefix = scales.blocks()[0].prefix;
    const float none[] = {0, 0}, q[] = {3, -7, 99, 2, 5, 99};  // two rows of two, with a stride of three
    const auto see = [&](float times) {
        std::vector<float> rows;
        for (const float x : q) rows.push_back(times * x);
        scales.begin_row();
        EXPECT_TRUE(scales.kv(prefix, none, none, 1, 2, 2).ok());
        EXPECT_TRUE(scales.queries(prefix, rows.data(), 2, 2, 3).ok());
        scales.renew();
    };
    see(1);
    EXPECT_EQ(scales.blocks()[0].q, 7 * 1.05f / 448);
    EXPECT_EQ(scales.blocks()[0].k, 1);
    see(1.5f);  // 10.5 and 7.5 are above 7.35
    EXPECT_EQ(scales.last_use().q_values, 4);
    EXPECT_EQ(scales.last_use().q_clipped, 2);
    EXPECT_EQ(scales.last_use().clipped, 0);
    EXPECT_EQ(scales.blocks()[0].q, 10.5f * 1.05f / 448);
    EXPECT_FALSE(scales.queries("no.such.block", none, 1, 2, 2).ok());
    EXPECT_EQ(check(TrainCache{.queries = true}).error().message(),
              "FP8 queries need an fp8 KV cache; this one is none");
}

// Rollouts in FP8 or NVFP4 with updates in BF16: differences are counted, and the generator follows the updates.
TEST(CachedPolicy, MismatchesOfGenerationInAnotherPrecisionAreCounted) {
    for (const KvFormat format : {KvFormat::none, KvFormat::fp8}) {
        ThreadPool pool(2);
        const RlConfig config = cache_config();
        const TrainCache cache{.format = format, .mirrored = false};
        const auto parameters = small_parameters(pool, DType::bf16);
        auto trainer = Trainer::create(parameters, {.optimizer = config.optimizer, .cache = cache}, pool);
        ASSERT_TRUE(trainer.ok()) << trainer.error().message();
        for (const TrainRecipe recipe : {TrainRecipe::bf16, TrainRecipe::fp8_block}) {
            const auto generator = GenerationPolicy::create(parameters, **trainer, {.recipe = recipe}, cache, "", pool);
            ASSERT_TRUE(generator.ok()) << generator.error().message();
            TokenTask task(share_of_even_tokens);
            PolicyTrainerOptions options{.end_tokens = {3}};
            options.generator = (*generator)->model();
            options.renew_generator = [&] { return (*generator)->renew(); };
            const auto policy = PolicyTrainer::create(config, **trainer, task, options);
            ASSERT_TRUE(policy.ok()) << policy.error().message();
            const bool equal = recipe == TrainRecipe::bf16 && format == KvFormat::none;
            for (int s = 0; s < 2; ++s) {
                const auto step = (*policy)->step(s);
                ASSERT_TRUE(step.ok()) << step.error().message();
                EXPECT_EQ(step->metrics.mismatch_tokens == 0, equal) << "step " << s;
                // Measured: 1.10 and 1.05.
                const double error = step->metrics.token_mult_prob_error / static_cast<double>(step->metrics.tokens);
                EXPECT_LT(error, recipe == TrainRecipe::bf16 ? 1.1 : 1.2) << "step " << s;
            }
        }
    }
}

TEST(CacheLoop, SecondsOfHandOverAndRecalibrationAreParts) {
    RlShares shares;
    EXPECT_EQ(shares.text(), "");
    for (const auto& [cache, recalibrates] : {std::pair(TrainCache{}, false), std::pair(fp8_cache, true)}) {
        for (const RlStep& step : run_cached(cache_config(), 2, {}, cache).steps) {
            EXPECT_GT(step.handover_seconds, 0);
            EXPECT_EQ(step.recalibrate_seconds > 0, recalibrates);
            EXPECT_LT(step.handover_seconds + step.recalibrate_seconds, step.train_seconds);
            const Json line = to_json(step, std::nullopt, 1);
            EXPECT_EQ(line["handover_seconds"], step.handover_seconds);
            EXPECT_EQ(line["recalibrate_seconds"], step.recalibrate_seconds);
        }
    }
    RlStep step;
    step.handover_seconds = 0.02, step.recalibrate_seconds = 0.005;
    shares.add(step, 1.5), shares.add(step, 2.5);
    EXPECT_EQ(shares.text(),
              "2 steps of 2.000 s: 1.00 % for handing weights to rollouts, 0.25 % for scales of the cache");
}

}  // namespace
}  // namespace nibble::test
