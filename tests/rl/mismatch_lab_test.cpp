// Tests the lab: no token differs under any schedule if the recipe guarantees it, and negative controls are detected.
#include "kernels/attention_control.h"
#include "rl/rank_lab.h"
#include "train/small_trainer.h"
#include "train/tiny_families.h"
#include "train/train_shapes.h"

namespace nibble::test {
namespace {

MismatchOptions small_lab() { return {.prompts = 12, .longest_prompt = 90, .answer = 80, .batches = {1, 5, 0}}; }

TEST(MismatchLab, RecipesThatPromiseNoMismatchHaveNone) {
    const TrainPrecision precisions[] = {{.recipe = TrainRecipe::bf16},
                                         {.recipe = TrainRecipe::fp8_block},
                                         {.recipe = TrainRecipe::mxfp8},
                                         {.recipe = TrainRecipe::nvfp4, .row_scaled = true},
                                         {.recipe = TrainRecipe::nvfp4, .stored_inputs = true}};
    for (const TrainPrecision& precision : precisions) {
        SCOPED_TRACE(train_recipe_name(precision.recipe));
        ThreadPool pool(2);
        const auto trainer = small_trainer(pool, {.precision = precision});
        ASSERT_TRUE(calibrate_lab(*trainer, small_lab()).ok());
        const auto report = measure_mismatch(*trainer, *trainer->serving(), small_lab());
        ASSERT_TRUE(report.ok()) << report.error().message();
        EXPECT_TRUE(report->promised);
        EXPECT_EQ(report->lines.size(), 2u * (4 + 5 + 5));  // a single sequence is never preempted
        for (const MismatchLine& line : report->lines) {
            EXPECT_EQ(line.mismatches, 0) << line.batch << ", " << line.way << ", " << line.rows;
            EXPECT_EQ(line.other_ids, 0) << line.batch << ", " << line.way;
            EXPECT_EQ(line.tokens, 12 * 80);
            EXPECT_GT(line.events, 0) << line.way;
        }
    }
}

// Even few prompts cover all schedules, if two of them can preempt each other.
TEST(MismatchLab, FewPromptsCoverAllSchedules) {
    for (const int64_t prompts : {1, 2, 3, 4}) {
        SCOPED_TRACE(prompts);
        ThreadPool pool(2);
        const auto trainer = small_trainer(pool, {});
        MismatchOptions lab;
        lab.prompts = prompts;
        const auto report = measure_mismatch(*trainer, *trainer->serving(), lab);
        ASSERT_TRUE(report.ok()) << report.error().message();
        EXPECT_EQ(report->mismatches(), 0);
        const auto preempted = std::ranges::count(report->lines, "preempted", &MismatchLine::way);
        EXPECT_EQ(preempted, prompts > 1 ? 2 : 0);
        for (const MismatchLine& line : report->lines) EXPECT_GT(line.events, 0) << line.way;
    }
}

// Windows shorter than the lab's context: pages are returned, so a lack of memory alone preempts nothing.
TEST(MismatchLab, WindowedModelsCoverAllSchedules) {
    Json mistral = tiny("mistral"), gemma = tiny("gemma3_text");
    mistral["sliding_window"] = 40;
    for (const Json& config : {mistral, gemma}) {
        SCOPED_TRACE(config["model_type"].dump());
        ThreadPool pool(2);
        auto parameters = random_start(config, DType::bf16, 3, pool);
        ASSERT_TRUE(parameters.ok()) << parameters.error().message();
        const auto trainer = Trainer::create(*parameters, {}, pool);
        ASSERT_TRUE(trainer.ok()) << trainer.error().message();
        const auto report = measure_mismatch(**trainer, *(*trainer)->serving(), small_lab());
        ASSERT_TRUE(report.ok()) << report.error().message();
        EXPECT_EQ(report->lines.size(), 2u * (4 + 5 + 5));
        EXPECT_EQ(report->mismatches(), 0);
        for (const MismatchLine& line : report->lines) EXPECT_GT(line.events, 0) << line.way;
    }
}

// Training learns the sampled distribution, and both sides use the same cache; another cache scale is detected.
TEST(MismatchLab, CachesAndTemperaturesHaveNoMismatch) {
    for (const auto& [cache, sampling] :
         {std::pair<TrainCache, SamplingParams>{{.format = KvFormat::fp8}, {}},
          {{}, {.temperature = 0.7f}},
          {{.format = KvFormat::fp8, .queries = true}, {}},
          {{.format = KvFormat::fp8, .queries = true}, {.temperature = 1.3f, .top_k = 30, .top_p = 0.95f}}}) {
        SCOPED_TRACE(fmt::format("{}, {}, {}", kv_name(cache.format), cache.queries, sampling.temperature));
        ThreadPool pool(2);
        const TrainerOptions options{.sampling = sampling, .cache = cache};
        const auto trainer = small_trainer(pool, options), other = small_trainer(pool, options);
        MismatchOptions lab = small_lab();
        lab.sampling = sampling;
        ASSERT_TRUE(calibrate_lab(*trainer, lab).ok());
        ASSERT_TRUE(calibrate_lab(*other, lab).ok());
        const auto report = measure_mismatch(*trainer, *trainer->serving(), lab);
        ASSERT_TRUE(report.ok()) << report.error().message();
        const bool raw = sampling.temperature == 1;
        // prompts have no scores under filters
        EXPECT_EQ(report->lines.size(), raw ? 2u * (4 + 5 + 5) : 2u * (3 + 4 + 4));
        EXPECT_GT(report->tokens(), 10000);
        EXPECT_EQ(report->mismatches(), 0);
        if (cache.format == KvFormat::none) continue;
        for (size_t side = 0; side < trainer->cache_scales()->sides(); ++side) {
            std::vector<float> scales = trainer->cache_scales()->state();
            scales[side] *= 1.01f;
            ASSERT_TRUE(other->set_cache_scales(scales).ok());
            const auto apart = measure_mismatch(*trainer, *other->serving(), lab);
            ASSERT_TRUE(apart.ok()) << apart.error().message();
            EXPECT_GT(apart->mismatches(), apart->tokens() / 20) << side;
        }
    }
}

TEST(MismatchLab, AChangedScaleOfInputsIsDetected) {
    ThreadPool pool(2);
    const TrainerOptions options{.precision = {.recipe = TrainRecipe::nvfp4, .stored_inputs = true}};
    const auto trainer = small_trainer(pool, options), other = small_trainer(pool, options);
    ASSERT_TRUE(calibrate_lab(*trainer, small_lab()).ok());
    std::vector<float> scales = *trainer->recipe().input_scales();
    ASSERT_TRUE(other->recipe().set_input_scales(scales).ok());
    EXPECT_EQ(measure_mismatch(*trainer, *other->serving(), small_lab())->mismatches(), 0);
    for (const size_t unit : {size_t{0}, scales.size() - 1}) {
        std::vector<float> nudged = scales;
        nudged[unit] *= 1.01f;
        ASSERT_TRUE(other->recipe().set_input_scales(nudged).ok());
        const auto report = measure_mismatch(*trainer, *other->serving(), small_lab());
        ASSERT_TRUE(report.ok()) << report.error().message();
        EXPECT_GT(report->mismatches(), report->tokens() / 20) << unit;
    }
    EXPECT_FALSE(other->recipe().set_input_scales(std::vector<float>(1, 1.0f)).ok());
    EXPECT_FALSE(other->recipe().set_input_scales(std::vector<float>(scales.size(), 0.0f)).ok());
}

TEST(MismatchLab, AChangedModelIsDetected) {
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

// The same weights with another order of sums.
TEST(MismatchLab, AChangedOrderOfSumsIsDetected) {
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

// The same weights with another length of attention's splits, also with an FP8 cache. It uses FP32, because in a small
// model BF16 rounding after attention hides the difference.
TEST(MismatchLab, AChangedLengthOfSplitsIsDetected) {
    for (const TrainCache& cache : {TrainCache{}, TrainCache{.format = KvFormat::fp8}}) {
        ThreadPool pool(2);
        const TrainerOptions options{.precision = {.recipe = TrainRecipe::fp32}, .cache = cache};
        const auto trainer = small_trainer(pool, options), other = small_trainer(pool, options);
        for (const auto& t : {trainer.get(), other.get()})
            if (t->calibrates()) {
                ASSERT_TRUE(calibrate_lab(*t, small_lab()).ok());
            }
        const auto generator = *other->serving();
        EXPECT_EQ(measure_mismatch(*trainer, generator, small_lab())->mismatches(), 0);
        generator->workspace().attention = &attention_in_half_splits();
        const auto report = measure_mismatch(*trainer, generator, small_lab());
        ASSERT_TRUE(report.ok()) << report.error().message();
        EXPECT_GT(report->mismatches(), report->tokens() / 20);
    }
}

// Tests the counts of the comparison of ranks.
TEST(RankLab, CountsWhatDiffers) {
    const RankLabRun one{.answers = {{{1, 2, 3}, {-1, -2, -3}, {-1, -2, -3}}, {{4}, {-4}, {-4}}}, .masters = {1, 2, 3}};
    const auto differ = [&](const RankLabRun& other) {
        std::vector<int64_t> counts;
        for (const MismatchLine& l : compare_rank_runs(one, other, "2 ranks")) counts.push_back(l.mismatches);
        return counts;
    };
    EXPECT_EQ(differ(one), (std::vector<int64_t>{0, 0, 0}));
    RankLabRun other = one;
    other.answers[0].generated[1] = std::nextafter(-2.0f, 0.0f);
    other.masters[2] = std::nextafter(3.0f, 4.0f);
    EXPECT_EQ(differ(other), (std::vector<int64_t>{1, 0, 1}));
    other = one;
    other.answers[0].tokens[2] = 7, other.answers[1].trained[0] = -4.5f;
    EXPECT_EQ(differ(other), (std::vector<int64_t>{1, 2, 0}));
    other.answers.pop_back(), other.masters.clear();
    EXPECT_EQ(differ(other), (std::vector<int64_t>{2, 2, 3}));
    const auto lines = compare_rank_runs(one, one, "2 ranks");
    EXPECT_EQ(lines[0].tokens, 4);
    EXPECT_EQ(lines[2].tokens, 3);
}

TEST(MismatchLab, PerTensorScalesPromiseNothing) {
    ThreadPool pool(2);
    const auto trainer = small_trainer(pool, {.precision = {.recipe = TrainRecipe::nvfp4}});
    const auto report = measure_mismatch(*trainer, *trainer->serving(), small_lab());
    ASSERT_TRUE(report.ok()) << report.error().message();
    EXPECT_FALSE(report->promised);
    EXPECT_GT(report->mismatches(), 0);
}

}  // namespace
}  // namespace nibble::test
