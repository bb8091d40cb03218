#include "kernels/ref/elementwise_ref.h"

#include "formats/minifloat.h"
#include "formats/nvfp4.h"
#include "kernels/exp.h"
#include "kernels/soft_cap.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace nibble::ref {
namespace {

float rounded(float x, bool bf16) { return bf16 ? round_to_bf16(x) : x; }

float act(Activation activation, float x) {
    constexpr float c0 = 1.5957691216f, c1 = 0.0713548162726f;
    switch (activation) {
        case Activation::silu:
            return x / (1.0f + exp_f32(-x));
        case Activation::gelu_tanh:
            return x / (1.0f + exp_f32(-(x * std::fma(c1, x * x, c0))));
        case Activation::relu2:
            return x > 0.0f || x != x ? x * x : 0.0f;
    }
    return x;
}

}  // namespace

void rms_norm(const float* x, const float* w, int64_t n, float eps, bool bf16, float* y) {
    float lane[16] = {};
    for (int64_t j = 0; j < n; ++j) lane[j % 16] = std::fma(x[j], x[j], lane[j % 16]);
    const float r = 1.0f / std::sqrt(sum16(lane) / static_cast<float>(n) + eps);
    for (int64_t j = 0; j < n; ++j) y[j] = rounded((x[j] * r) * w[j], bf16);
}

void layer_norm(const float* x, const float* w, const float* b, int64_t n, float eps, bool bf16, float* y) {
    float sum[16] = {}, squares[16] = {};
    for (int64_t j = 0; j < n; ++j) sum[j % 16] += x[j];
    const float mean = sum16(sum) / static_cast<float>(n);
    for (int64_t j = 0; j < n; ++j) squares[j % 16] = std::fma(x[j] - mean, x[j] - mean, squares[j % 16]);
    const float r = 1.0f / std::sqrt(sum16(squares) / static_cast<float>(n) + eps);
    for (int64_t j = 0; j < n; ++j) y[j] = rounded(std::fma((x[j] - mean) * r, w[j], b ? b[j] : 0.0f), bf16);
}

void add(const float* x, int64_t n, bool bf16, float* y) {
    for (int64_t j = 0; j < n; ++j) y[j] = rounded(y[j] + x[j], bf16);
}

void activate(Activation activation, const float* x, const float* up, int64_t n, bool bf16, float* y) {
    for (int64_t j = 0; j < n; ++j) {
        const float a = act(activation, x[j]);
        y[j] = rounded(up ? a * up[j] : a, bf16);
    }
}

void gate(const float* g, const float* x, int64_t n, bool bf16, float* y) {
    for (int64_t j = 0; j < n; ++j) y[j] = rounded(x[j] / (1.0f + exp_f32(-g[j])), bf16);
}

void clamped_glu(const ClampedGlu& glu, const float* x, const float* up, int64_t n, bool bf16, float* y) {
    const auto at_most = [&](float v) { return glu.limit < v ? glu.limit : v; };  // NaN stays NaN
    for (int64_t j = 0; j < n; ++j) {
        const float h = glu.activation_first ? x[j] : at_most(x[j]);
        float a = h / (1.0f + exp_f32(-glu.alpha * h));
        if (glu.activation_first) a = at_most(a);
        const float bounded = at_most(up[j]);
        y[j] = rounded(a * ((bounded < -glu.limit ? -glu.limit : bounded) + glu.up_offset), bf16);
    }
}

void soft_cap(float* x, int64_t n, float cap, bool bf16) {
    for (int64_t j = 0; j < n; ++j) x[j] = rounded(soft_cap_f32(x[j], cap), bf16);
}

void rope(float* x, int64_t heads, int64_t stride, const float* cos, const float* sin, int64_t dims, bool interleaved,
          bool bf16) {
    const int64_t half = dims / 2;
    for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < half; ++i) {
            float* first = x + h * stride + (interleaved ? 2 * i : i);
            float* second = interleaved ? first + 1 : first + half;
            const float a = *first, b = *second;
            *first = rounded(std::fma(a, cos[i], -(b * sin[i])), bf16);
            *second = rounded(std::fma(b, cos[i], a * sin[i]), bf16);
        }
}

void round_bf16(float* x, int64_t n) {
    for (int64_t j = 0; j < n; ++j) x[j] = round_to_bf16(x[j]);
}

int64_t first_nonfinite(const float* x, int64_t n) {
    for (int64_t j = 0; j < n; ++j)
        if (!is_finite(x[j])) return j;
    return -1;
}

void log_softmax(const float* x, int64_t n, float* y) {
    float max = -std::numeric_limits<float>::infinity();
    for (int64_t j = 0; j < n; ++j) max = x[j] > max ? x[j] : max;
    double total = 0;
    for (int64_t begin = 0; begin < n; begin += 4096) {
        float lane[16] = {};
        for (int64_t j = begin; j < std::min(begin + 4096, n); ++j) lane[j % 16] += exp_f32(x[j] - max);
        total += sum16(lane);
    }
    const float log = static_cast<float>(std::log(total));
    for (int64_t j = 0; j < n; ++j) y[j] = (x[j] - max) - log;
}

}  // namespace nibble::ref
