#include "kernels/ssm.h"

#include "formats/minifloat.h"
#include "formats/stochastic.h"
#include "kernels/cpu/features.h"
#include "kernels/select.h"

#include <cmath>
#include <cstring>
#include <vector>

namespace nibble {
namespace {

int padded(int head_dim) { return (head_dim + 15) / 16 * 16; }

void scan_ref(const SsmHead& h) {
    const int row = padded(h.head_dim);
    for (int64_t t = 0; t < h.tokens; ++t)
        for (int p = 0; p < h.head_dim; ++p) {
            const float x = h.x[t * h.stride + p], decay = h.decay[t * h.dt_stride];
            const float u = h.dt[t * h.dt_stride] * x;
            float acc = 0.0f;
            for (int s = 0; s < h.state_size; ++s) {
                float& state = h.state[s * row + p];
                const float kept = decay * state;
                state = std::fma(u, h.b[t * h.stride + s], kept);
                acc = std::fma(state, h.c[t * h.stride + s], acc);
            }
            h.y[t * h.y_stride + p] = std::fma(h.d, x, acc);
        }
}

void convolve_ref(const float* const* taps, int conv, const float* weight, const float* bias, int64_t channels,
                  float* out) {
    for (int64_t c = 0; c < channels; ++c) {
        float acc = bias[c];
        for (int j = 0; j < conv; ++j) acc = std::fma(weight[j * channels + c], taps[j][c], acc);
        out[c] = acc;
    }
}

void round_ref(const SsmNarrow& n) {
    const PhiloxStream stream{n.seed, n.role};
    for (int64_t i = 0; i < n.count; ++i) {
        if (n.fp16 && !n.stochastic) {
            n.stored[i] = fp16_from_float(n.state[i]);
            n.state[i] = fp16_to_float(n.stored[i]);
        } else if (n.fp16) {
            const PhiloxBlock draw = stream.block(n.block + static_cast<uint64_t>(i / 128 * 16 + i % 16));
            const int64_t part = i / 16 % 8;
            n.stored[i] = fp16_stochastic(n.state[i], draw.word[part / 2] >> (part % 2 * 16) & 0xFFFFu);
            n.state[i] = fp16_to_float(n.stored[i]);
        } else {
            n.stored[i] = bf16_from_float(n.state[i]);
            n.state[i] = bf16_to_float(n.stored[i]);
        }
    }
}

void widen_ref(const SsmNarrow& n) {
    for (int64_t i = 0; i < n.count; ++i) n.state[i] = n.fp16 ? fp16_to_float(n.stored[i]) : bf16_to_float(n.stored[i]);
}

}  // namespace

int64_t ssm_state_elements(int heads, int head_dim, int state_size) {
    return int64_t{heads} * state_size * padded(head_dim);
}

void ssm_scan(const SsmKernels& kernels, const SsmScan& scan, std::byte* state, ThreadPool& pool) {
    const int64_t count = int64_t{scan.state_size} * padded(scan.head_dim);
    pool.parallel_for(scan.heads, [&](int64_t h) {
        const int64_t g = h / (scan.heads / scan.groups);
        SsmHead head{.x = scan.x + h * scan.head_dim,
                     .b = scan.b + g * scan.state_size,
                     .c = scan.c + g * scan.state_size,
                     .stride = scan.stride,
                     .decay = scan.decay + h,
                     .dt = scan.dt + h,
                     .dt_stride = scan.heads,
                     .d = scan.d[h],
                     .state = nullptr,
                     .y = scan.y + h * scan.head_dim,
                     .y_stride = int64_t{scan.heads} * scan.head_dim,
                     .tokens = scan.tokens,
                     .head_dim = scan.head_dim,
                     .state_size = scan.state_size};
        if (scan.format == SsmStateFormat::f32) {
            head.state = reinterpret_cast<float*>(state) + h * count;
            kernels.scan(head);
            return;
        }
        std::vector<float> wide(static_cast<size_t>(count));
        const uint64_t draws = static_cast<uint64_t>(count + 127) / 128 * 16;  // per head and token
        SsmNarrow narrow{.state = wide.data(),
                         .stored = reinterpret_cast<uint16_t*>(state) + h * count,
                         .count = count,
                         .fp16 = scan.format != SsmStateFormat::bf16,
                         .stochastic = scan.format == SsmStateFormat::fp16_stochastic,
                         .seed = scan.stream.seed,
                         .role = scan.stream.role};
        kernels.widen(narrow);
        head.state = wide.data();
        head.tokens = 1;
        for (int64_t t = 0; t < scan.tokens; ++t) {
            kernels.scan(head);
            narrow.block = (static_cast<uint64_t>(scan.position + t) * static_cast<uint64_t>(scan.heads) +
                            static_cast<uint64_t>(h)) *
                           draws;
            kernels.round(narrow);
            head.x += head.stride;
            head.b += head.stride;
            head.c += head.stride;
            head.decay += head.dt_stride;
            head.dt += head.dt_stride;
            head.y += head.y_stride;
        }
    });
}

namespace {

constexpr SsmKernels entries[] = {
#if defined(__x86_64__)
    {"avx512", cpu::has_avx512, cpu::ssm_scan_avx512, cpu::ssm_convolve_avx512, cpu::ssm_round_avx512,
     cpu::ssm_widen_avx512},
    {"avx2", cpu::has_avx2, cpu::ssm_scan_avx2, cpu::ssm_convolve_avx2, cpu::ssm_round_avx2, cpu::ssm_widen_avx2},
#endif
    {"ref", cpu::always, scan_ref, convolve_ref, round_ref, widen_ref},
};

}  // namespace

std::span<const SsmKernels> ssm_kernels() { return entries; }

Result<const SsmKernels*> select_ssm_kernels(std::string_view force) {
    return select_entry(ssm_kernels(), "ssm", force);
}

}  // namespace nibble
