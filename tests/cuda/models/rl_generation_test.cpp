// Tests reinforcement learning on a GPU with rollouts in another precision, and experts under quantized recipes.
#include "cuda/models/rl_loop.h"

namespace nibble::test {
namespace {

// Rollouts in FP8 or NVFP4 with updates in BF16: differences are counted, and the generator follows the updates.
TEST(CudaPolicyLoop, MismatchesOfGenerationInAnotherPrecisionAreCounted) {
    const TrainPrecision precisions[] = {{.recipe = TrainRecipe::bf16},
                                         {.recipe = TrainRecipe::fp8_block},
                                         {.recipe = TrainRecipe::nvfp4, .row_scaled = true},
                                         {.recipe = TrainRecipe::nvfp4, .rotate = false, .weights_only = true}};
    for (const TrainPrecision& precision : precisions)
        for (const KvFormat format : {KvFormat::none, KvFormat::fp8}) {
            SCOPED_TRACE(fmt::format("{}, {}", train_precision_json(precision).dump(), kv_name(format)));
            RlConfig config = gpu_config();
            config.generation.precision = precision;
            config.generation.cache = {.format = format, .mirrored = false};
            const GpuRun run = run_on_gpu(config, 3, 1024);
            ASSERT_EQ(run.steps.size(), 3u);
            const bool equal = precision.recipe == TrainRecipe::bf16 && format == KvFormat::none;
            for (const RlStep& s : run.steps) {
                EXPECT_GT(s.metrics.tokens, 1000);
                EXPECT_EQ(s.metrics.mismatch_tokens == 0, equal) << "step " << s.step;
                const double error = s.metrics.token_mult_prob_error / static_cast<double>(s.metrics.tokens);
                EXPECT_LT(error, precision.recipe == TrainRecipe::nvfp4 ? 1.5 : 1.2) << "step " << s.step;
                EXPECT_EQ(s.cache.has_value(), format == KvFormat::fp8);
            }
        }
}

// Experts in another precision for rollouts: differences are counted, and are small with the initial weights.
TEST(CudaPolicyLoop, ExpertsOfOtherRolloutsAreCounted) {
    const TrainPrecision precisions[] = {{.recipe = TrainRecipe::bf16},
                                         {.recipe = TrainRecipe::fp8_block},
                                         {.recipe = TrainRecipe::mxfp8},
                                         {.recipe = TrainRecipe::nvfp4, .square = false, .row_scaled = true},
                                         *train_precision_from_name("nvfp4_w4a16")};
    for (const Json& model : {rl_mixture(), rl_hybrid()})
        for (const TrainPrecision& precision : precisions) {
            SCOPED_TRACE(model["model_type"].dump() + ", " + train_precision_json(precision).dump());
            RlConfig config = gpu_config();
            config.generation.precision = precision;
            config.generation.cache.mirrored = false;
            const GpuRun run = run_on_gpu(config, 3, 1024, {.model = model});
            ASSERT_EQ(run.steps.size(), 3u);
            for (const RlStep& s : run.steps) {
                EXPECT_GT(s.metrics.tokens, 1000);
                EXPECT_EQ(s.metrics.mismatch_tokens == 0, precision.recipe == TrainRecipe::bf16) << "step " << s.step;
                const double error = s.metrics.token_mult_prob_error / static_cast<double>(s.metrics.tokens);
                EXPECT_LT(error, precision.recipe == TrainRecipe::nvfp4 ? 1.5 : 1.2) << "step " << s.step;
                EXPECT_GT(s.update.gradient_norm, 0);
            }
        }
}

// Recipes with per-tensor scales run, without a guarantee of equal bits.
TEST(CudaPolicyLoop, ExpertsWithPerTensorScalesLearn) {
    for (const Json& model : {rl_mixture(), rl_hybrid()})
        for (const TrainRecipe recipe : {TrainRecipe::fp8, TrainRecipe::nvfp4}) {
            SCOPED_TRACE(model["model_type"].dump() + ", " + std::string(train_recipe_name(recipe)));
            RlConfig config = gpu_config();
            config.loss.importance_sampling_correction = true;
            const GpuRun run = run_on_gpu(config, 3, 1024, {.model = model, .precision = {.recipe = recipe}});
            ASSERT_EQ(run.steps.size(), 3u);
            for (const RlStep& s : run.steps) {
                EXPECT_GT(s.metrics.mismatch_tokens, 0);
                EXPECT_GT(s.update.gradient_norm, 0);
                EXPECT_TRUE(std::isfinite(s.metrics.loss));
            }
        }
}

// An outdated generator is detected: the loop must renew its operands. Embedding and vectors are the trainer's, so its
// logits are neither the old nor the new ones.
TEST(CudaPolicyLoop, AGeneratorWithOldWeightsIsDetected) {
    ThreadPool pool;
    auto parameters = random_start(rl_llama(), DType::bf16, 7, pool);
    ASSERT_TRUE(parameters.ok());
    const auto trainer = DeviceTrainer::create(*parameters,
                                               {.device = rl_device(),
                                                .rows = 2,
                                                .seq = 96,
                                                .micro_batch = 1,
                                                .generation = TrainPrecision{.recipe = TrainRecipe::bf16}},
                                               pool);
    ASSERT_TRUE(trainer.ok()) << trainer.error().message();
    const auto generator = (*trainer)->generating(), served = (*trainer)->serving();
    ASSERT_TRUE(generator.ok() && served.ok());
    const std::vector<int32_t> tokens{5, 6, 7, 8, 9};
    const auto said = [&](const LanguageModel& model) {
        std::vector<float> logits(1000);
        EXPECT_TRUE(model.forward(Batch({{.sequence = nullptr, .tokens = tokens, .logits_from = 4}}), logits).ok());
        return logits;
    };
    const auto first = said(**generator);
    EXPECT_EQ(said(**served), first);
    const TrainBatch batch = random_batch(2, 96, 1000, 5);
    ASSERT_TRUE((*trainer)->step({&batch, 1}, 1e-2).ok());
    const auto renewed = said(**served), stale = said(**generator);
    EXPECT_NE(renewed, first);
    EXPECT_NE(stale, renewed);
    EXPECT_NE(stale, first);
    ASSERT_TRUE((*trainer)->renew_generation().ok());
    EXPECT_EQ(said(**generator), renewed);
    EXPECT_EQ(said(**served), renewed);
}

}  // namespace
}  // namespace nibble::test
