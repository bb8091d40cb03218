// Tests the formulas of training operands against golden vectors of TransformerEngine (computed without this code, IEEE
// arithmetic, no contraction), and properties that hold for any input.
#include "train/train_cast.h"

#include "formats/stochastic.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace nibble::test {
namespace {

constexpr float nv_largest = 2688, nv_largest_256 = 1536;

std::vector<float> golden_block() {
    std::vector<float> x;
    for (int i = 0; i < 16; ++i) x.push_back(static_cast<float>(i - 7) * 0.3125f);
    return x;
}

std::string codes_of(const std::vector<float>& x, uint8_t scale, NvScale tensor) {
    std::string text;
    for (const float v : x) text += fmt::format("{:x}", e2m1_from_float(v * nv_element_scale(scale, tensor)));
    return text;
}

TEST(NvCast, GoldenBlocksOfTransformerEngine) {
    struct Row {
        float t, encode;
        uint8_t scale;
        float element;
    };
    for (const Row& want : {Row{2.5f, 1075.19995f, 0x7E, 2.39999986f}, Row{10.0f, 268.799988f, 0x6E, 2.39999986f},
                            Row{1000.0f, 2.68799996f, 0x39, 2.38933325f}}) {
        const NvScale tensor = nv_tensor_scale(want.t, nv_largest);
        EXPECT_EQ(tensor.encode, want.encode);
        EXPECT_EQ(nv_block_scale(2.5f, tensor), want.scale);
        EXPECT_EQ(nv_element_scale(want.scale, tensor), want.element);
        EXPECT_EQ(codes_of(golden_block(), want.scale, tensor), "feedcb9013456677");
    }
}

TEST(NvCast, GoldenStochasticRow) {
    const NvScale tensor = nv_tensor_scale(10, nv_largest);
    const std::vector<float> want{-4, -4, -4, -3, -2, -1.5f, -1, 0, 0.5f, 1.5f, 2, 3, 4, 6, 4, 6}, x = golden_block();
    for (size_t i = 0; i < 16; ++i) {
        const float y = x[i] * nv_element_scale(0x6E, tensor);
        EXPECT_EQ(e2m1_to_float(e2m1_stochastic_byte(y, static_cast<uint8_t>(37 * i + 11))), want[i]) << i;
    }
    for (const auto& [value, first] : {std::pair{0.3f, 103}, {1.9f, 52}, {2.75f, 64}, {4.5f, 192}, {5.5f, 64}})
        for (int byte = 0; byte < 256; ++byte) {
            const bool up = e2m1_to_float(e2m1_stochastic_byte(value, static_cast<uint8_t>(byte))) > value;
            EXPECT_EQ(up, byte >= first) << value << " " << byte;
        }
}

TEST(NvCast, GoldenFourOverSix) {
    for (const float t : {10.0f, 2.5f}) {
        const NvScale tensor = nv_tensor_scale(t, nv_largest_256);
        const uint8_t six = nv_factor_scale(2.5f, 1.0f, tensor), four = nv_factor_scale(2.5f, 1.5f, tensor);
        EXPECT_EQ(six, t == 10 ? 0x68 : 0x78);
        EXPECT_EQ(four, t == 10 ? 0x6C : 0x7C);
        EXPECT_EQ(codes_of(golden_block(), six, tensor), "feedcba023456677");
        EXPECT_EQ(codes_of(golden_block(), four, tensor), "edccba9012344566");
    }
    const NvScale wide = nv_tensor_scale(2.5f, nv_largest);
    EXPECT_EQ(nv_factor_scale(2.5f, 1.0f, wide), 0x7E);
    EXPECT_EQ(nv_factor_scale(2.5f, 1.5f, wide), 0x7E);
}

TEST(NvCast, GoldenRotation) {
    float unit[16] = {}, ramp[16];
    unit[3] = 1;
    for (int i = 0; i < 16; ++i) ramp[i] = static_cast<float>(i);
    hadamard16(unit, rotation_signs);
    hadamard16(ramp, rotation_signs);
    const float want_unit[16] = {-.25f, .25f, .25f, -.25f, -.25f, .25f, .25f, -.25f,
                                 -.25f, .25f, .25f, -.25f, -.25f, .25f, .25f, -.25f};
    const float want_ramp[16] = {-14.5f, -7.5f, 6.5f, -0.5f, 6.5f, -0.5f, -14.5f, 8.5f,
                                 7.5f,   14.5f, 0.5f, 1.5f,  0.5f, -2.5f, 9.5f,   -15.5f};
    for (int i = 0; i < 16; ++i) {
        EXPECT_EQ(unit[i], want_unit[i]) << i;
        EXPECT_EQ(ramp[i], want_ramp[i]) << i;
    }
}

TEST(Fp8Cast, GoldenScales) {
    EXPECT_EQ(std::bit_cast<uint32_t>(fp8_current_scale(2.5f, 448)), 0x43333333u);
    EXPECT_EQ(fp8_power_of_two(fp8_current_scale(2.5f, 448)), 128.0f);
    EXPECT_EQ(mx_scale_up(2.5f), 120);
    EXPECT_EQ(fp8_current_scale(0, 448), 1.0f);
    EXPECT_EQ(fp8_current_scale(INFINITY, 448), 1.0f);
    EXPECT_EQ(mx_scale_up(0), 0);
    EXPECT_EQ(mx_scale_up(NAN), 255);
    EXPECT_EQ(mx_scale_up(INFINITY), 254);
    EXPECT_EQ(mx_scale_up(448.0f), 127);
    EXPECT_EQ(mx_scale_up(449.0f), 128);
}

// Over all bytes, every value rounds to a neighbour on the grid, and on average floor(256 f) / 256 of the way up.
TEST(NvCast, StochasticRoundingIsExactOnAverage) {
    for (int i = 0; i < 6 * 512; ++i) {
        const float a = static_cast<float>(i) / 512;
        const float step = a < 2 ? 0.5f : a < 4 ? 1.0f : 2.0f;
        const float low = std::floor(a / step) * step, high = low + step;
        double sum = 0;
        for (int byte = 0; byte < 256; ++byte) {
            const float up = e2m1_to_float(e2m1_stochastic_byte(a, static_cast<uint8_t>(byte)));
            EXPECT_TRUE(up == low || up == high) << a;
            EXPECT_EQ(e2m1_to_float(e2m1_stochastic_byte(-a, static_cast<uint8_t>(byte))), -up);
            sum += up;
        }
        EXPECT_EQ(sum / 256, low + std::floor(256 * double((a - low) / step)) / 256 * step) << a;
    }
    EXPECT_EQ(e2m1_to_float(e2m1_stochastic_byte(7, 0)), 6.0f);
    EXPECT_EQ(e2m1_stochastic_byte(NAN, 0), 7);
}

std::vector<float> normal_values(int64_t n, uint32_t seed, bool heavy = false) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> x;
    for (int64_t i = 0; i < n; ++i) {
        const float v = normal(random);
        x.push_back(round_to_bf16(heavy ? v * v * v : v));
    }
    return x;
}

