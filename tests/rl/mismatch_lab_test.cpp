// The lab: no token differs where a recipe promises it, in every way of a rollout; what must show does.
#include "rl/mismatch_lab.h"
#include "train/small_trainer.h"

namespace nibble::test {
namespace {

MismatchOptions small_lab() { return {.prompts = 12, .longest_prompt = 90, .answer = 80, .batches = {1, 5, 0}}; }

TEST(MismatchLab, RecipesThatPromiseItHaveNone) {
    const TrainPrecision precisions[] = {{.recipe = TrainRecipe::bf16},
                                         {.recipe = TrainRecipe::fp8_block},
                                         {.recipe = TrainRecipe::mxfp8},
                                         {.recipe = TrainRecipe::nvfp4, .row_scaled = true}};
    for (const TrainPrecision& precision : precisions) {
        SCOPED_TRACE(train_recipe_name(precision.recipe));
        ThreadPool pool(2);
        const auto trainer = small_trainer(pool, {.precision = precision});
        const auto report = measure_mismatch(*trainer, *trainer->serving(), small_lab());
        ASSERT_TRUE(report.ok()) << report.error().message();
        EXPECT_TRUE(report->promised);
        EXPECT_EQ(report->lines.size(), 2u * (4 + 5 + 5));  // alone nothing is preempted
        for (const MismatchLine& line : report->lines) {
            EXPECT_EQ(line.mismatches, 0) << line.batch << ", " << line.way << ", " << line.rows;
            EXPECT_EQ(line.other_ids, 0) << line.batch << ", " << line.way;
            EXPECT_EQ(line.tokens, 12 * 80);
            EXPECT_GT(line.events, 0) << line.way;
        }
    }
}

TEST(MismatchLab, AnotherModelShows) {
    for (const TrainPrecision& precision : {TrainPrecision{.recipe = TrainRecipe::bf16},
                                            TrainPrecision{.recipe = TrainRecipe::nvfp4, .row_scaled = true}})
        for (const bool scale : {false, true}) {
            ThreadPool pool(2);
            const auto trainer = small_trainer(pool, {.precision = precision});
            auto parameters = small_parameters(pool, DType::bf16);
            nudge(*parameters, scale, pool);
            const auto other = Trainer::create(parameters, {.precision = precision}, pool);
            ASSERT_TRUE(other.ok());
            const auto report = measure_mismatch(*trainer, *(*other)->serving(), small_lab());
            ASSERT_TRUE(report.ok()) << report.error().message();
            EXPECT_GT(report->mismatches(), report->tokens() / 20) << scale;
        }
}

// Another order of sums, with the very same weights.
TEST(MismatchLab, AnotherOrderOfSumsShows) {
    ThreadPool pool(2);
    const auto trainer = small_trainer(pool, {});
    ModelOptions options;
    options.sums = SumOrder::tiles;
    options.kernels = "ref";  // without AMX
    auto model = Model::load(small_parameters(pool, DType::bf16), options, pool);
    ASSERT_TRUE(model.ok()) << model.error().message();
    const auto report = measure_mismatch(*trainer, std::make_shared<const Model>(*std::move(model)), small_lab());
    ASSERT_TRUE(report.ok()) << report.error().message();
    EXPECT_GT(report->mismatches(), 0);
}

TEST(MismatchLab, ScalesOfWholeTensorsPromiseNothing) {
    ThreadPool pool(2);
    const auto trainer = small_trainer(pool, {.precision = {.recipe = TrainRecipe::nvfp4}});
    const auto report = measure_mismatch(*trainer, *trainer->serving(), small_lab());
    ASSERT_TRUE(report.ok()) << report.error().message();
    EXPECT_FALSE(report->promised);
    EXPECT_GT(report->mismatches(), 0);
}

}  // namespace
}  // namespace nibble::test
