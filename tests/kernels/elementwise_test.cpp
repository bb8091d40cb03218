// Elementwise operations: the reference against libm in FP64, every entry against the reference bit for bit.
#include "kernels/elementwise.h"

#include "formats/minifloat.h"
#include "kernels/exp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace nibble {
namespace {

std::vector<float> numbers(size_t n, float scale, unsigned seed = 1) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> x(n);
    for (float& v : x) v = scale * normal(random);
    return x;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

const ElementwiseKernels& reference() { return elementwise_kernels().back(); }

TEST(Exp, IsWithinOneUlpAndAHalf) {
    for (float x = -87.3f; x < 88.7f; x += 0.00137f) {
        const double exact = std::exp(double{x});
        ASSERT_NEAR(exp_f32(x) / exact, 1.0, 1.2e-7) << x;
    }
    EXPECT_EQ(exp_f32(0.0f), 1.0f);
    EXPECT_EQ(exp_f32(-88.0f), 0.0f);
    EXPECT_EQ(exp_f32(-INFINITY), 0.0f);
    EXPECT_EQ(exp_f32(89.0f), INFINITY);
    EXPECT_TRUE(std::isnan(exp_f32(NAN)));
}

TEST(Elementwise, ReferenceEqualsTheFormulas) {
    const ElementwiseKernels& k = reference();
    const auto x = numbers(1000, 3), w = numbers(1000, 1, 2);
    std::vector<float> y(1000);
    k.rms_norm(x.data(), w.data(), 1000, 1e-5f, false, y.data());
    double sum = 0;
    for (const float v : x) sum += double{v} * v;
    for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(y[i], x[i] / std::sqrt(sum / 1000 + 1e-5) * w[i], 2e-6);
    double mean = 0, variance = 0;
    for (const float v : x) mean += double{v} / 1000;
    for (const float v : x) variance += (v - mean) * (v - mean) / 1000;
    for (const float* bias : {w.data(), static_cast<const float*>(nullptr)}) {
        k.layer_norm(x.data(), w.data(), bias, 1000, 1e-5f, false, y.data());
        for (size_t i = 0; i < x.size(); ++i)
            ASSERT_NEAR(y[i], (x[i] - mean) / std::sqrt(variance + 1e-5) * w[i] + (bias ? w[i] : 0), 4e-6);
    }
    for (const bool first : {false, true}) {
        k.clamped_glu({1.5f, 1.25f, 1.0f, first}, x.data(), w.data(), 1000, false, y.data());
        for (size_t i = 0; i < x.size(); ++i) {
            double h = first ? x[i] : std::min(1.5, double{x[i]});
            h /= 1 + std::exp(-1.25 * h);
            ASSERT_NEAR(y[i], (first ? std::min(h, 1.5) : h) * (std::clamp(double{w[i]}, -1.5, 1.5) + 1), 2e-6);
        }
    }
    for (const float cap : {0.5f, 4.0f, 50.0f}) {
        y = x;
        k.soft_cap(y.data(), 1000, cap, false);
        for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(y[i] / cap, std::tanh(double{x[i]} / cap), 1.5e-7);
    }
    k.activate(Activation::silu, x.data(), w.data(), 1000, false, y.data());
    for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(y[i], x[i] / (1 + std::exp(-double{x[i]})) * w[i], 4e-6);
    k.activate(Activation::gelu_tanh, x.data(), nullptr, 1000, false, y.data());
    for (size_t i = 0; i < x.size(); ++i) {
        const double v = x[i], u = std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v);
        ASSERT_NEAR(y[i], 0.5 * v * (1 + std::tanh(u)), 2e-6);
    }
    k.activate(Activation::relu2, x.data(), nullptr, 1000, false, y.data());
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], x[i] > 0 ? x[i] * x[i] : 0.0f);
    k.log_softmax(x.data(), 1000, y.data());
    double total = 0;
    for (const float v : x) total += std::exp(double{v});
    for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(y[i], x[i] - std::log(total), 2e-6);
}

TEST(Elementwise, RopeTurnsPairs) {
    for (const bool interleaved : {false, true}) {
        auto x = numbers(2 * 40, 1);
        const auto before = x;
        const std::vector<float> cos{0.5f, 1, 0, -1}, sin{0.25f, 0, 1, 0};
        reference().rope(x.data(), 2, 40, cos.data(), sin.data(), 8, interleaved, false);
        for (size_t i = 0; i < x.size(); ++i) {
            const size_t head = i / 40, d = i % 40;
            if (d >= 8) {
                ASSERT_EQ(x[i], before[i]);
                continue;
            }
            const size_t pair = interleaved ? d / 2 : d % 4;
            const bool second = interleaved ? d % 2 : d >= 4;
            const size_t one = head * 40 + (interleaved ? 2 * pair : pair), two = one + (interleaved ? 1 : 4);
            const double a = before[one], b = before[two];
            ASSERT_NEAR(x[i], second ? b * cos[pair] + a * sin[pair] : a * cos[pair] - b * sin[pair], 1e-6);
        }
    }
}

