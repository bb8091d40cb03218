// cuda::delta_step() on a CPU: GatedDelta::forward between its products in BF16, with the plain kernels of the CPU.
#pragma once

#include "formats/minifloat.h"
#include "kernels/delta_rule.h"
#include "kernels/delta_rule_cuda.h"
#include "kernels/elementwise.h"
#include "kernels/exp.h"
#include "kernels/ssm.h"

#include <cmath>
#include <vector>

namespace nibble::bench {

class DeltaReference {
public:
    // All pointers of the step are host pointers; the workspace is not used.
    static Status run(const cuda::DeltaStep& step) {
        DeltaReference r(step);
        NIBBLE_TRY(r.elements_, select_elementwise_kernels("ref"));
        NIBBLE_TRY(r.convolution_, select_ssm_kernels("ref"));
        NIBBLE_TRY(r.rule_, select_delta_kernels("ref"));
        for (int i = 0; i < step.segments; ++i) r.run(step.list[i]);
        return Ok{};
    }

private:
    using Floats = std::vector<float>;
    explicit DeltaReference(const cuda::DeltaStep& step) : d_(step), s_(step.shape) {}

    void run(const cuda::StateSegment& segment) const {
        if (s_.by_channel) return run_by_channel(segment);
        const int64_t stride = s_.channels() + s_.inner(), pairs = 2 * int64_t{s_.value_heads};
        Floats projected(d_.projected + segment.row * stride, d_.projected + (segment.row + segment.rows) * stride);
        Floats gates(d_.gates + segment.row * pairs, d_.gates + (segment.row + segment.rows) * pairs);
        elements_->round_bf16(projected.data(), std::ssize(projected));
        elements_->round_bf16(gates.data(), std::ssize(gates));
        Floats rows, z, beta, decay;
        for (int64_t t = 0; t < segment.rows; ++t) {
            split(projected.data() + t * stride, rows, z);
            add_steps(gates.data() + t * pairs, beta, decay);
        }
        finish(rows, z, beta, decay, segment);
    }

    void run_by_channel(const cuda::StateSegment& segment) const {
        const int64_t keys = s_.keys(), inner = s_.inner(), end = segment.row + segment.rows;
        Floats rows, beta, decay, z(d_.z + segment.row * inner, d_.z + end * inner);
        elements_->round_bf16(z.data(), std::ssize(z));
        for (int64_t t = segment.row; t < end; ++t) {
            rows.insert(rows.end(), d_.projected + t * d_.stride, d_.projected + t * d_.stride + s_.channels());
            for (int h = 0; h < s_.value_heads; ++h) {
                float b = d_.gates[t * d_.stride + h];
                elements_->round_bf16(&b, 1);
                beta.push_back(1.0f / (1.0f + exp_f32(-b)));
            }
            for (int64_t c = 0; c < keys; ++c) {
                float a = d_.channel_gates[t * keys + c];
                elements_->round_bf16(&a, 1);
                decay.push_back(decay_of(double{a} + d_.dt_bias[c], d_.a[c / s_.key_dim]));
            }
        }
        elements_->round_bf16(rows.data(), std::ssize(rows));
        finish(rows, z, beta, decay, segment);
    }

    static float decay_of(double x, float a) {
        const double step = x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
        return static_cast<float>(std::exp(step * a));
    }

    void finish(const Floats& rows, const Floats& z, const Floats& beta, const Floats& decay,
                const cuda::StateSegment& segment) const {
        Floats q, k;
        const Floats qkv = convolved(rows, segment);
        for (int64_t t = 0; t < segment.rows; ++t) {
            add_unit(qkv.data() + t * s_.channels(), d_.q_scale, q);
            add_unit(qkv.data() + t * s_.channels() + s_.keys(), d_.k_scale, k);
        }
        Floats y = ruled(qkv, q, k, beta, decay, segment);
        elements_->round_bf16(y.data(), std::ssize(y));
        for (int64_t at = 0; at < std::ssize(y); at += s_.value_dim)
            elements_->rms_norm(y.data() + at, d_.norm, s_.value_dim, d_.eps, true, y.data() + at);
        if (s_.by_channel)
            elements_->gate(z.data(), y.data(), std::ssize(y), true, y.data());
        else
            elements_->activate(Activation::silu, z.data(), y.data(), std::ssize(y), true, y.data());
        auto* out = reinterpret_cast<uint16_t*>(d_.out) + segment.row * s_.inner();
        for (const float x : y) *out++ = bf16_from_float(x);
    }

