#include "kernels/elementwise_backward.h"

#include "formats/nvfp4.h"
#include "kernels/cpu/features.h"
#include "kernels/cpu/gradient_rows.h"
#include "kernels/exp.h"
#include "kernels/select.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace nibble {
namespace {

struct Slope {
    float value, slope;
};

float sigmoid(float z) { return 1.0f / (1.0f + exp_f32(-z)); }

Slope slope(Activation activation, float x) {
    constexpr float c0 = 1.5957691216f, c1 = 0.0713548162726f, c1_3 = 0.2140644488178f;
    switch (activation) {
        case Activation::silu: {
            const float s = sigmoid(x);
            return {x * s, s * std::fma(x, 1.0f - s, 1.0f)};
        }
        case Activation::gelu_tanh: {
            const float square = x * x, s = sigmoid(x * std::fma(c1, square, c0)), value = x * s;
            return {value, std::fma(value * (1.0f - s), std::fma(c1_3, square, c0), s)};
        }
        case Activation::relu2: {
            const float positive = x > 0.0f || x != x ? x : 0.0f;
            return {positive * positive, positive + positive};
        }
    }
    return {};
}

void activate_ref(Activation activation, const float* x, const float* up, const float* dy, int64_t n, float* dx,
                  float* d_up) {
    for (int64_t j = 0; j < n; ++j) {
        const Slope a = slope(activation, x[j]);
        const float d = dy[j];
        if (up) d_up[j] = d * a.value;
        dx[j] = (up ? d * up[j] : d) * a.slope;
    }
}

void softmax_ref(const float* x, int64_t n, float* y) {
    float max = -std::numeric_limits<float>::infinity();
    for (int64_t j = 0; j < n; ++j) max = x[j] > max ? x[j] : max;
    double total = 0;
    for (int64_t begin = 0; begin < n; begin += 4096) {
        float lane[16] = {};
        for (int64_t j = begin; j < std::min(begin + 4096, n); ++j) lane[j % 16] += exp_f32(x[j] - max);
        total += sum16(lane);
    }
    for (int64_t j = 0; j < n; ++j) y[j] = exp_f32(x[j] - max) / static_cast<float>(total);
}

float dot_ref(const float* a, const float* b, int64_t n) {
    float lane[16] = {};
    for (int64_t j = 0; j < n; ++j) lane[j % 16] = std::fma(a[j], b[j], lane[j % 16]);
    return sum16(lane);
}

void softmax_backward_ref(const float* p, const float* dp, int64_t n, float scale, float* dx) {
    const float mean = dot_ref(p, dp, n);
    for (int64_t j = 0; j < n; ++j) dx[j] = p[j] * (dp[j] - mean) * scale;
}

void add_scaled_ref(float a, const float* x, int64_t n, float* y) {
    for (int64_t j = 0; j < n; ++j) y[j] = std::fma(a, x[j], y[j]);
}

#if defined(__x86_64__)
template <const cpu::GradientRows& k>
constexpr GradientKernels entry(std::string_view name, bool (*supported)()) {
    return {name,
            supported,
            [](Activation activation, const float* x, const float* up, const float* dy, int64_t n, float* dx,
               float* d_up) { k.activate[static_cast<size_t>(activation)](x, up, dy, n, dx, d_up); },
            [](const float* x, int64_t n, float* y) {
                const float max = k.maximum(x, n);
                double total = 0;
                for (int64_t begin = 0; begin < n; begin += 4096)
                    total += k.sum_exp(x + begin, std::min<int64_t>(4096, n - begin), max);
                k.exp_over(x, n, max, static_cast<float>(total), y);
            },
            [](const float* p, const float* dp, int64_t n, float scale, float* dx) {
                k.softmax_backward(p, dp, n, scale, dx);
            },
            [](float a, const float* x, int64_t n, float* y) { k.add_scaled(a, x, n, y); },
            [](const float* a, const float* b, int64_t n) { return k.dot(a, b, n); }};
}
#endif

constexpr GradientKernels entries[] = {
#if defined(__x86_64__)
    entry<cpu::gradient_avx512>("avx512", cpu::has_avx512),
    entry<cpu::gradient_avx2>("avx2", cpu::has_avx2),
#endif
    {"ref", cpu::always, activate_ref, softmax_ref, softmax_backward_ref, add_scaled_ref, dot_ref},
};

}  // namespace

std::span<const GradientKernels> gradient_kernels() { return entries; }

Result<const GradientKernels*> select_gradient_kernels(std::string_view force) {
    return select_entry(gradient_kernels(), "gradient", force);
}

}  // namespace nibble
