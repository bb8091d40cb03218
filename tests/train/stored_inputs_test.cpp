// Tests inputs of forward products under a stored input_scale: when the scale changes, and how the backward pass uses
// it.
#include "train/small_trainer.h"

#include "formats/nvfp4.h"
#include "model/gradients.h"

#include <cmath>
#include <limits>

namespace nibble::test {
namespace {

TrainerOptions stored_inputs(int64_t history = 1) {
    TrainerOptions options{.precision = *train_precision_from_name("nvfp4_w4a4")};
    options.precision.amax_history = history;
    return options;
}

// The inputs of the first unit are normed embeddings, independent of products. With learning rate 0 they stay constant.
TEST(StoredInputs, ScalesChangeAfterUpdatesThatAreNotHeld) {
    ThreadPool pool(2);
    const auto trainer = small_trainer(pool, stored_inputs(), wide_llama());
    TrainBatch a = random_batch(1, 6, 48, 1), b = a;
    a.tokens.assign(6, 5), b.tokens.assign(6, 9);
    const auto scale_after = [&](const TrainBatch& batch) {
        const auto step = trainer->step({&batch, 1}, 0);
        EXPECT_TRUE(step.ok()) << step.error().message();
        return (*trainer->recipe().input_scales())[0];
    };
    EXPECT_EQ(*trainer->recipe().input_scales(), std::vector<float>(8, 0.0f));
    const float of_a = scale_after(a), of_b = scale_after(b);
    EXPECT_NE(of_a, of_b);
    EXPECT_GT(std::min(of_a, of_b), 0);
    EXPECT_EQ(scale_after(a), of_a);
    trainer->recipe().hold_scales(true);
    const std::vector<float> before = *trainer->recipe().input_scales();
    scale_after(b), scale_after(b);
    EXPECT_EQ(*trainer->recipe().input_scales(), before);
    trainer->recipe().hold_scales(false);
    EXPECT_EQ(scale_after(a), std::max(of_a, of_b));
    EXPECT_EQ(scale_after(a), of_a);
    // With longer histories the largest maximum counts.
    const auto longer = small_trainer(pool, stored_inputs(3), wide_llama());
    float most = 0;
    for (const TrainBatch* batch : {&a, &b, &a}) {
        ASSERT_TRUE(longer->step({batch, 1}, 0).ok());
        most = std::max(most, batch == &a ? of_a : of_b);
        EXPECT_EQ((*longer->recipe().input_scales())[0], most);
    }
}

TEST(StoredInputs, SkippedStepsChangeNoScale) {
    for (const bool hold : {false, true}) {
        ThreadPool pool(2);
        TrainerOptions options = stored_inputs(2);
        options.skip_nonfinite = true;
        const auto trainer = small_trainer(pool, options, wide_llama());
        const TrainBatch a = random_batch(1, 6, 48, 1), b = random_batch(2, 30, 48, 2);
        ASSERT_TRUE(trainer->step({&a, 1}, 0).ok());
        const std::vector<float> before = trainer->products().state();
        const RowObjective broken = [](int64_t, std::span<const float>, std::span<float>, double& loss) -> Status {
            loss = std::numeric_limits<double>::quiet_NaN();
            return Ok{};
        };
        trainer->recipe().hold_scales(hold);
        const auto skipped = trainer->step({&b, 1}, broken, 0);
        ASSERT_TRUE(skipped.ok()) << skipped.error().message();
        EXPECT_TRUE(skipped->skipped);
        trainer->recipe().hold_scales(false);
        EXPECT_EQ(trainer->products().state(), before);
        const float first = (*trainer->recipe().input_scales())[0];
        ASSERT_TRUE(trainer->step({&a, 1}, 0).ok());
        EXPECT_EQ((*trainer->recipe().input_scales())[0], first);  // no influence of b
    }
}

// Calibration discards earlier scales, and its bits do not depend on threads.
TEST(StoredInputs, CalibrationMakesTheFirstScales) {
    std::vector<float> want;
    for (const int threads : {1, 3}) {
        ThreadPool pool(threads);
        const auto trainer = small_trainer(pool, stored_inputs(5), wide_llama());
        EXPECT_TRUE(trainer->calibrates());
        const TrainBatch a = random_batch(2, 20, 48, 1), b = random_batch(2, 20, 48, 2);
        ASSERT_TRUE(trainer->calibrate({&b, 1}).ok());
        const std::vector<float> of_b = *trainer->recipe().input_scales();
        ASSERT_TRUE(trainer->calibrate({&a, 1}).ok());
        const std::vector<float> of_a = *trainer->recipe().input_scales();
        EXPECT_NE(of_a, of_b);
        for (const float s : of_a) EXPECT_GT(s, 0);
        ASSERT_TRUE(trainer->calibrate({&b, 1}).ok());
        EXPECT_EQ(*trainer->recipe().input_scales(), of_b);
        if (want.empty()) want = of_b;
        EXPECT_EQ(of_b, want);
    }
    ThreadPool pool(1);
    const auto plain = small_trainer(pool, {});
    EXPECT_FALSE(plain->calibrates());
    const TrainBatch a = random_batch(1, 6, 48, 1);
    EXPECT_FALSE(plain->calibrate({&a, 1}).ok());
}

struct OneGradient : GradientSink {
    std::vector<float> dw;
    Status add(const std::string&, const float* values, int64_t rows, int64_t cols) override {
        dw.insert(dw.end(), values, values + rows * cols);
        return Ok{};
    }
};

TEST(StoredInputs, TheBackwardPassUsesTheClippedInputsOfTheForwardPass) {
    ThreadPool pool(2);
    const auto trainer = small_trainer(pool, stored_inputs(), wide_llama());
    const std::span<const Linear> unit = trainer->model().blocks()[0].mixer().units()[0];
    int64_t outputs = 0;
    for (const Linear& l : unit) outputs += l.rows;
    const int64_t n = 24, cols = unit[0].cols;
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(n * cols)), dy(static_cast<size_t>(n * outputs));
    for (float& v : x) v = round_to_bf16(normal(random));
    for (float& v : dy) v = round_to_bf16(normal(random));
    const size_t units = trainer->recipe().input_scales()->size();
    const float limit = 1.5f, scale = limit / 2688, wide = 64.0f / 2688;
    const auto input_gradient = [&](float s) {
        EXPECT_TRUE(trainer->recipe().set_input_scales(std::vector<float>(units, s)).ok());
        std::vector<float> dx(x.size());
        trainer->products().input_gradient(unit, x.data(), dy.data(), n, outputs, dx.data(),
                                           trainer->model().workspace());
        return dx;
    };
    const std::vector<float> all = input_gradient(wide), some = input_gradient(scale);
    int64_t clipped = 0;
    for (size_t i = 0; i < x.size(); ++i) {
        const bool beyond = std::abs(x[i]) > 6 * (448 * scale);
        clipped += beyond;
        EXPECT_NE(all[i], 0.0f);
        EXPECT_EQ(some[i], beyond ? 0.0f : all[i]) << x[i];
    }
    EXPECT_GT(clipped, 50);
    // dW = dY^T times x as rounded by the engine.
    OneGradient sink;
    ASSERT_TRUE(trainer->products()
                    .weight_gradient(unit, x.data(), dy.data(), n, outputs, trainer->model().workspace(), sink)
                    .ok());
    std::vector<double> used(x.size());
    std::vector<uint8_t> codes(static_cast<size_t>(cols / 2)), blocks(static_cast<size_t>(cols / 16));
    for (int64_t r = 0; r < n; ++r) {
        trainer->model().workspace().matmul->quantize_row(x.data() + r * cols, cols, ActivationFormat::nvfp4, scale,
                                                          {.codes = codes.data(), .block_scales = blocks.data()});
        for (int64_t c = 0; c < cols; ++c) {
            const auto code = static_cast<uint8_t>(codes[static_cast<size_t>(c / 2)] >> (c % 2 * 4) & 0xF);
            used[static_cast<size_t>(r * cols + c)] =
                double{e2m1_to_float(code)} * e4m3_to_float(blocks[static_cast<size_t>(c / 16)]) * scale;
        }
    }
    ASSERT_EQ(std::ssize(sink.dw), outputs * cols);
    double apart = 0, size = 0, plain = 0;
    for (int64_t o = 0; o < outputs; ++o)
        for (int64_t c = 0; c < cols; ++c) {
            double want = 0, of_x = 0;
            for (int64_t r = 0; r < n; ++r) {
                const double g = dy[static_cast<size_t>(r * outputs + o)];
                want += g * used[static_cast<size_t>(r * cols + c)];
                of_x += g * x[static_cast<size_t>(r * cols + c)];
            }
            const double got = sink.dw[static_cast<size_t>(o * cols + c)];
            apart += (got - want) * (got - want), size += want * want, plain += (of_x - want) * (of_x - want);
        }
    EXPECT_LT(apart, 1e-10 * size);
    EXPECT_GT(plain, 1e-3 * size);
}

}  // namespace
}  // namespace nibble::test