TEST(Elementwise, EveryEntryGivesTheBitsOfTheReference) {
    const ElementwiseKernels& ref = reference();
    for (const ElementwiseKernels& k : elementwise_kernels()) {
        if (!k.supported()) {
            std::printf("%s: skipped, this CPU lacks it\n", std::string(k.name).c_str());
            continue;
        }
        SCOPED_TRACE(k.name);
        for (const size_t n : {1u, 7u, 8u, 16u, 31u, 64u, 576u, 1000u, 4096u, 9001u})
            for (const float scale : {1e-3f, 1.0f, 30.0f, 1e18f})
                for (const bool bf16 : {false, true}) {
                    auto x = numbers(n, scale);
                    if (n > 64) x[5] = -0.0f, x[6] = 1e-39f, x[40] = NAN, x[41] = INFINITY, x[42] = -INFINITY;
                    const auto w = numbers(n, 1, 9);
                    const auto length = static_cast<int64_t>(n);
                    std::vector<float> a(n), b(n);
                    const auto compare = [&](const char* what, auto call) {
                        a = b = w;
                        call(ref, a), call(k, b);
                        // NaN payloads depend on the order of operands; only the position of NaN is compared.
                        for (size_t i = 0; i < n; ++i)
                            if (std::isnan(a[i]) && std::isnan(b[i])) a[i] = b[i] = 0;
                        ASSERT_TRUE(same_bits(a, b)) << what << " n " << n << " scale " << scale;
                    };
                    compare("rms_norm", [&](const ElementwiseKernels& e, std::vector<float>& y) {
                        e.rms_norm(x.data(), w.data(), length, 1e-6f, bf16, y.data());
                    });
                    for (const bool bias : {false, true})
                        compare("layer_norm", [&](const ElementwiseKernels& e, std::vector<float>& y) {
                            e.layer_norm(x.data(), w.data(), bias ? w.data() : nullptr, length, 1e-6f, bf16, y.data());
                        });
                    for (const ClampedGlu& glu : {ClampedGlu{1.5f, 1.702f, 1.0f}, ClampedGlu{2.0f, 1.0f, 0.0f, true}})
                        compare("clamped_glu", [&](const ElementwiseKernels& e, std::vector<float>& y) {
                            e.clamped_glu(glu, x.data(), w.data(), length, bf16, y.data());
                        });
                    compare("soft_cap", [&](const ElementwiseKernels& e, std::vector<float>& y) {
                        y = x;
                        e.soft_cap(y.data(), length, 4.0f, bf16);
                    });
                    compare("add", [&](const ElementwiseKernels& e, std::vector<float>& y) {
                        e.add(x.data(), length, bf16, y.data());
                    });
                    for (const Activation act : {Activation::silu, Activation::gelu_tanh, Activation::relu2})
                        for (const bool gated : {false, true})
                            compare("activate", [&](const ElementwiseKernels& e, std::vector<float>& y) {
                                e.activate(act, x.data(), gated ? w.data() : nullptr, length, bf16, y.data());
                            });
                    compare("gate", [&](const ElementwiseKernels& e, std::vector<float>& y) {
                        e.gate(x.data(), w.data(), length, bf16, y.data());
                    });
                    compare("round", [&](const ElementwiseKernels& e, std::vector<float>& y) {
                        y = x;
                        e.round_bf16(y.data(), length);
                    });
                    compare("log_softmax", [&](const ElementwiseKernels& e, std::vector<float>& y) {
                        e.log_softmax(x.data(), length, y.data());
                    });
                    compare("rope", [&](const ElementwiseKernels& e, std::vector<float>& y) {
                        y = x;
                        const int64_t dims = length / 2 * 2;
                        e.rope(y.data(), 1, length, w.data(), w.data() + dims / 2, dims, n % 2 == 0, bf16);
                    });
                    ASSERT_EQ(k.first_nonfinite(x.data(), length), ref.first_nonfinite(x.data(), length));
                }
    }
}

TEST(Elementwise, UnknownEntriesAreErrors) { EXPECT_FALSE(select_elementwise_kernels("mmx").ok()); }

}  // namespace
}  // namespace nibble
