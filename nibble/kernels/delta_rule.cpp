#include "kernels/delta_rule.h"

#include "kernels/cpu/features.h"
#include "kernels/select.h"

#include <cmath>

namespace nibble {
namespace {

constexpr int run = 16;  // columns of a state that lie together

void rule_ref(const DeltaHead& h) {
    for (int p = 0; p < h.value_dim; ++p) {
        float* state = h.state + int64_t{p / run} * h.key_dim * run + p % run;
        for (int64_t t = 0; t < h.tokens; ++t) {
            const float *q = h.q + t * h.key_stride, *k = h.k + t * h.key_stride, *d = h.decay + t * h.decay_stride;
            float a[4] = {}, b[4] = {};
            for (int i = 0; i < h.key_dim; ++i) {
                float& s = state[int64_t{i} * run];
                s = d[h.decay_by_channel ? i : 0] * s;
                a[i % 4] = std::fma(k[i], s, a[i % 4]);
            }
            const float read = (a[0] + a[1]) + (a[2] + a[3]);
            const float u = h.beta[t * h.beta_stride] * (h.v[t * h.value_stride + p] - read);
            for (int i = 0; i < h.key_dim; ++i) {
                float& s = state[int64_t{i} * run];
                s = std::fma(k[i], u, s);
                b[i % 4] = std::fma(q[i], s, b[i % 4]);
            }
            h.y[t * h.y_stride + p] = (b[0] + b[1]) + (b[2] + b[3]);
        }
    }
}

constexpr DeltaKernels entries[] = {
#if defined(__x86_64__)
    {"avx512", cpu::has_avx512, cpu::delta_rule_avx512},
    {"avx2", cpu::has_avx2, cpu::delta_rule_avx2},
#endif
    {"ref", cpu::always, rule_ref},
};

}  // namespace

std::span<const DeltaKernels> delta_kernels() { return entries; }

Result<const DeltaKernels*> select_delta_kernels(std::string_view force) {
    return select_entry(delta_kernels(), "delta rule", force);
}

int64_t delta_state_elements(int key_dim, int value_dim) {
    return int64_t{(value_dim + run - 1) / run} * run * key_dim;
}

void delta_rule(const DeltaKernels& kernels, std::span<const DeltaHead> heads, ThreadPool& pool) {
    pool.parallel_for(std::ssize(heads), [&](int64_t i) { kernels.rule(heads[static_cast<size_t>(i)]); });
}

}  // namespace nibble
