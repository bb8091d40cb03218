// Tests reinforcement learning with several ranks: rollouts, rewards, metrics, weights and positions have the bits of
// one process. Ranks are threads here; tests/oracles/rl_ranks.py tests processes.
#include "rl/rl_ranks.h"

#include "rl/frozen_policy.h"
#include "rl/generation_policy.h"
#include "rl/policy_trainer.h"
#include "rl/rl_log.h"
#include "rl/token_task.h"
#include "train/rank_threads.h"
#include "train/small_trainer.h"

#include <nlohmann/json.hpp>

#include <bit>
#include <random>

namespace nibble::test {
namespace {

// Answers that end with an odd token continue for another turn; some cannot be judged.
class TurnTokenTask : public TokenTask {
public:
    explicit TurnTokenTask(bool fails) : TokenTask(share_of_even_tokens), fails_(fails) {}
    Status judge(const std::vector<RolloutPrompt>& prompts, std::span<Rollout* const> rollouts) override {
        NIBBLE_CHECK(TokenTask::judge(prompts, rollouts));
        for (Rollout* r : rollouts) {
            if (fails_ && r->tokens.size() % 3 == 1) r->reward.reset(), r->failure = "a third fails";
            if (r->tokens.back() % 2 == 0) continue;
            r->observation = {7, r->tokens.back(), 9};
            r->state = {{"turn", r->turns}, {"text", "\"\n\u00e4"}};
        }
        return Ok{};
    }

private:
    bool fails_;
};

struct RlRanksCase {
    std::string name;
    RlConfig config;
    TrainPrecision precision;
    int64_t row_tokens = 0;
    bool even_rows = false;
    std::optional<TrainPrecision> generation;
    bool turns = false, fails = false;
};

RlConfig ranks_config() {
    RlConfig c{.prompts = 4, .generations = 3, .steps = 10, .length = 128};
    c.optimizer.learning_rate = 3e-3;
    c.loss.kl_penalty = 0;
    c.generation.most_tokens = 30;
    c.validation_prompts = 5, c.validation_answers = 2;
    return c;
}

RlRanksCase with(std::string name, const std::function<void(RlRanksCase&)>& change) {
    RlRanksCase c{.name = std::move(name), .config = ranks_config()};
    change(c);
    return c;
}

struct RlRanksSeen {
    std::vector<std::string> lines;  // log (without times and rank statistics), samples, validation, positions
    std::vector<float> masters, scales;
    std::vector<RlStep> steps;
};

Status run_rank(const RlRanksCase& c, RankGroup* group, RlRanksSeen& seen) {
    ThreadPool pool(1);
    const TrainerOptions options{.precision = c.precision,
                                 .optimizer = c.config.optimizer,
                                 .sampling = c.config.generation.sampling(),
                                 .cache = c.config.generation.cache,
                                 .ranks = group};
    const auto parameters = small_parameters(pool, DType::bf16);
    NIBBLE_TRY(const auto trainer, Trainer::create(parameters, options, pool));
    std::unique_ptr<RolloutTask> task = std::make_unique<TokenTask>(share_of_even_tokens);
    if (c.turns) task = std::make_unique<TurnTokenTask>(c.fails);
    PolicyTrainerOptions policy_options{
        .end_tokens = {3, 30}, .ranks = group, .row_tokens = c.row_tokens, .even_rows = c.even_rows};
    if (c.config.loss.kl_penalty > 0) {
        NIBBLE_TRY(policy_options.reference, FrozenPolicy::create(*small_checkpoint(), c.precision, "", pool,
                                                                  static_cast<float>(c.config.generation.temperature),
                                                                  c.config.generation.cache, group));
    }
    std::shared_ptr<GenerationPolicy> generator;
    if (c.generation) {
        NIBBLE_TRY(generator,
                   GenerationPolicy::create(parameters, *trainer, *c.generation, c.config.generation.cache, "", pool));
        policy_options.generator = generator->model();
        policy_options.renew_generator = [&] { return generator->renew(); };
    }
    NIBBLE_TRY(const auto policy, PolicyTrainer::create(c.config, *trainer, *task, policy_options));
    for (int s = 0; s < 3; ++s) {
        NIBBLE_TRY(RlStep step, policy->step(s));
        Json line = to_json(step, std::nullopt, 0);
        for (const char* key :
             {"generate_seconds", "reward_seconds", "train_seconds", "handover_seconds", "recalibrate_seconds"})
            EXPECT_EQ(line.erase(key), 1u);
        for (const char* key :
             {"rank_tokens", "rank_seconds", "rank_tokens_most_to_median", "rank_seconds_most_to_median"})
            EXPECT_EQ(line.erase(key), group ? 1u : 0u);
        seen.lines.push_back(line.dump());
        seen.lines.push_back(samples_text(s, step.samples, std::nullopt));
        seen.lines.push_back(policy->place().dump());
        seen.steps.push_back(std::move(step));
        NIBBLE_TRY(const RlValidation v, policy->validate());
        seen.lines.push_back(fmt::format("{} {} {} {} {}", v.reward, v.prompts, v.avg_at_k, v.pass_at_k, v.cons_at_k));
        NIBBLE_CHECK(trainer->sync());
    }
    seen.masters = all_masters(trainer->parameters());
    if (const CacheScales* cache = trainer->cache_scales()) seen.scales = cache->state();
    return Ok{};
}

std::vector<RlRanksCase> all_cases() {
    return {
        with("bf16, KL, two updates",
             [](RlRanksCase& c) { c.config.loss.kl_penalty = 0.01, c.config.train_batch = 6; }),
        with("fp8_block, packed rows",
             [](RlRanksCase& c) { c.precision.recipe = TrainRecipe::fp8_block, c.row_tokens = 100; }),
        with("even rows", [](RlRanksCase& c) { c.row_tokens = 128, c.even_rows = true; }),
        with("nvfp4 by row, FP8 cache and queries, two updates",
             [](RlRanksCase& c) {
                 c.precision = {.recipe = TrainRecipe::nvfp4, .row_scaled = true};
                 c.config.generation.cache = {.format = KvFormat::fp8, .queries = true};
                 c.config.train_batch = 6;
             }),
        with("nvfp4_w4a4, FP8 cache, KL, two updates",
             [](RlRanksCase& c) {
                 c.precision = {.recipe = TrainRecipe::nvfp4, .stored_inputs = true};
                 c.config.generation.cache = {.format = KvFormat::fp8};
                 c.config.loss.kl_penalty = 0.01, c.config.train_batch = 6;
             }),
        with("FP8 cache by a percentile, KL",
             [](RlRanksCase& c) {
                 c.config.generation.cache = {.format = KvFormat::fp8, .calibration = {.percentile = 80}};
                 c.config.loss.kl_penalty = 0.01;
             }),
        with("FP8 pages", [](RlRanksCase& c) { c.config.generation.cache = {.format = KvFormat::fp8_page}; }),
        with("temperature and top-p",
             [](RlRanksCase& c) { c.config.generation.temperature = 0.7, c.config.generation.top_p = 0.9; }),
        with("dynamic sampling",
             [](RlRanksCase& c) { c.config.dynamic_sampling = true, c.config.generation.most_tokens = 2; }),
        with("rollouts that outlive a step",
             [](RlRanksCase& c) {
                 c.config.loss.importance_sampling_correction = true;
                 c.config.async = RlAsync{.most_age = 2, .prompts_in_flight = 7, .round_tokens = 4};
             }),
        with("turns, some of which fail",
             [](RlRanksCase& c) { c.turns = c.fails = true, c.config.most_turns = 4, c.config.generations = 4; }),
        with("turns that outlive a step",
             [](RlRanksCase& c) {
                 c.turns = true, c.config.most_turns = 3;
                 c.config.loss.importance_sampling_correction = true;
                 c.config.async = RlAsync{.most_age = 3, .prompts_in_flight = 6, .round_tokens = 7};
             }),
        with("rollouts of another precision",
             [](RlRanksCase& c) {
                 c.generation = TrainPrecision{.recipe = TrainRecipe::fp8_block};
                 c.config.generation.cache.mirrored = false;
             }),
    };
}

TEST(RlRanks, AnyNumberGivesTheBitsOfOne) {
    for (const RlRanksCase& c : all_cases()) {
        SCOPED_TRACE(c.name);
        RlRanksSeen want;
        ASSERT_EQ(run_ranks(1, [&](RankGroup* g, int) { return run_rank(c, g, want); })[0], "");
        ASSERT_EQ(want.steps.size(), 3u);
        EXPECT_GT(want.steps[2].update.gradient_norm, 0);
        for (const RlStep& s : want.steps) EXPECT_EQ(s.metrics.mismatch_tokens > 0, c.generation.has_value());
        for (const int size : {2, 3}) {
            std::vector<RlRanksSeen> all(static_cast<size_t>(size));
            const auto errors = run_ranks(size, [&](RankGroup* g, int rank) { return run_rank(c, g, all[rank]); });
            for (int r = 0; r < size; ++r) {
                ASSERT_EQ(errors[r], "") << "rank " << r << " of " << size;
                EXPECT_EQ(all[r].lines, want.lines) << "rank " << r << " of " << size;
                EXPECT_EQ(all[r].masters, want.masters) << "rank " << r << " of " << size;
                EXPECT_EQ(all[r].scales, want.scales);
                // All ranks have generated, and together they have the tokens of the step.
                for (const RlStep& s : all[r].steps) {
                    ASSERT_EQ(std::ssize(s.ranks), size);
                    int64_t tokens = 0;
                    for (const RankWork& w : s.ranks) tokens += w.tokens;
                    if (!c.config.async) {
                        EXPECT_EQ(tokens, s.generated_tokens);
                    }
                    for (const RankWork& w : s.ranks) EXPECT_TRUE(w.tokens > 0 || s.step > 0);
                }
            }
        }
    }
}

// Negative control: a difference in one rank appears in all of them.
TEST(RlRanks, ChangedAnswersOfARankAreDetected) {
    const RlRanksCase c = all_cases()[0];
    RlRanksSeen want;
    ASSERT_EQ(run_ranks(1, [&](RankGroup* g, int) { return run_rank(c, g, want); })[0], "");
    std::vector<RlRanksSeen> all(2);
    const auto errors = run_ranks(2, [&](RankGroup* g, int rank) {
        RlRanksCase own = c;
        own.config.seed += static_cast<uint64_t>(rank);
        return run_rank(own, g, all[rank]);
    });
    for (int r = 0; r < 2; ++r) {
        ASSERT_EQ(errors[r], "");
        EXPECT_NE(all[r].masters, want.masters);
        EXPECT_NE(all[r].lines, want.lines);
    }
    EXPECT_EQ(all[0].masters, all[1].masters);
}

TEST(RlRanks, ARankThatEndsOrStopsEndsTheOthers) {
    const RlRanksCase c = all_cases()[0];
    const auto step_of = [&](RankGroup* group, int rank, bool ends, bool stops, RlStep& step) -> Status {
        ThreadPool pool(1);
        RlConfig config = c.config;
        config.loss.kl_penalty = 0;
        const auto trainer = small_trainer(pool, {.optimizer = config.optimizer, .ranks = group});
        std::atomic<bool> stop = false;
        TokenTask task([&](const RolloutPrompt& p, const Rollout& r) {
            if (rank == 1) stop = stops;
            return share_of_even_tokens(p, r);
        });
        config.most_turns = 1;
        config.dynamic_sampling = stops, config.generation.most_tokens = stops ? 1 : 30;
        NIBBLE_TRY(const auto policy,
                   PolicyTrainer::create(config, *trainer, task, {.ranks = group, .stop_requested = &stop}));
        if (ends && rank == 1) return Ok{};
        NIBBLE_TRY(step, policy->step(0));
        return Ok{};
    };
    for (const int size : {2, 3}) {
        std::vector<RlStep> steps(static_cast<size_t>(size));
        const auto errors =
            run_ranks(size, [&](RankGroup* g, int rank) { return step_of(g, rank, true, false, steps[size_t(rank)]); });
        for (int r = 0; r < size; ++r) {
            if (r != 1) {
                EXPECT_NE(errors[r].find(" has ended"), std::string::npos) << errors[r];
            }
        }
    }
    // Equal rewards require a second batch of prompts, in which rank 1 gets a stop request; then all ranks stop.
    for (const int size : {2, 3}) {
        std::vector<RlStep> steps(static_cast<size_t>(size));
        const auto errors =
            run_ranks(size, [&](RankGroup* g, int rank) { return step_of(g, rank, false, true, steps[size_t(rank)]); });
        for (int r = 0; r < size; ++r) {
            EXPECT_EQ(errors[r], "");
            EXPECT_EQ(steps[r].stopped, steps[0].stopped);
        }
        EXPECT_TRUE(steps[0].stopped);
    }
}

TEST(RlRanks, WorkIsDividedBySize) {
    EXPECT_EQ(work_owners(std::vector<double>{1, 1, 1, 1}, 2), (std::vector<int>{0, 1, 0, 1}));
    EXPECT_EQ(work_owners(std::vector<double>{1, 5, 4, 2}, 2), (std::vector<int>{0, 0, 1, 1}));
    EXPECT_EQ(work_owners(std::vector<double>{3}, 3), (std::vector<int>{0}));
    EXPECT_EQ(work_owners(std::vector<double>{}, 2), std::vector<int>{});
    EXPECT_EQ(most_to_median({}), 0);
    EXPECT_EQ(most_to_median({4, 2}), 2);
    EXPECT_EQ(most_to_median({6, 1, 3}), 2);
    EXPECT_EQ(most_to_median({0, 0}), 0);
    // Lengths from 1 to 2,000, most of them short: no rank gets more than 4/3 of the mean.
    for (const int ranks : {2, 3, 8}) {
        std::vector<double> work, load(static_cast<size_t>(ranks));
        for (int i = 0; i < 64; ++i) work.push_back(2000.0 / (1 + i * 37 % 64));
        const std::vector<int> owner = work_owners(work, ranks);
        double all = 0, longest = 0;
        for (size_t i = 0; i < work.size(); ++i)
            load[size_t(owner[i])] += work[i], all += work[i], longest = std::max(longest, work[i]);
        EXPECT_LE(std::ranges::max(load), std::max(longest, 4.0 / 3 * all / ranks)) << ranks;
    }
    AnswerLengths lengths;
    const std::vector<int32_t> a{1, 2}, b{1, 3}, c{4};
    EXPECT_EQ(lengths.expected(a), 0);
    lengths.note(a, 10), lengths.note(b, 30);
    EXPECT_EQ(lengths.expected(a), 10);
    EXPECT_EQ(lengths.expected(c), 20);
    lengths.note(a, 50);
    EXPECT_EQ(lengths.expected(a), 50);
    EXPECT_EQ(lengths.expected(c), 30);
}

TEST(RlRanks, EvenRowsAreAPowerOfTwoAtMost) {
    for (uint32_t seed = 0; seed < 40; ++seed) {
        std::mt19937 random(seed);
        RolloutBatch batch;
        batch.prompts.push_back({.tokens = {1, 2, 3}});
        const size_t count = 1 + random() % 40;
        int64_t longest = 0;
        for (size_t i = 0; i < count; ++i) {
            Rollout r;
            r.tokens.assign(1 + random() % 60, 7);
            r.written.assign(r.tokens.size(), 1);
            longest = std::max(longest, std::ssize(r.tokens) + 2);
            batch.rollouts.push_back(r);
        }
        const auto rows = rollout_rows(batch, 0, count, 150);
        const int64_t limit = even_row_tokens(batch, 0, count, 150);
        const auto even = rollout_rows(batch, 0, count, limit);
        EXPECT_LE(std::ssize(rows), most_rollout_rows(static_cast<int64_t>(count), longest, 150));
        EXPECT_LE(limit, 150);
        EXPECT_GE(limit, std::min<int64_t>(longest, 150));
        EXPECT_LE(even.size(), std::bit_ceil(rows.size()));
        EXPECT_GE(even.size(), rows.size());
        if (limit > longest) {
            EXPECT_GT(rollout_rows(batch, 0, count, limit - 1).size(), std::bit_ceil(rows.size()));
        }
    }
}

TEST(RlRanks, ImpossibleConfigsAreReportedBeforeTheRun) {
    RlConfig config = ranks_config();
    const auto said = [&](int ranks, bool gpus) {
        const Status s = check_rl_ranks(config, ranks, gpus);
        return s.ok() ? "" : s.error().message();
    };
    EXPECT_EQ(said(1, false), "");
    EXPECT_EQ(said(4, false), "");
    EXPECT_EQ(said(3, false), "");
    EXPECT_EQ(said(4, true), "");
    EXPECT_EQ(said(5, false), "grpo.num_prompts_per_step 4: 5 ranks need at least as many prompts");
    EXPECT_EQ(said(3, true), "3 GPUs: the number must be a power of two to divide rows");
    config.generation.cache.format = KvFormat::fp8;
    EXPECT_EQ(said(2, false), "");
    EXPECT_EQ(said(2, true), "");
    config.generation.precision = TrainPrecision{.recipe = TrainRecipe::fp8_block};
    EXPECT_EQ(said(2, true), "");
    for (const TrainPrecision& p :
         {TrainPrecision{.recipe = TrainRecipe::fp8}, TrainPrecision{.recipe = TrainRecipe::nvfp4},
          TrainPrecision{.recipe = TrainRecipe::nvfp4, .first_bf16 = 1, .last_bf16 = 2}}) {
        config = ranks_config();
        config.precision = p;
        EXPECT_EQ(said(1, false), "");
        EXPECT_EQ(said(2, false), fmt::format("policy.precision {}: per-tensor scales; rollouts depend on the other "
                                              "answers of a batch, so 2 ranks would not give the bits of one",
                                              train_recipe_name(p.recipe)));
        config.generation.precision = TrainPrecision{.recipe = TrainRecipe::fp8_block};
        EXPECT_EQ(said(2, false), "");
        config.precision = {}, config.generation.precision = p;
        EXPECT_NE(said(2, false).find("policy.generation.precision"), std::string::npos);
    }
    for (const TrainPrecision& p :
         {TrainPrecision{.recipe = TrainRecipe::fp8_block}, TrainPrecision{.recipe = TrainRecipe::mxfp8},
          TrainPrecision{.recipe = TrainRecipe::nvfp4, .row_scaled = true},
          TrainPrecision{.recipe = TrainRecipe::nvfp4, .weights_only = true},
          TrainPrecision{.recipe = TrainRecipe::nvfp4, .stored_inputs = true}}) {
        config = ranks_config();
        config.precision = p;
        EXPECT_EQ(said(2, false), "") << train_recipe_name(p.recipe);
    }
    // The library gives the same error.
    const auto errors = run_ranks(2, [&](RankGroup* g, int) -> Status {
        ThreadPool pool(1);
        RlConfig c = ranks_config();
        c.loss.importance_sampling_correction = true;
        const auto trainer = small_trainer(pool, {.precision = {.recipe = TrainRecipe::fp8}, .ranks = g});
        TokenTask task(share_of_even_tokens);
        NIBBLE_TRY(const auto policy, PolicyTrainer::create(c, *trainer, task, {.ranks = g}));
        return Ok{};
    });
    for (const std::string& e : errors) EXPECT_NE(e.find("the bits of one"), std::string::npos) << e;
}

}  // namespace
}  // namespace nibble::test
