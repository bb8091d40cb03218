#include "kernels/elementwise.h"

#include "kernels/cpu/elementwise_rows.h"
#include "kernels/cpu/features.h"
#include "kernels/exp.h"
#include "kernels/ref/elementwise_ref.h"
#include "kernels/select.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace nibble {
namespace {

#if defined(__x86_64__)
// Adapts the functions of the vector files, which must not include enums or libm.
template <const cpu::ElementwiseRows& k>
constexpr ElementwiseKernels entry(std::string_view name, bool (*supported)()) {
    return {name,
            supported,
            [](const float* x, const float* w, int64_t n, float eps, bool bf16, float* y) {
                const float r = 1.0f / std::sqrt(k.sum_squares(x, n) / static_cast<float>(n) + eps);
                k.scale_rows(x, w, r, n, bf16, y);
            },
            [](const float* x, const float* w, const float* b, int64_t n, float eps, bool bf16, float* y) {
                const float mean = k.sum(x, n) / static_cast<float>(n);
                const float r = 1.0f / std::sqrt(k.sum_deviations(x, mean, n) / static_cast<float>(n) + eps);
                k.shift_rows(x, w, b, mean, r, n, bf16, y);
            },
            [](const float* x, int64_t n, bool bf16, float* y) { k.add(x, n, bf16, y); },
            [](Activation activation, const float* x, const float* up, int64_t n, bool bf16, float* y) {
                k.activate[static_cast<size_t>(activation)](x, up, n, bf16, y);
            },
            [](const float* g, const float* x, int64_t n, bool bf16, float* y) { k.gate(g, x, n, bf16, y); },
            [](const ClampedGlu& g, const float* x, const float* up, int64_t n, bool bf16, float* y) {
                k.clamped_glu(g.limit, g.alpha, g.up_offset, g.activation_first, x, up, n, bf16, y);
            },
            [](float* x, int64_t n, float cap, bool bf16) { k.soft_cap(x, n, cap, bf16); },
            [](float* x, int64_t heads, int64_t stride, const float* cos, const float* sin, int64_t dims,
               bool interleaved, bool bf16) { k.rope(x, heads, stride, cos, sin, dims, interleaved, bf16); },
            [](float* x, int64_t n) { k.round_bf16(x, n); },
            [](const float* x, int64_t n) { return k.first_nonfinite(x, n); },
            [](const float* x, int64_t n, float* y) {
                const float max = k.maximum(x, n);
                double total = 0;
                for (int64_t begin = 0; begin < n; begin += 4096)
                    total += k.sum_exp(x + begin, std::min<int64_t>(4096, n - begin), max);
                k.subtract(x, n, max, static_cast<float>(std::log(total)), y);
            }};
}
#endif

constexpr ElementwiseKernels entries[] = {
#if defined(__x86_64__)
    entry<cpu::elementwise_avx512>("avx512", cpu::has_avx512),
    entry<cpu::elementwise_avx2>("avx2", cpu::has_avx2),
#endif
    {"ref", cpu::always, ref::rms_norm, ref::layer_norm, ref::add, ref::activate, ref::gate, ref::clamped_glu,
     ref::soft_cap, ref::rope, ref::round_bf16, ref::first_nonfinite, ref::log_softmax},
};

}  // namespace

std::span<const ElementwiseKernels> elementwise_kernels() { return entries; }

Result<const ElementwiseKernels*> select_elementwise_kernels(std::string_view force) {
    return select_entry(elementwise_kernels(), "elementwise", force);
}

}  // namespace nibble
