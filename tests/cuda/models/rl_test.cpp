// Tests reinforcement learning on a GPU: rollouts read the trainer's weights, and their log-probabilities have the bits
// of training.
#include "cuda/models/rl_loop.h"
#include "cuda/models/train_gradients.h"
#include "run/state.h"

#include <cmath>
#include <filesystem>

namespace nibble::test {
namespace {

TEST(CudaPolicyLoop, NoBitDiffersBetweenRolloutAndTraining) {
    for (const int64_t row_tokens : {0, 1024}) {
        for (const int64_t updates : {1, 2}) {
            RlConfig config = gpu_config();
            if (updates > 1) config.train_batch = config.prompts * config.generations / updates;
            const GpuRun one = run_on_gpu(config, 4, row_tokens), two = run_on_gpu(config, 4, row_tokens);
            ASSERT_EQ(one.steps.size(), 4u);
            ASSERT_EQ(two.steps.size(), 4u);
            for (size_t s = 0; s < 4; ++s) {
                const PolicyMetrics& m = one.steps[s].metrics;
                EXPECT_GT(m.tokens, 1000);
                EXPECT_EQ(m.mismatch_tokens, 0) << "step " << s << ", rows of " << row_tokens;
                EXPECT_EQ(m.max_abs_diff, 0);
                EXPECT_GT(one.steps[s].longest, 64);
                EXPECT_GT(one.steps[s].update.gradient_norm, 0);
                EXPECT_EQ(m.loss, two.steps[s].metrics.loss);
                EXPECT_EQ(one.steps[s].reward, two.steps[s].reward);
            }
            EXPECT_EQ(one.masters, two.masters);
        }
    }
}

// Includes choices of experts and Mamba-2 states.
TEST(CudaPolicyLoop, NoBitDiffersInOtherFamilies) {
    const TrainPrecision precisions[] = {{.recipe = TrainRecipe::bf16},
                                         {.recipe = TrainRecipe::fp8_block},
                                         {.recipe = TrainRecipe::mxfp8},
                                         {.recipe = TrainRecipe::nvfp4, .row_scaled = true},
                                         {.recipe = TrainRecipe::nvfp4, .square = false, .row_scaled = true},
                                         *train_precision_from_name("nvfp4_w4a16"),
                                         *train_precision_from_name("nvfp4_w4a4")};
    for (const Json& model : {rl_mixture(), rl_hybrid()})
        for (const TrainPrecision& precision : precisions) {
            const GpuRun run = run_on_gpu(gpu_config(), 3, 1024, {.model = model, .precision = precision});
            SCOPED_TRACE(model["model_type"].dump() + ", " + train_precision_json(precision).dump());
            ASSERT_EQ(run.steps.size(), 3u);
            for (const RlStep& s : run.steps) {
                EXPECT_GT(s.metrics.tokens, 1000);
                EXPECT_EQ(s.metrics.mismatch_tokens, 0) << "step " << s.step;
                EXPECT_GT(s.update.gradient_norm, 0);
            }
        }
}

// Computing with the initial weights leaves the current weights unchanged. Before the first update both give equal
// results.
TEST(CudaPolicyLoop, TheReferenceIsTheInitialPolicy) {
    ThreadPool pool;
    for (const TrainRecipe recipe : {TrainRecipe::bf16, TrainRecipe::fp8_block}) {
        auto parameters = random_start(rl_llama(), DType::bf16, 7, pool);
        ASSERT_TRUE(parameters.ok());
        DeviceTrainerOptions options{.device = rl_device(), .rows = 2, .seq = 96, .micro_batch = 1, .reference = true};
        options.train.precision.recipe = recipe;
        const auto trainer = DeviceTrainer::create(*parameters, options, pool);
        ASSERT_TRUE(trainer.ok()) << trainer.error().message();
        std::vector<TrainBatch> rows;
        for (int32_t r = 0; r < 2; ++r) {
            TrainBatch row{.rows = 1, .seq = 96};
            for (int32_t t = 0; t < 96; ++t) row.tokens.push_back((t * 37 + r * 11) % 1000);
            row.labels = row.tokens;
            row.documents = {0};
            rows.push_back(std::move(row));
        }
        using Numbers = std::vector<std::vector<float>>;
        const auto now = [&] {
            Numbers all(2, std::vector<float>(96));
            for (size_t r = 0; r < 2; ++r) EXPECT_TRUE((*trainer)->log_probs(rows[r], all[r]).ok());
            return all;
        };
        const auto reference = [&] {
            Numbers all(2);
            const std::array<const TrainBatch*, 2> asked{&rows[0], &rows[1]};
            const Status done = (*trainer)->reference_log_probs(asked, [&](size_t r, std::span<const float> of_row) {
                all[r].assign(of_row.begin(), of_row.end());
                return Status(Ok{});
            });
            EXPECT_TRUE(done.ok()) << done.error().message();
            return all;
        };
        const Numbers first = now();
        EXPECT_EQ(reference(), first);
        for (int step = 0; step < 3; ++step) {
            ASSERT_TRUE((*trainer)->step(rows, 1e-2).ok());
            const Numbers before = now();
            EXPECT_NE(before, first);
            EXPECT_EQ(reference(), first);
            EXPECT_EQ(now(), before);
        }
    }
}

TEST(CudaPolicyLoop, TheKlTermPullsToTheInitialPolicy) {
    RlConfig config = gpu_config();
    config.steps = 12;
    config.loss.kl_penalty = 0;
    const GpuRun free = run_on_gpu(config, 12, 2048);
    config.loss.kl_penalty = 1;
    const GpuRun held = run_on_gpu(config, 12, 2048);
    ASSERT_EQ(free.steps.size(), 12u);
    ASSERT_EQ(held.steps.size(), 12u);
    EXPECT_EQ(free.steps[0].reward, held.steps[0].reward);
    EXPECT_EQ(held.steps[0].metrics.kl_penalty, 0);  // the policy still equals the reference
    EXPECT_GT(held.steps.back().metrics.kl_penalty, 0);
    EXPECT_GT(free.steps.back().reward, held.steps.back().reward);
    for (const RlStep& s : held.steps) EXPECT_EQ(s.metrics.mismatch_tokens, 0) << s.step;
}

TEST(CudaPolicyLoop, TheRewardRises) {
    const GpuRun run = run_on_gpu(gpu_config(), 30, 2048);
    ASSERT_EQ(run.steps.size(), 30u);
    EXPECT_LT(run.steps.front().reward, 0.6);
    EXPECT_GT(run.steps.back().reward, 0.75);
    for (const RlStep& s : run.steps) EXPECT_EQ(s.metrics.mismatch_tokens, 0) << s.step;
}

// Training learns the sampled distribution: temperatures, and filters that exclude the same tokens on both sides.
TEST(CudaPolicyLoop, NoBitDiffersUnderTemperatureAndFilters) {
    struct Warm {
        double temperature = 1, top_p = 1;
        int64_t top_k = 0, updates = 1;
        TrainRecipe recipe = TrainRecipe::bf16;
    };
    for (const Warm& w :
         {Warm{.temperature = 0.7}, Warm{.temperature = 1.6, .recipe = TrainRecipe::fp8_block}, Warm{.top_k = 40},
          Warm{.temperature = 0.8, .top_p = 0.9}, Warm{.temperature = 0.8, .top_p = 0.9, .top_k = 300, .updates = 2}}) {
        SCOPED_TRACE(fmt::format("{} {} {} {}", w.temperature, w.top_p, w.top_k, w.updates));
        RlConfig config = gpu_config();
        config.generation.temperature = w.temperature, config.generation.top_p = w.top_p;
        config.generation.top_k = w.top_k;
        if (w.updates > 1) config.train_batch = config.prompts * config.generations / w.updates;
        const bool filters = config.generation.sampling().filters();
        if (!filters) config.loss.kl_penalty = 0.01;
        GpuWay way;
        way.precision.recipe = w.recipe;
        const GpuRun run = run_on_gpu(config, 3, 1024, way);
        ASSERT_EQ(run.steps.size(), 3u);
        int64_t filtered = 0;
        for (const RlStep& s : run.steps) {
            EXPECT_GT(s.metrics.tokens, 1000);
            EXPECT_EQ(s.metrics.mismatch_tokens, 0) << "step " << s.step;
            EXPECT_EQ(s.metrics.max_abs_diff, 0);
            EXPECT_EQ(s.metrics.tokens + s.metrics.filtered_tokens, s.generated_tokens);
            EXPECT_TRUE(std::isfinite(s.metrics.loss));
            EXPECT_GT(s.update.gradient_norm, 0);
            EXPECT_EQ(s.metrics.kl_penalty == 0, filters || s.step == 0);
            filtered += s.metrics.filtered_tokens;
        }
        EXPECT_EQ(filtered > 0, filters && w.updates > 1);
        // Negative control: a trainer without these settings.
        config.loss.kl_penalty = 0, config.train_batch = 0;
        way.sampling = SamplingParams{};
        const GpuRun other = run_on_gpu(config, 1, 1024, way);
        ASSERT_EQ(other.steps.size(), 1u);
        EXPECT_GT(other.steps[0].metrics.mismatch_tokens, other.steps[0].metrics.tokens / 2);
    }
}

// Temperature 2 equals a head with half the weights: log-probabilities have equal bits. Gradients are close but not
// equal, because exponentials without a temperature are approximate, except for the head's own gradient.
TEST(CudaPolicyLoop, GradientsUnderATemperatureAreThoseOfSmallerLogits) {
    ThreadPool pool;
    TrainBatch batch = random_batch(2, 96, 1000, 3);
    for (float& w : batch.weights) w = 1;
    std::vector<std::vector<float>> gradients[2];
    std::vector<float> said[2];
    for (const bool half : {false, true}) {
        auto parameters = random_start(rl_llama(), DType::bf16, 7, pool);
        ASSERT_TRUE(parameters.ok());
        if (half)
            for (float& w : (*parameters)->master(*(*parameters)->id("lm_head.weight"))) w /= 2;
        (*parameters)->publish(pool);
        DeviceTrainerOptions options{.device = rl_device(), .rows = 2, .seq = 96, .micro_batch = 1};
        if (!half) options.train.sampling.temperature = 2;
        const auto trainer = DeviceTrainer::create(*parameters, options, pool);
        ASSERT_TRUE(trainer.ok()) << trainer.error().message();
        said[half].resize(2 * 96);
        ASSERT_TRUE((*trainer)->log_probs(batch, said[half]).ok());
        ASSERT_TRUE((*trainer)->backward({&batch, 1}, gradients[half]).ok());
        // Slopes are divided by the temperature, but those of the smaller head were not.
        const size_t head = *(*parameters)->id("lm_head.weight");
        for (size_t id = 0; half && id < gradients[0].size(); ++id) {
            const double d = apart(gradients[0][id], gradients[1][id]).relative;
            EXPECT_EQ(d < 4e-3, id != head) << (*parameters)->tensors()[id].name << ": " << d;
        }
    }
    EXPECT_EQ(said[0], said[1]);
}

constexpr TrainCache gpu_fp8_cache{.format = KvFormat::fp8};
constexpr TrainCache gpu_fp8_queries{.format = KvFormat::fp8, .queries = true};

TEST(CudaPolicyLoop, NoBitDiffersWithAnFp8Cache) {
    const TrainPrecision precisions[] = {{.recipe = TrainRecipe::bf16},
                                         {.recipe = TrainRecipe::fp8_block},
                                         {.recipe = TrainRecipe::mxfp8},
                                         {.recipe = TrainRecipe::nvfp4, .row_scaled = true}};
    for (const TrainPrecision& precision : precisions)
        for (const auto& [updates, queries] : {std::pair<int64_t, bool>{1, false}, {2, false}, {1, true}, {2, true}}) {
            SCOPED_TRACE(fmt::format("{}, {} updates, queries in FP8: {}", train_precision_json(precision).dump(),
                                     updates, queries));
            RlConfig config = gpu_config();
            config.loss.kl_penalty = 0.01;
            config.generation.cache = queries ? gpu_fp8_queries : gpu_fp8_cache;
            if (updates > 1) config.train_batch = config.prompts * config.generations / updates;
            const GpuRun run = run_on_gpu(config, 3, 1024, {.precision = precision});
            ASSERT_EQ(run.steps.size(), 3u);
            for (const RlStep& s : run.steps) {
                EXPECT_GT(s.metrics.tokens, 1000);
                EXPECT_EQ(s.metrics.mismatch_tokens, 0) << "step " << s.step;
                EXPECT_EQ(s.metrics.max_abs_diff, 0);
                EXPECT_GT(s.longest, 64);
                EXPECT_GT(s.update.gradient_norm, 0);
                ASSERT_TRUE(s.cache);
                EXPECT_GT(s.cache->values, 1000);
                EXPECT_EQ(s.cache->q_values > 1000, queries);
            }
            // The reference computes its scales from the same prompts, so before an update it equals the policy.
            EXPECT_EQ(run.steps[0].metrics.kl_penalty == 0, updates == 1);
            for (const float s : run.scales) EXPECT_GT(s, 0);
        }
}

TEST(CudaPolicyLoop, NoBitDiffersWithWeightsOfFourBits) {
    for (const KvFormat format : {KvFormat::none, KvFormat::fp8})
        for (const char* recipe : {"nvfp4_w4a16", "nvfp4_w4a4"}) {
            SCOPED_TRACE(fmt::format("{}, {}", recipe, kv_name(format)));
            GpuWay way;
            way.precision = *train_precision_from_name(recipe);
            RlConfig config = gpu_config();
            config.loss.kl_penalty = 0.01;
            config.generation.cache.format = format;
            const GpuRun run = run_on_gpu(config, 3, 1024, way);
            ASSERT_EQ(run.steps.size(), 3u);
            for (const RlStep& s : run.steps) {
                EXPECT_GT(s.metrics.tokens, 1000);
                EXPECT_EQ(s.metrics.mismatch_tokens, 0) << "step " << s.step;
                EXPECT_GT(s.update.gradient_norm, 0);
            }
            EXPECT_EQ(run.steps[0].metrics.kl_penalty, 0);
        }
}

// Negative control: scales that change between the rollouts and the training of a step.
TEST(CudaPolicyLoop, OneChangedScaleIsDetected) {
    ThreadPool pool;
    const TrainBatch batch = random_batch(2, 96, 1000, 5);
    auto parameters = random_start(rl_llama(), DType::bf16, 7, pool);
    ASSERT_TRUE(parameters.ok());
    DeviceTrainerOptions options{.device = rl_device(), .rows = 2, .seq = 96, .micro_batch = 1};
    options.train.cache = gpu_fp8_queries;
    const auto trainer = DeviceTrainer::create(*parameters, options, pool);
    ASSERT_TRUE(trainer.ok()) << trainer.error().message();
    const auto said = [&] {
        std::vector<float> all(2 * 96);
        EXPECT_TRUE((*trainer)->log_probs(batch, all).ok());
        return all;
    };
    const auto plain = said();
    ASSERT_TRUE((*trainer)->calibrate({&batch, 1}).ok());
    const auto before = said();
    EXPECT_NE(before, plain);
    const auto scales = (*trainer)->cache_scales()->state();
    ASSERT_EQ(scales.size(), 6u);
    for (const size_t side : {0, 1, 2}) {  // K, V and Q of the first block
        auto other = scales;
        other[side] *= 1.01f;
        ASSERT_TRUE((*trainer)->set_cache_scales(other).ok());
        EXPECT_NE(said(), before) << side;
    }
    ASSERT_TRUE((*trainer)->set_cache_scales(scales).ok());
    EXPECT_EQ(said(), before);
    const auto state = (*trainer)->state();
    ASSERT_TRUE(state.ok());
    EXPECT_EQ(state->recipe, (*trainer)->cache_scales()->state());
    EXPECT_EQ(std::ssize(state->recipe), (*trainer)->recipe_size());
    EXPECT_FALSE((*trainer)->set_cache_scales(std::vector<float>(4, 1.0f)).ok());
    EXPECT_FALSE((*trainer)->set_cache_scales(std::vector<float>(6, -1.0f)).ok());
}

// A state restored in a new trainer has the scales that the next step would have used.
TEST(CudaPolicyLoop, ScalesBelongToTheState) {
    ThreadPool pool;
    const TrainBatch batch = random_batch(2, 96, 1000, 5);
    const auto file = std::filesystem::path(testing::TempDir()) / "nibble-rl-scales.safetensors";
    std::vector<std::unique_ptr<DeviceTrainer>> trainers;
    for (int i = 0; i < 2; ++i) {
        auto parameters = random_start(rl_llama(), DType::bf16, 7, pool);
        ASSERT_TRUE(parameters.ok());
        DeviceTrainerOptions options{.device = rl_device(), .rows = 2, .seq = 96, .micro_batch = 1};
        options.train.cache = {.format = KvFormat::fp8, .calibration = {.percentile = 50}};
        auto made = DeviceTrainer::create(*parameters, options, pool);
        ASSERT_TRUE(made.ok()) << made.error().message();
        trainers.push_back(*std::move(made));
    }
    ASSERT_TRUE(trainers[0]->calibrate({&batch, 1}).ok());
    const auto first = trainers[0]->cache_scales()->state();
    for (int step = 0; step < 2; ++step) {
        trainers[0]->cache_scales()->renew_at_update();
        ASSERT_TRUE(trainers[0]->step({&batch, 1}, 1e-2).ok());
    }
    EXPECT_NE(trainers[0]->cache_scales()->state(), first);
    const auto state = copy_state(*trainers[0], {.step = 2});
    ASSERT_TRUE(state.ok() && write_state(file, *state).ok());
    ASSERT_TRUE(read_state(file, {""}, *trainers[1]).ok());
    std::filesystem::remove(file);
    for (int step = 0; step < 2; ++step) {
        std::vector<float> said[2];
        for (size_t i = 0; i < 2; ++i) {
            said[i].resize(2 * 96);
            ASSERT_TRUE(trainers[i]->log_probs(batch, said[i]).ok());
            trainers[i]->begin(2 + step, 10);
            trainers[i]->cache_scales()->renew_at_update();
            ASSERT_TRUE(trainers[i]->step({&batch, 1}, 1e-2).ok());
        }
        EXPECT_EQ(said[0], said[1]) << step;
        EXPECT_EQ(trainers[0]->cache_scales()->state(), trainers[1]->cache_scales()->state());
    }
}

double cosine(std::span<const float> a, std::span<const float> b) {
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < a.size(); ++i)
        ab += double{a[i]} * b[i], aa += double{a[i]} * a[i], bb += double{b[i]} * b[i];
    return ab / std::sqrt(aa * bb);
}

// Compares with the CPU trainer: equal rows give equal scales, the same values are clipped, and gradients pass
// unchanged through rounding but not through clipped values.
TEST(CudaPolicyLoop, GradientsThroughAnFp8CacheAgreeWithTheCpu) {
    Json latent = rl_llama();
    for (const char* key : {"architectures", "head_dim"}) latent.erase(key);
    latent.update({{"model_type", "deepseek_v3"},
                   {"num_key_value_heads", 4},
                   {"q_lora_rank", 96},
                   {"kv_lora_rank", 64},
                   {"qk_nope_head_dim", 128},
                   {"qk_rope_head_dim", 64},
                   {"v_head_dim", 128},
                   {"n_routed_experts", 16},
                   {"n_shared_experts", 1},
                   {"num_experts_per_tok", 3},
                   {"moe_intermediate_size", 128},
                   {"n_group", 1},
                   {"topk_group", 1},
                   {"norm_topk_prob", true},
                   {"routed_scaling_factor", 2.5},
                   {"first_k_dense_replace", 2}});
    for (const Json& model : {rl_llama(), latent})
        for (const float shrink : {1.0f, 0.3f}) {
            SCOPED_TRACE(fmt::format("{}, scales times {}", model["model_type"].dump(), shrink));
            ThreadPool pool;
            const TrainBatch batch = random_batch(3, 96, 1000, 5);
            const auto start = [&] {
                auto made = random_start(model, DType::bf16, 7, pool);
                EXPECT_TRUE(made.ok()) << made.error().message();
                return *made;
            };
            DeviceTrainerOptions options{.device = rl_device(), .rows = 3, .seq = 96, .micro_batch = 3};
            options.train.cache = gpu_fp8_queries;
            const auto gpu = DeviceTrainer::create(start(), options, pool);
            ASSERT_TRUE(gpu.ok()) << gpu.error().message();
            const auto cpu = Trainer::create(start(), options.train, pool);
            ASSERT_TRUE(cpu.ok()) << cpu.error().message();
            ASSERT_TRUE((*gpu)->calibrate({&batch, 1}).ok());
            ASSERT_TRUE((*cpu)->calibrate({&batch, 1}).ok());
            auto scales = (*gpu)->cache_scales()->state();
            const auto of_cpu = (*cpu)->cache_scales()->state();
            ASSERT_EQ(scales.size(), of_cpu.size());
            for (size_t i = 0; i < scales.size(); ++i) EXPECT_NEAR(scales[i], of_cpu[i], 0.02f * of_cpu[i]) << i;
            for (float& s : scales) s *= shrink;
            ASSERT_TRUE((*gpu)->set_cache_scales(scales).ok());
            ASSERT_TRUE((*cpu)->cache_scales()->set_state(scales).ok());
            ASSERT_TRUE((*cpu)->renew().ok());
            std::vector<std::vector<float>> got;
            ASSERT_TRUE((*gpu)->backward({&batch, 1}, got).ok());
            ASSERT_TRUE((*cpu)->backward({&batch, 1}).ok());
            for (size_t id = 0; id < got.size(); ++id) {
                const auto want = (*cpu)->gradients().gradient(id);
                if (want.empty()) continue;
                EXPECT_GT(cosine(got[id], want), 0.99) << (*gpu)->parameters().tensors()[id].name;
            }
            (*gpu)->cache_scales()->renew(), (*cpu)->cache_scales()->renew();
            const CacheScales::Use here = (*gpu)->cache_scales()->last_use(),
                                   there = (*cpu)->cache_scales()->last_use();
            EXPECT_EQ(here.values, there.values);
            EXPECT_NEAR(static_cast<double>(here.clipped), static_cast<double>(there.clipped),
                        0.05 * static_cast<double>(there.clipped) + 3);
            EXPECT_EQ(here.clipped > 0, shrink < 1);
            EXPECT_EQ(here.q_values, there.q_values);
            EXPECT_NEAR(static_cast<double>(here.q_clipped), static_cast<double>(there.q_clipped),
                        0.05 * static_cast<double>(there.q_clipped) + 3);
            EXPECT_EQ(here.q_clipped > 0, shrink < 1);
        }
}

}  // namespace
}  // namespace nibble::test
