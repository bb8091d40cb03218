#include "train/train_self_test.h"

#include "train/train_cast.h"
#include "train/train_eden.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace nibble {
namespace {

constexpr int64_t tested_rows = 64, tested_cols = 256;

// Compares mean and variance of 16,384 roundings of one value with those of a random choice.
Status test_rounding(uint64_t seed, ThreadPool& pool) {
    for (const float value : {0.1f, 0.3f, 1.7f, 2.75f, 4.5f}) {
        // A 6 in every block keeps the scales at 1.
        std::vector<float> x(static_cast<size_t>(tested_rows * tested_cols), round_to_bf16(value));
        for (size_t i = 0; i < x.size(); i += 16) x[i] = 6;
        const CastOperand o = cast_rows(x.data(), tested_rows, tested_cols, tested_cols,
                                        {.format = CastFormat::nvfp4, .stochastic = true},
                                        {.id = 1, .draw = seed << 20, .outer_step = tested_cols / 16}, {}, pool);
        const float unit = o.scale[0] / o.divisor, v = round_to_bf16(value);
        std::vector<double> rounded;
        for (size_t i = 0; i < x.size(); ++i)
            if (i % 16 != 0) rounded.push_back(double{o.values[i]} * unit);
        NIBBLE_CHECK(check_roundings(v, rounded));
    }
    return Ok{};
}

Status test_draws(uint64_t seed) {
    const CastRandom one{.id = 9, .draw = seed << 20};
    const auto same = [](const PhiloxBlock& a, const PhiloxBlock& b) { return std::equal(a.word, a.word + 4, b.word); };
    const CastRandom role{.id = 10, .draw = one.draw}, step{.id = 9, .draw = one.draw + 1};
    if (same(one.block(0, 0), role.block(0, 0)) || same(one.block(0, 0), step.block(0, 0)) ||
        same(one.block(0, 0), one.block(1, 0)) || !same(one.block(3, 0), one.block(3, 0)))
        return fail("self-test: random numbers of two roles, steps or elements are equal");
    return Ok{};
}

// Checks that a gradient of ordinary size has nonzero codes and keeps its mean.
Status test_gradients(const TrainPrecision& p, uint64_t seed, ThreadPool& pool) {
    std::vector<float> x;
    for (int64_t i = 0; i < tested_rows * tested_cols; ++i)
        x.push_back(round_to_bf16(1e-6f * std::sin(static_cast<float>(i % 1009) * 0.7f)));
    const CastRandom draws{.id = 1, .draw = seed << 20, .outer_step = tested_cols / 16};
    const CastRandom signs{.id = 5, .draw = seed << 20};
    CastOperand o;
    if (p.recipe == TrainRecipe::nibble_nvfp4 && p.eden)
        o = eden_rows(x.data(), tested_rows, tested_cols, tested_cols, draws, signs, 0, pool);
    else
        o = cast_rows(x.data(), tested_rows, tested_cols, tested_cols,
                      {.format = CastFormat::nvfp4, .rotate = p.rotate, .stochastic = p.stochastic}, draws, {}, pool);
    return check_codes(o.values);
}

}  // namespace

Status check_roundings(float value, std::span<const double> rounded) {
    const double v = value, step = v < 2 ? 0.5 : v < 4 ? 1.0 : 2.0, up = v / step - std::floor(v / step);
    double sum = 0, squares = 0;
    for (const double q : rounded) sum += q, squares += q * q;
    const auto count = static_cast<double>(rounded.size());
    const double mean = sum / count, variance = squares / count - mean * mean;
    const double spread = step * std::sqrt(up * (1 - up));
    // Tolerance: five deviations of the mean, plus the bias of at most 1 / 256 of a step that eight random bits have.
    if (!(std::abs(mean - v) <= 5 * spread / std::sqrt(count) + step / 256 + 1e-4))
        return fail("self-test: stochastic rounding of {} has the mean {}", v, mean);
    if (!(std::abs(variance - spread * spread) <= 0.1 * step * step))
        return fail("self-test: stochastic rounding of {} has the variance {} instead of {}", v, variance,
                    spread * spread);
    return Ok{};
}

Status check_codes(std::span<const float> codes) {
    const auto zeros = std::ranges::count(codes, 0.0f);
    if (zeros * 2 > std::ssize(codes))
        return fail("self-test: {} of {} quantized gradients are zero", zeros, codes.size());
    return Ok{};
}

Status train_self_test(const TrainPrecision& p, uint64_t seed) {
    if (p.recipe != TrainRecipe::nvfp4 && p.recipe != TrainRecipe::nibble_nvfp4) return Ok{};
    if (p.passes == TrainPasses::forward) return Ok{};  // no random numbers are drawn
    ThreadPool pool(1);
    if (p.stochastic) NIBBLE_CHECK(test_rounding(seed, pool));
    NIBBLE_CHECK(test_draws(seed));
    return test_gradients(p, seed, pool);
}

}  // namespace nibble
