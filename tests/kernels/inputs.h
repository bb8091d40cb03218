// Designed inputs, named by what a kernel could get wrong.
#pragma once

#include "kernels/matrices.h"

#include <functional>
#include <random>
#include <string>

namespace nibble::test {

struct Input {
    std::string name;
    std::function<float(std::mt19937&, int64_t row, int64_t col)> value;
};

inline float uniform(std::mt19937& r, float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(r);
}
inline float bell(std::mt19937& r) { return std::normal_distribution<float>()(r); }
inline int pick(std::mt19937& r, int n) { return static_cast<int>(r() % static_cast<unsigned>(n)); }

inline std::vector<Input> designed_inputs() {
    using R = std::mt19937;
    return {
        {"bell", [](R& r, int64_t, int64_t) { return 0.02f * bell(r); }},
        {"heavy tails", [](R& r, int64_t, int64_t) { return 0.01f * bell(r) / (0.05f + std::fabs(bell(r))); }},
        {"few mantissas", [](R& r, int64_t, int64_t) { return std::ldexp(float(pick(r, 17) - 8), pick(r, 5) - 6); }},
        {"on the E2M1 grid of one scale",
         [](R& r, int64_t, int64_t) { return 0.0078125f * e2m1_to_float(static_cast<uint8_t>(pick(r, 16))); }},
        {"midpoints of E2M1 beside a 6",
         [](R& r, int64_t, int64_t col) {
             constexpr float mid[] = {.25f, .75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
             return col % 16 == 0 ? 6.0f : mid[pick(r, 7)] * (pick(r, 2) ? 1.0f : -1.0f);
         }},
        {"one value per block", [](R& r, int64_t, int64_t col) { return col % 16 == 5 ? bell(r) : 0.0f; }},
        {"equal magnitudes",
         [](R& r, int64_t row, int64_t) { return (pick(r, 2) ? 1.0f : -1.0f) * float(row + 1) / 3.0f; }},
        {"blocks of any size",
         [](R& r, int64_t row, int64_t col) { return std::ldexp(bell(r), -int((row * 7 + col / 16 * 3) % 40)); }},
        {"zeros of both signs and zero blocks",
         [](R& r, int64_t, int64_t col) {
             return col / 16 % 3 == 0 ? (pick(r, 2) ? 0.0f : -0.0f) : pick(r, 3) ? bell(r) : -0.0f;
         }},
        {"all zero", [](R&, int64_t, int64_t) { return 0.0f; }},
        {"subnormal", [](R& r, int64_t, int64_t) { return std::ldexp(bell(r), -128); }},
        {"tiny", [](R& r, int64_t, int64_t) { return std::ldexp(bell(r), -100); }},
        {"huge", [](R& r, int64_t, int64_t) { return std::ldexp(uniform(r, -1.f, 1.f), 127); }},
        {"huge beside tiny", [](R& r, int64_t, int64_t) { return std::ldexp(bell(r), pick(r, 2) ? 120 : -120); }},
        {"any finite BF16",
         [](R& r, int64_t, int64_t) {
             for (;;)
                 if (const float x = bf16_to_float(static_cast<uint16_t>(r())); is_finite(x)) return x;
         }},
        {"powers of two",
         [](R& r, int64_t, int64_t) { return std::ldexp(pick(r, 2) ? 1.0f : -1.0f, pick(r, 24) - 20); }},
    };
}

inline Matrix make_matrix(const Input& input, DType dtype, int64_t rows, int64_t cols, uint32_t seed) {
    std::mt19937 random(seed);
    Matrix m(dtype, rows, cols);
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < cols; ++j) {
            const float x = input.value(random, i, j);
            const int64_t at = i * cols + j;
            if (dtype == DType::f32) {
                std::memcpy(m.data.data() + 4 * at, &x, 4);
            } else {
                const uint16_t code = bf16_from_float(x);
                std::memcpy(m.data.data() + 2 * at, &code, 2);
            }
        }
    }
    return m;
}

// Every format and search that check() accepts in both profiles.
inline std::vector<WeightSpec> all_specs() {
    std::vector<WeightSpec> specs;
    const Search wide{Search::Kind::multipliers, 0.25f, 4.0f, 0.1f};
    for (Arithmetic a : {Arithmetic::reciprocal, Arithmetic::true_division}) {
        for (Format f : all_formats()) specs.push_back({f, false, 448, {}, a});
        for (Format f : {Format::fp8_row, Format::fp8_block128})
            for (const Search& s : {four_over_six, wide}) specs.push_back({f, false, 448, s, a});
        for (float m : {448.0f, 256.0f})
            for (const Search& s : {Search{}, four_over_six, wide}) specs.push_back({Format::nvfp4, true, m, s, a});
        specs.push_back({Format::nvfp4, true, 448, sweep, a});
    }
    return specs;
}

}  // namespace nibble::test