struct Quality {
    double error = 0, gain = 0;  // sum (q - x)^2 / sum x^2, <x, q> / <x, x>
};

// Returns the quality of an operand of unrotated values.
Quality quality(const std::vector<float>& x, const CastOperand& o) {
    double error = 0, dot = 0, squares = 0;
    for (int64_t r = 0; r < o.rows; ++r)
        for (int64_t c = 0; c < o.cols; ++c) {
            const auto i = static_cast<size_t>(r * o.cols + c);
            double q = double{o.values[i]} * o.scale[o.scale.size() > 1 ? static_cast<size_t>(r) : 0] / o.divisor;
            if (!o.block_scales.empty()) q *= o.block_scales[static_cast<size_t>(r * (o.cols / 128) + c / 128)];
            error += (q - x[i]) * (q - x[i]);
            dot += q * x[i];
            squares += double{x[i]} * x[i];
        }
    return {error / squares, dot / squares};
}

TEST(NvCast, ErrorsAreThoseOfTheReference) {
    // Reference values for 1024 x 1024 normal numbers, computed by another program.
    ThreadPool pool(2);
    const std::vector<float> x = normal_values(512 * 1024, 1);
    const auto cast = [&](const CastRule& rule) {
        return quality(x, cast_rows(x.data(), 512, 1024, 1024, rule, {.id = 1, .outer_step = 64}, {}, pool));
    };
    const auto near = [](const Quality& q, double error, double gain) {
        EXPECT_NEAR(q.error, error, 0.012 * error);
        EXPECT_NEAR(q.gain, gain, 0.0012);
    };
    near(cast({.format = CastFormat::nvfp4}), 9.05e-3, 0.9951);
    near(cast({.format = CastFormat::nvfp4, .square = true}), 1.237e-2, 0.9908);
    near(cast({.format = CastFormat::nvfp4, .four_over_six = true}), 7.55e-3, 0.9967);
    near(cast({.format = CastFormat::nvfp4, .stochastic = true}), 1.883e-2, 0.9960);
    near(cast({.format = CastFormat::mxfp8}), 7.11e-4, 0.9991);
    near(cast({.format = CastFormat::fp8}), 6.99e-4, 0.9989);
}

