#include "model/cpu/hyper.h"

#include "kernels/exp.h"
#include "kernels/unpack.h"
#include "model/weight_source.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

float sigmoid_of(float x) { return 1.0f / (1.0f + exp_f32(-x)); }

}  // namespace

Status HyperConnection::load(const ModelConfig& model, const std::array<std::string, 3>& names, int64_t outputs,
                             WeightSource& weights) {
    streams_ = model.hyper->streams, hidden_ = model.hidden, outputs_ = outputs;
    iterations_ = model.hyper->iterations;
    norm_eps_ = model.norm_eps, eps_ = model.hyper->eps;
    const int64_t width = streams_ * hidden_;
    NIBBLE_TRY(const auto fn, weights.vector(names[0], outputs * width));
    NIBBLE_TRY(base_, weights.vector(names[1], outputs));
    NIBBLE_TRY(scale_, weights.vector(names[2], outputs == streams_ ? 1 : 3));
    if (weights.mode() != WeightSource::Mode::check) fn_ = pack_rows(fn.data(), outputs, width, width, weights.pool());
    ones_.assign(static_cast<size_t>(width), 1.0f);
    return Ok{};
}

Result<HyperConnection> HyperConnection::load(const ModelConfig& model, const std::string& name,
                                              WeightSource& weights) {
    HyperConnection h;
    const int64_t streams = model.hyper->streams;
    NIBBLE_CHECK(
        h.load(model, {name + "_fn", name + "_base", name + "_scale"}, 2 * streams + streams * streams, weights));
    return h;
}

Result<HyperConnection> HyperConnection::load_head(const ModelConfig& model, WeightSource& weights) {
    HyperConnection h;
    const std::string& name = model.hyper->head;
    NIBBLE_CHECK(h.load(model, {name + "_fn", name + "_base", name + "_scale"}, model.hyper->streams, weights));
    return h;
}

// f [outputs] becomes pre [C] and mix: post [C], then M [C, C].
void HyperConnection::weights_of(const float* f, float* pre, float* mix) const {
    const int64_t n = streams_;
    for (int64_t c = 0; c < n; ++c) pre[c] = sigmoid_of(f[c] * scale_[0] + base_[size_t(c)]) + eps_;
    if (outputs_ == n) return;
    for (int64_t c = 0; c < n; ++c) mix[c] = 2.0f * sigmoid_of(f[n + c] * scale_[1] + base_[size_t(n + c)]);
    float* m = mix + n;
    for (int64_t i = 0; i < n; ++i) {
        float* row = m + i * n;
        for (int64_t j = 0; j < n; ++j)
            row[j] = f[2 * n + i * n + j] * scale_[2] + base_[static_cast<size_t>(2 * n + i * n + j)];
        const float most = *std::max_element(row, row + n);
        float sum = 0;
        for (int64_t j = 0; j < n; ++j) sum += row[j] = exp_f32(row[j] - most);
        for (int64_t j = 0; j < n; ++j) row[j] = row[j] / sum + eps_;
    }
    const auto divide = [&](int64_t step, int64_t along) {  // by sums over `along`
        for (int64_t i = 0; i < n; ++i) {
            float sum = eps_;
            for (int64_t j = 0; j < n; ++j) sum += m[i * step + j * along];
            for (int64_t j = 0; j < n; ++j) m[i * step + j * along] /= sum;
        }
    };
    divide(1, n);
    for (int k = 1; k < iterations_; ++k) {
        divide(n, 1);
        divide(1, n);
    }
}

float* HyperConnection::collapse(const float* x, int64_t rows, float* y, Workspace& work) const {
    const int64_t width = streams_ * hidden_;
    float* mix = work.arena.floats(rows * mixed());
    const Arena::Scope scope(work.arena);
    float* u = work.arena.floats(rows * width);
    float* f = work.arena.floats(rows * outputs_);
    work.parallel_rows(rows, 2 * width, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i)
            work.elementwise->rms_norm(x + i * width, ones_.data(), width, norm_eps_, false, u + i * width);
    });
    work.matmul->matmul(fn_, {.x = u, .rows = rows, .stride = width}, {f, outputs_}, *work.pool);
    work.parallel_rows(rows, 2 * width, [&](int64_t first, int64_t last) {
        std::vector<float> pre(static_cast<size_t>(streams_));
        for (int64_t i = first; i < last; ++i) {
            weights_of(f + i * outputs_, pre.data(), mix + i * mixed());
            float* to = y + i * hidden_;
            for (int64_t j = 0; j < hidden_; ++j) {
                float sum = 0;
                for (int64_t c = 0; c < streams_; ++c) sum += pre[size_t(c)] * x[i * width + c * hidden_ + j];
                to[j] = sum;
            }
            if (work.bf16()) work.elementwise->round_bf16(to, hidden_);
        }
    });
    return mix;
}

void HyperConnection::expand(const float* mix, const float* y, int64_t rows, float* x, Workspace& work) const {
    const int64_t width = streams_ * hidden_;
    work.parallel_rows(rows, 2 * streams_ * width, [&](int64_t first, int64_t last) {
        std::vector<float> before(static_cast<size_t>(streams_));
        for (int64_t i = first; i < last; ++i) {
            const float *post = mix + i * mixed(), *m = post + streams_;
            float* s = x + i * width;
            for (int64_t k = 0; k < hidden_; ++k) {
                for (int64_t c = 0; c < streams_; ++c) before[size_t(c)] = s[c * hidden_ + k];
                for (int64_t j = 0; j < streams_; ++j) {
                    float sum = post[j] * y[i * hidden_ + k];
                    for (int64_t c = 0; c < streams_; ++c) sum += m[c * streams_ + j] * before[size_t(c)];
                    s[j * hidden_ + k] = sum;
                }
            }
            if (work.bf16()) work.elementwise->round_bf16(s, width);
        }
    });
}

}  // namespace nibble
