#include "kernels/ref/solver_ref.h"

#include "formats/nvfp4.h"

#include <algorithm>
#include <cmath>

namespace nibble::ref {
namespace {

template <class T>
void update_each(const RankUpdate<T>& u) {
    for (int64_t i = 0; i < u.m; ++i)
        for (int64_t j = 0; j < u.n; ++j) {
            T& c = u.c[i * u.c_stride + j];
            for (int64_t k = 0; k < u.k; ++k) {
                const T a = u.a[k * u.a_stride + i];
                c = std::fma(u.subtract ? -a : a, u.b[k * u.b_stride + j], c);
            }
        }
}

float nearest_multiple(float x) {
    const float value = e2m1_to_float(e2m1_magnitude(magnitude(x)));
    return x < 0.0f ? 0.0f - value : value;  // avoids minus zero
}

}  // namespace

void rank_update(const RankUpdate<float>& update) { update_each(update); }
void rank_update_f64(const RankUpdate<double>& update) { update_each(update); }

void search_block(const float* x, const BlockFactor& factor, const float* scale, const float* inverse,
                  BlockChoice& choice) {
    for (int candidate = 0; candidate < 16; ++candidate) {
        BlockChoice now{candidate, 0.0f, {}, {}};
        float left[16];
        std::copy(x, x + 16, left);
        for (int k = 0; k < 16; ++k) {
            now.multiple[k] = nearest_multiple(std::clamp(left[k] * inverse[candidate], -6.0f, 6.0f));
            now.residual[k] = std::fma(-now.multiple[k], scale[candidate], left[k]);
            const float e = now.residual[k] * factor.weight[k];
            now.cost = std::fma(e, e, now.cost);
            for (int j = k + 1; j < 16; ++j) left[j] = std::fma(-now.residual[k], factor.row[k][j], left[j]);
        }
        if (candidate == 0 || now.cost < choice.cost) choice = now;
    }
}

int64_t descend_row(const RowDescent& row) {
    int64_t changed = 0;
    for (int64_t k = 0; k < row.n; ++k) {
        const float gradient = (row.y[k] + row.other[k]) * row.inverse_diagonal[k];
        const float m =
            nearest_multiple(std::clamp(std::fma(gradient, row.inverse_scale[k], row.multiple[k]), -6.0f, 6.0f));
        if (m == row.multiple[k]) continue;
        const float d = (row.multiple[k] - m) * row.scale[k];
        row.multiple[k] = m;
        for (int64_t j = 0; j < row.n; ++j) row.y[j] = std::fma(d, row.h[k * row.n + j], row.y[j]);
        ++changed;
    }
    return changed;
}

void block_losses(const float* x, const float* h, const float* scale, float* loss) {
    for (int candidate = 0; candidate < 16; ++candidate) {
        float d[16];
        for (int k = 0; k < 16; ++k) d[k] = x[k] - nvfp4_fake_value(x[k], scale[candidate]);
        loss[candidate] = 0.0f;
        for (int i = 0; i < 16; ++i) {
            float y = 0.0f;
            for (int j = 0; j < 16; ++j) y = std::fma(h[i * 16 + j], d[j], y);
            loss[candidate] = std::fma(d[i], y, loss[candidate]);
        }
    }
}

}  // namespace nibble::ref