TEST(NvCast, InvariantsOfTheFormat) {
    ThreadPool pool(2);
    const std::vector<float> x = normal_values(48 * 64, 3, true);
    const CastRule one{.format = CastFormat::nvfp4}, square{.format = CastFormat::nvfp4, .square = true};
    const CastOperand rows = cast_rows(x.data(), 48, 64, 64, one, {}, {}, pool);
    // Square blocks: the codes of the transpose are the transposed codes.
    std::vector<float> x_t(x.size());
    for (size_t r = 0; r < 48; ++r)
        for (size_t c = 0; c < 64; ++c) x_t[c * 48 + r] = x[r * 64 + c];
    const CastOperand w = cast_rows(x.data(), 48, 64, 64, square, {}, {}, pool);
    const CastOperand w_t = cast_rows(x_t.data(), 64, 48, 48, square, {}, {}, pool);
    EXPECT_EQ(transposed_cast(w, 64, pool).values, w_t.values);
    EXPECT_EQ(w.scale, w_t.scale);
    EXPECT_NE(w.values, rows.values);
    // Scaling by a power of two and a change of sign do not change the codes otherwise.
    std::vector<float> scaled = x, negated = x;
    for (float& v : scaled) v *= 64;
    for (float& v : negated) v = -v;
    const CastOperand big = cast_rows(scaled.data(), 48, 64, 64, one, {}, {}, pool);
    EXPECT_EQ(big.values, rows.values);
    EXPECT_EQ(big.scale[0], 64 * rows.scale[0]);
    const CastOperand minus = cast_rows(negated.data(), 48, 64, 64, one, {}, {}, pool);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(minus.values[i], -rows.values[i]);
    std::vector<float> zeros(48 * 64);
    const CastOperand none = cast_rows(zeros.data(), 48, 64, 64, one, {}, {}, pool);
    EXPECT_EQ(none.values, zeros);
    EXPECT_EQ(none.amax, 0);
    for (const float largest : {FLT_MIN, 1e-20f, 1e20f, 3e38f}) {
        std::vector<float> extreme(16);
        extreme[3] = round_to_bf16(largest);
        extreme[4] = round_to_bf16(-largest / 7);
        const CastOperand o = cast_rows(extreme.data(), 1, 16, 16, one, {}, {}, pool);
        for (const float v : o.values) EXPECT_TRUE(is_finite(v)) << largest;
    }
    // The scale of a row depends only on the row; the scale of a tensor does not.
    const CastRule by_row{.format = CastFormat::nvfp4, .row_scaled = true};
    const CastOperand alone = cast_rows(x.data(), 1, 64, 64, by_row, {}, {}, pool);
    const CastOperand together = cast_rows(x.data(), 48, 64, 64, by_row, {}, {}, pool);
    EXPECT_TRUE(std::equal(alone.values.begin(), alone.values.end(), together.values.begin()));
    EXPECT_EQ(alone.scale[0], together.scale[0]);
}

TEST(NvCast, DrawsDependOnTheirKeyAndNotOnThreads) {
    ThreadPool one(1), three(3);
    const std::vector<float> x = normal_values(64 * 64, 5);
    const CastRule rule{.format = CastFormat::nvfp4, .rotate = true, .stochastic = true};
    const auto values = [&](uint32_t id, uint64_t draw, ThreadPool& pool) {
        return cast_rows(x.data(), 64, 64, 64, rule, {.id = id, .draw = draw, .outer_step = 4}, {}, pool).values;
    };
    EXPECT_EQ(values(9, 7, one), values(9, 7, three));
    EXPECT_NE(values(9, 7, one), values(10, 7, one));
    EXPECT_NE(values(9, 7, one), values(9, 8, one));
    EXPECT_NE(values(9, 7, one), values(9, 7 + (uint64_t{1} << 32), one));
    // A row has the random numbers of its place in the step, whatever it is computed with.
    const PhiloxBlock a = CastRandom{.id = 3, .draw = 5, .first_outer = 32, .outer_step = 4}.block(1, 2);
    const PhiloxBlock b = CastRandom{.id = 3, .draw = 5, .outer_step = 4}.block(33, 2);
    EXPECT_TRUE(std::equal(a.word, a.word + 4, b.word));
}

}  // namespace
}  // namespace nibble::test
