// Tests the measured quality of rounded operands.
#include "run/history.h"
#include "train/operand_sample.h"
#include "train/small_trainer.h"

#include <cmath>

namespace nibble::test {
namespace {

std::vector<float> noise(int64_t n, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = round_to_bf16(normal(random));
    return x;
}

CastQuality quality_of(const std::vector<float>& x, int64_t rows, const CastRule& rule, uint64_t draw = 0) {
    ThreadPool pool(1);
    const int64_t cols = std::ssize(x) / rows;
    return cast_quality(x.data(), cols, cols, cast_rows(x.data(), rows, cols, cols, rule, {.draw = draw}, {}, pool));
}

TEST(CastQuality, RepresentableNumbersHaveNoError) {
    std::vector<float> x;
    for (int i = 0; i < 128; ++i)
        x.push_back((i % 2 ? -1.0f : 1.0f) * std::array{0.5f, 1.0f, 3.0f, 6.0f}[size_t(i % 4)]);
    for (const CastFormat format : {CastFormat::bf16, CastFormat::mxfp8, CastFormat::nvfp4}) {
        const CastQuality q = quality_of(x, 2, {.format = format});
        EXPECT_NEAR(q.error, 0, 1e-12) << int(format);
        EXPECT_NEAR(q.gain, 1, 1e-6) << int(format);
        EXPECT_EQ(q.zeroed + q.saturated, 0) << int(format);
    }
}

// The relative error of each format on a normal distribution. E4M3 has steps of 1/8 at the top of a binade, E2M1 of
// 1/2. Errors of block scales are included.
TEST(CastQuality, ErrorsAreThoseOfTheFormats) {
    const std::vector<float> x = noise(64 * 256, 1);
    for (const auto& [format, low, high] : {std::tuple{CastFormat::fp8, 0.02, 0.03},
                                            {CastFormat::fp8_block, 0.02, 0.03},
                                            {CastFormat::mxfp8, 0.02, 0.03},
                                            {CastFormat::fp8_e5m2, 0.04, 0.06},
                                            {CastFormat::nvfp4, 0.08, 0.11}}) {
        const CastQuality q = quality_of(x, 64, {.format = format});
        EXPECT_GT(std::sqrt(q.error), low) << int(format);
        EXPECT_LT(std::sqrt(q.error), high) << int(format);
        EXPECT_NEAR(q.gain, 1, 0.01) << int(format);
    }
}

// Round-to-nearest is biased for small numbers; stochastic rounding is unbiased on average.
TEST(CastQuality, GainShowsBias) {
    std::vector<float> x(16 * 64, 0.2f);
    for (size_t i = 0; i < x.size(); i += 16) x[i] = 6.0f;  // the block's scale is 1, so 0.2 rounds to 0
    const double top = 36.0, small = 15 * 0.04;
    EXPECT_NEAR(quality_of(x, 16, {.format = CastFormat::nvfp4}).gain, top / (top + small), 1e-3);
    double mean = 0;
    for (uint64_t draw = 0; draw < 40; ++draw)
        mean += quality_of(x, 16, {.format = CastFormat::nvfp4, .stochastic = true}, draw).gain / 40;
    EXPECT_NEAR(mean, 1, 2e-3);
}

TEST(CastQuality, CountsBlocksThatVanish) {
    std::vector<float> x = noise(4 * 64, 2);
    x[0] = 4e6f;
    const CastQuality q = quality_of(x, 4, {.format = CastFormat::nvfp4});
    EXPECT_NEAR(q.zeroed, 15.0 / 16, 1e-9);
    EXPECT_EQ(quality_of(noise(4 * 64, 2), 4, {.format = CastFormat::nvfp4}).zeroed, 0);
}

TrainerOptions quality_options(const std::string& recipe) {
    TrainerOptions options;
    options.precision = *train_precision_from_name(recipe);
    return options;
}

// Like a GPU in a watched step: a sample of the first rows of a tensor whose largest number is in another row.
TEST(CastQuality, ASampleHasTheQualityOfItsRows) {
    ThreadPool pool(2);
    const int64_t rows = 256, seen = 128, cols = 256;
    std::vector<float> x = noise(rows * cols, 5);
    x[size_t((rows - 1) * cols)] = 300;
    const CastRandom random{.id = 9, .draw = 4, .outer_step = 16};
    for (const CastRule& rule :
         {CastRule{.format = CastFormat::fp8}, CastRule{.format = CastFormat::fp8_e5m2},
          CastRule{.format = CastFormat::fp8_block}, CastRule{.format = CastFormat::fp8_block2, .square = true},
          CastRule{.format = CastFormat::mxfp8}, CastRule{.format = CastFormat::nvfp4},
          CastRule{.format = CastFormat::nvfp4, .square = true},
          CastRule{.format = CastFormat::nvfp4, .row_scaled = true},
          CastRule{.format = CastFormat::nvfp4, .stochastic = true},
          CastRule{.format = CastFormat::nvfp4, .four_over_six = true}}) {
        OperandSample sample{.rows = seen, .cols = cols, .rule = rule, .random = random, .largest = 300};
        for (int64_t i = 0; i < seen * cols; ++i) sample.values.push_back(bf16_from_float(x[size_t(i)]));
        const CastQuality got = measure(sample, pool);
        // The same rows of the whole tensor's operand.
        const CastOperand whole = cast_rows(x.data(), rows, cols, cols, rule, random, {}, pool);
        CastOperand first = whole;
        first.rows = seen;
        const CastQuality want = cast_quality(x.data(), cols, cols, first);
        EXPECT_EQ(got.error, want.error);
        EXPECT_EQ(got.gain, want.gain);
        EXPECT_GT(got.error, 0);
        // Without the tensor's maximum, a per-tensor scale differs.
        sample.largest = 0;
        const bool of_tensor = rule.format == CastFormat::fp8_e5m2 || rule.format == CastFormat::fp8 ||
                               (rule.format == CastFormat::nvfp4 && !rule.row_scaled);
        EXPECT_EQ(measure(sample, pool).error != want.error, of_tensor);
    }
}

TEST(QualityOfARun, MeasuringChangesNoBit) {
    for (const std::string recipe : {"bf16", "fp8_delayed", "fp8_block", "nvfp4", "nibble_nvfp4"}) {
        ThreadPool pool(2);
        const TrainBatch batch = random_batch(3, 32, 48, 7);
        std::vector<float> want;
        for (const bool watch : {false, true}) {
            const auto trainer = small_trainer(pool, quality_options(recipe));
            trainer->begin(0, 4);
            for (int s = 0; s < 4; ++s) {
                trainer->recipe().watch(watch && s % 2 == 0);
                ASSERT_TRUE(trainer->step({&batch, 1}, 0.01).ok());
            }
            EXPECT_EQ(trainer->recipe().quality().empty(), recipe == "bf16" || !watch) << recipe;
            if (!watch) want = all_masters(trainer->parameters());
            EXPECT_EQ(all_masters(trainer->parameters()), want) << recipe << (watch ? ", watched" : "");
        }
    }
}

TEST(QualityOfARun, EveryRoundedUnitIsSeenAndReadBack) {
    ThreadPool pool(1);
    const auto trainer = small_trainer(pool, quality_options("nvfp4"));
    trainer->begin(0, 2);
    trainer->recipe().watch(true);
    const TrainBatch batch = random_batch(2, 32, 48, 7);
    ASSERT_TRUE(trainer->step({&batch, 1}, 0.01).ok());
    const auto seen = trainer->recipe().quality();
    int64_t rounded = 0;
    for (const UnitLine& line : trainer->recipe().table()) rounded += line.forward.find("NVFP4") != std::string::npos;
    ASSERT_EQ(std::ssize(seen), rounded);
    for (const UnitQuality& unit : seen) {
        ASSERT_TRUE(unit.inputs && unit.weights && unit.gradients) << unit.name;
        EXPECT_GT(unit.inputs->error, 1e-3) << unit.name;
        EXPECT_GT(unit.weights->error, 1e-3) << unit.name;
        EXPECT_GT(unit.gradients->error, unit.inputs->error) << unit.name;  // stochastic rounding adds noise
        UnitQuality read;
        ASSERT_TRUE(read_quality(to_json(unit), read).ok());
        EXPECT_EQ(to_json(read), to_json(unit));
    }
    UnitQuality bad;
    EXPECT_FALSE(read_quality({{"unit", 3}, {"layer", 0}}, bad).ok());
}

}  // namespace
}  // namespace nibble::test
