#include "kernels/ssm_backward.h"

#include <algorithm>
#include <vector>

namespace nibble {
namespace {

constexpr int64_t span = 32;  // tokens between checkpoints of the state

struct Lanes {  // a sum of 16 parts, which compilers vectorize
    float part[16] = {};
    void add(const float* a, const float* b, int64_t n) {
        int64_t j = 0;
        for (; j + 16 <= n; j += 16)
            for (int l = 0; l < 16; ++l) part[l] += a[j + l] * b[j + l];
        for (int l = 0; j < n; ++j, ++l) part[l] += a[j] * b[j];
    }
    float total() {
        for (int half = 8; half > 0; half /= 2)
            for (int l = 0; l < half; ++l) part[l] += part[l + half];
        return part[0];
    }
};

class HeadGradients {
public:
    HeadGradients(const SsmScan& scan, const SsmGradients& gradients, int64_t head)
        : s_(scan),
          g_(gradients),
          h_(head),
          group_(head / (scan.heads / scan.groups)),
          size_(int64_t{scan.state_size} * scan.head_dim),
          kept_(static_cast<size_t>((scan.tokens + span - 1) / span * size_)),
          states_(static_cast<size_t>((span + 1) * size_)),
          dh_(static_cast<size_t>(size_)),
          u_(scan.head_dim),
          du_(scan.head_dim) {}

    // Adds to db and dc.
    void run() {
        std::fill_n(states_.begin(), size_, 0.0f);
        for (int64_t begin = 0; begin < s_.tokens; begin += span) {
            std::copy_n(states_.begin(), size_, kept_.begin() + begin / span * size_);
            const int64_t n = forward(begin);
            std::copy_n(states_.begin() + n * size_, size_, states_.begin());
        }
        g_.dd[h_] = 0.0f;
        for (int64_t begin = (s_.tokens - 1) / span * span; begin >= 0; begin -= span) {
            std::copy_n(kept_.begin() + begin / span * size_, size_, states_.begin());
            for (int64_t t = begin + forward(begin) - 1; t >= begin; --t) step(t, t - begin);
        }
    }

private:
    const float* x(int64_t t) const { return s_.x + t * s_.stride + h_ * s_.head_dim; }
    const float* b(int64_t t) const { return s_.b + t * s_.stride + group_ * s_.state_size; }
    void scaled_input(int64_t t) {
        const float dt = s_.dt[t * s_.heads + h_];
        for (int p = 0; p < s_.head_dim; ++p) u_[p] = dt * x(t)[p];
    }

    // Sets states_[i + 1] to the state after token begin + i. Returns the number of tokens.
    int64_t forward(int64_t begin) {
        const int64_t n = std::min(span, s_.tokens - begin);
        for (int64_t i = 0; i < n; ++i) {
            scaled_input(begin + i);
            const float decay = s_.decay[(begin + i) * s_.heads + h_];
            const float* from = states_.data() + i * size_;
            float* to = states_.data() + (i + 1) * size_;
            for (int s = 0; s < s_.state_size; ++s) {
                const float bs = b(begin + i)[s];
                for (int p = 0; p < s_.head_dim; ++p)
                    to[s * s_.head_dim + p] = decay * from[s * s_.head_dim + p] + u_[p] * bs;
            }
        }
        return n;
    }

    // dh_ is the gradient of the state after token t from later tokens.
    void step(int64_t t, int64_t i) {
        const int dim = s_.head_dim;
        const float* before = states_.data() + i * size_;
        const float* after = before + size_;
        const float* dy = g_.dy + (t * s_.heads + h_) * dim;
        const float* c = s_.c + t * s_.stride + group_ * s_.state_size;
        float* db = g_.db + t * s_.stride + group_ * s_.state_size;
        float* dc = g_.dc + t * s_.stride + group_ * s_.state_size;
        const float decay = s_.decay[t * s_.heads + h_], dt = s_.dt[t * s_.heads + h_];
        scaled_input(t);
        std::fill(du_.begin(), du_.end(), 0.0f);
        Lanes d_decay;
        for (int s = 0; s < s_.state_size; ++s) {
            float* dh = dh_.data() + s * dim;
            const float cs = c[s], bs = b(t)[s];
            for (int p = 0; p < dim; ++p) dh[p] += dy[p] * cs;
            Lanes of_b, of_c;
            of_c.add(dy, after + s * dim, dim);
            of_b.add(dh, u_.data(), dim);
            d_decay.add(dh, before + s * dim, dim);
            dc[s] += of_c.total();
            db[s] += of_b.total();
            for (int p = 0; p < dim; ++p) {
                du_[p] += dh[p] * bs;
                dh[p] *= decay;
            }
        }
        g_.d_decay[t * s_.heads + h_] = d_decay.total();
        Lanes d_dt, d_skip;
        d_dt.add(du_.data(), x(t), dim);
        d_skip.add(dy, x(t), dim);
        g_.d_dt[t * s_.heads + h_] = d_dt.total();
        g_.dd[h_] += d_skip.total();
        float* dx = g_.dx + t * s_.stride + h_ * dim;
        for (int p = 0; p < dim; ++p) dx[p] = du_[p] * dt + dy[p] * s_.d[h_];
    }

    const SsmScan& s_;
    const SsmGradients& g_;
    const int64_t h_, group_, size_;
    std::vector<float> kept_, states_, dh_, u_, du_;
};

}  // namespace

// Heads of a group add to the same B and C, so they run one after the other.
void ssm_scan_backward(const SsmScan& scan, const SsmGradients& gradients, ThreadPool& pool) {
    pool.parallel_for(scan.groups, [&](int64_t g) {
        for (int64_t t = 0; t < scan.tokens; ++t) {
            std::fill_n(gradients.db + t * scan.stride + g * scan.state_size, scan.state_size, 0.0f);
            std::fill_n(gradients.dc + t * scan.stride + g * scan.state_size, scan.state_size, 0.0f);
        }
        const int64_t heads = scan.heads / scan.groups;
        for (int64_t h = g * heads; h < (g + 1) * heads; ++h) HeadGradients(scan, gradients, h).run();
    });
}

}  // namespace nibble