    // Appends q, k, v (all heads each) and z of a row of projections.
    void split(const float* row, Floats& qkv, Floats& z) const {
        const int64_t values = int64_t{s_.values_per_key()} * s_.value_dim;
        if (!s_.by_key_head) {
            qkv.insert(qkv.end(), row, row + s_.channels());
            z.insert(z.end(), row + s_.channels(), row + s_.channels() + s_.inner());
            return;
        }
        const int64_t group = 2 * s_.key_dim + 2 * values;
        const auto add = [&](int64_t first, int64_t count, Floats& to) {
            for (int h = 0; h < s_.key_heads; ++h)
                to.insert(to.end(), row + h * group + first, row + h * group + first + count);
        };
        add(0, s_.key_dim, qkv), add(s_.key_dim, s_.key_dim, qkv), add(2 * s_.key_dim, values, qkv);
        add(2 * s_.key_dim + values, values, z);
    }

    // Reads and replaces the history of the segment's state.
    Floats convolved(const Floats& rows, const cuda::StateSegment& segment) const {
        const int64_t channels = s_.channels(), before = s_.conv - 1;
        const Floats zeros(static_cast<size_t>(channels));
        Floats past(static_cast<size_t>(before * channels));
        if (segment.state) past.assign(segment.state, segment.state + before * channels);
        past.insert(past.end(), rows.begin(), rows.end());
        Floats out(rows.size());
        for (int64_t t = 0; t < segment.rows; ++t) {
            const float* taps[16];
            for (int64_t j = 0; j <= before; ++j) taps[j] = past.data() + (t + j) * channels;
            convolution_->convolve(taps, s_.conv, d_.conv_weight, zeros.data(), channels, out.data() + t * channels);
        }
        elements_->activate(Activation::silu, out.data(), nullptr, std::ssize(out), true, out.data());
        if (segment.state) std::copy(past.end() - before * channels, past.end(), segment.state);
        return out;
    }

    void add_unit(const float* row, float scale, Floats& to) const {
        const Floats weight(static_cast<size_t>(s_.key_dim), scale);
        for (int h = 0; h < s_.key_heads; ++h) {
            to.resize(to.size() + weight.size());
            elements_->rms_norm(row + int64_t{h} * s_.key_dim, weight.data(), s_.key_dim, d_.unit_eps, false,
                                to.data() + to.size() - weight.size());
        }
    }

    void add_steps(const float* row, Floats& beta, Floats& decay) const {
        const int per_key = s_.values_per_key();
        for (int h = 0; h < s_.value_heads; ++h) {
            const int b = s_.by_key_head ? h / per_key * 2 * per_key + h % per_key : h;
            const double x = double{row[b + (s_.by_key_head ? per_key : s_.value_heads)]} + d_.dt_bias[h];
            beta.push_back(1.0f / (1.0f + exp_f32(-row[b])));
            decay.push_back(decay_of(x, d_.a[h]));
        }
    }

    Floats ruled(const Floats& qkv, const Floats& q, const Floats& k, const Floats& beta, const Floats& decay,
                 const cuda::StateSegment& segment) const {
        const int64_t of_head = int64_t{s_.padded_key_dim()} * s_.value_dim;
        Floats y(static_cast<size_t>(segment.rows * s_.inner()));
        for (int h = 0; h < s_.value_heads; ++h) {
            Floats state(static_cast<size_t>(delta_state_elements(s_.key_dim, s_.value_dim)));
            float* kept = segment.state ? segment.state + s_.history_floats() + h * of_head : nullptr;
            const auto each = [&](auto&& use) {
                for (int i = 0; kept && i < s_.key_dim; ++i)
                    for (int p = 0; p < s_.value_dim; ++p)
                        use(kept[cuda::delta_place(s_.value_dim, i, p)],
                            state[size_t(int64_t{p / 16} * s_.key_dim * 16 + i * 16 + p % 16)]);
            };
            each([](float& stored, float& plain) { plain = stored; });
            const int64_t key = int64_t{h} / s_.values_per_key() * s_.key_dim, value = int64_t{h} * s_.value_dim;
            rule_->rule({.q = q.data() + key,
                         .k = k.data() + key,
                         .key_stride = s_.keys(),
                         .v = qkv.data() + 2 * s_.keys() + value,
                         .value_stride = s_.channels(),
                         .decay = decay.data() + (s_.by_channel ? key : h),
                         .beta = beta.data() + h,
                         .decay_stride = s_.by_channel ? s_.keys() : s_.value_heads,
                         .beta_stride = s_.value_heads,
                         .state = state.data(),
                         .y = y.data() + value,
                         .y_stride = s_.inner(),
                         .tokens = segment.rows,
                         .key_dim = s_.key_dim,
                         .value_dim = s_.value_dim,
                         .decay_by_channel = s_.by_channel});
            each([](float& stored, float& plain) { stored = plain; });
        }
        return y;
    }

    const cuda::DeltaStep& d_;
    const cuda::DeltaShape& s_;
    const ElementwiseKernels* elements_ = nullptr;
    const SsmKernels* convolution_ = nullptr;
    const DeltaKernels* rule_ = nullptr;
};

}  // namespace nibble::bench
