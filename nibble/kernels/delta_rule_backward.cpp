#include "kernels/delta_rule_backward.h"

#include <algorithm>
#include <vector>

namespace nibble {
namespace {

constexpr int64_t checkpoint_tokens = 32;

// The sum of a * b in 16 parts, which compilers vectorize.
float product_sum(const float* a, const float* b, int64_t n) {
    float part[16] = {};
    int64_t j = 0;
    for (; j + 16 <= n; j += 16)
        for (int l = 0; l < 16; ++l) part[l] += a[j + l] * b[j + l];
    for (int l = 0; j < n; ++j, ++l) part[l] += a[j] * b[j];
    for (int half = 8; half > 0; half /= 2)
        for (int l = 0; l < half; ++l) part[l] += part[l + half];
    return part[0];
}

// States are [key_dim][value_dim] here. e = v - S^T k of a token's decayed state, u = beta e.
class DeltaHeadGradients {
public:
    DeltaHeadGradients(const DeltaHead& head, const DeltaGradients& gradients)
        : h_(head),
          g_(gradients),
          keys_(head.key_dim),
          values_(head.value_dim),
          size_(keys_ * values_),
          kept_(static_cast<size_t>((head.tokens + checkpoint_tokens - 1) / checkpoint_tokens * size_)),
          states_(static_cast<size_t>((checkpoint_tokens + 1) * size_)),
          e_(static_cast<size_t>(checkpoint_tokens * values_)),
          ds_(static_cast<size_t>(size_)),
          u_(static_cast<size_t>(values_)),
          du_(static_cast<size_t>(values_)) {}

    void run() {
        for (int64_t begin = 0; begin < h_.tokens; begin += checkpoint_tokens) {
            std::copy_n(states_.begin(), size_, kept_.begin() + begin / checkpoint_tokens * size_);
            const int64_t n = forward(begin);
            std::copy_n(states_.begin() + n * size_, size_, states_.begin());
        }
        for (int64_t begin = (h_.tokens - 1) / checkpoint_tokens * checkpoint_tokens; begin >= 0;
             begin -= checkpoint_tokens) {
            std::copy_n(kept_.begin() + begin / checkpoint_tokens * size_, size_, states_.begin());
            for (int64_t t = begin + forward(begin) - 1; t >= begin; --t) step(t, t - begin);
        }
    }

private:
    const float* key(int64_t t) const { return h_.k + t * h_.key_stride; }
    float beta(int64_t t) const { return h_.beta[t * h_.beta_stride]; }
    float decay(int64_t t, int64_t i) const { return h_.decay[t * h_.decay_stride + (h_.decay_by_channel ? i : 0)]; }

    // Sets states_[j + 1] to the state after token begin + j, and e_[j]. Returns the number of tokens.
    int64_t forward(int64_t begin) {
        const int64_t n = std::min(checkpoint_tokens, h_.tokens - begin);
        for (int64_t j = 0; j < n; ++j) {
            const int64_t t = begin + j;
            const float* k = key(t);
            const float* from = states_.data() + j * size_;
            float* to = states_.data() + (j + 1) * size_;
            float* e = e_.data() + j * values_;
            std::copy_n(h_.v + t * h_.value_stride, values_, e);
            for (int64_t i = 0; i < keys_; ++i) {
                const float d = decay(t, i);
                for (int64_t p = 0; p < values_; ++p) {
                    to[i * values_ + p] = d * from[i * values_ + p];
                    e[p] -= k[i] * to[i * values_ + p];
                }
            }
            for (int64_t p = 0; p < values_; ++p) u_[p] = beta(t) * e[p];
            for (int64_t i = 0; i < keys_; ++i)
                for (int64_t p = 0; p < values_; ++p) to[i * values_ + p] += k[i] * u_[p];
        }
        return n;
    }

    // ds_ is the gradient of the state after token t from later tokens, and becomes that of the state before it.
    void step(int64_t t, int64_t j) {
        const float* before = states_.data() + j * size_;
        const float* after = before + size_;
        const float* e = e_.data() + j * values_;
        const float *k = key(t), *q = h_.q + t * h_.key_stride, *dy = g_.dy + t * h_.y_stride;
        float *dk = g_.dk + t * h_.key_stride, *dq = g_.dq + t * h_.key_stride;
        std::fill(du_.begin(), du_.end(), 0.0f);
        for (int64_t p = 0; p < values_; ++p) u_[p] = beta(t) * e[p];
        for (int64_t i = 0; i < keys_; ++i) {
            float* ds = ds_.data() + i * values_;
            dq[i] += product_sum(after + i * values_, dy, values_);
            for (int64_t p = 0; p < values_; ++p) {
                ds[p] += q[i] * dy[p];
                du_[p] += k[i] * ds[p];
            }
            dk[i] += product_sum(ds, u_.data(), values_);
        }
        g_.d_beta[t * h_.beta_stride] = product_sum(du_.data(), e, values_);
        float* dv = g_.dv + t * h_.value_stride;  // also the gradient of e
        for (int64_t p = 0; p < values_; ++p) dv[p] = beta(t) * du_[p];
        float* d_decay = g_.d_decay + t * h_.decay_stride;
        if (!h_.decay_by_channel) *d_decay = 0.0f;
        for (int64_t i = 0; i < keys_; ++i) {
            float* ds = ds_.data() + i * values_;
            const float* s = before + i * values_;
            const float d = decay(t, i);
            dk[i] -= d * product_sum(s, dv, values_);
            for (int64_t p = 0; p < values_; ++p) ds[p] -= k[i] * dv[p];
            const float of_decay = product_sum(ds, s, values_);
            if (h_.decay_by_channel)
                d_decay[i] = of_decay;
            else
                *d_decay += of_decay;
            for (int64_t p = 0; p < values_; ++p) ds[p] *= d;
        }
    }

    const DeltaHead& h_;
    const DeltaGradients& g_;
    const int64_t keys_, values_, size_;
    std::vector<float> kept_, states_, e_, ds_, u_, du_;
};

}  // namespace

void delta_rule_backward(const DeltaHead& head, const DeltaGradients& gradients) {
    DeltaHeadGradients(head, gradients).run();
}

}  // namespace nibble
