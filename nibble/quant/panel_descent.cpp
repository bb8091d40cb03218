#include "quant/panel_descent.h"

#include <cmath>

namespace nibble {

DescentMatrix descent_matrix(const Gram& gram, const Feedback& columns, double damping, ThreadPool& pool) {
    const int64_t n = columns.n;
    const std::vector<double> diagonal = damped_diagonal(gram, damping);
    DescentMatrix m{std::vector<float>(static_cast<size_t>(n * n)), std::vector<float>(static_cast<size_t>(n))};
    pool.parallel_for(n, [&](int64_t i) {
        const int64_t row = columns.order[static_cast<size_t>(i)];
        for (int64_t j = 0; j < n; ++j)
            m.h[static_cast<size_t>(i * n + j)] =
                static_cast<float>(gram.sums()[static_cast<size_t>(row * n + columns.order[static_cast<size_t>(j)])]);
        m.h[static_cast<size_t>(i * n + i)] = static_cast<float>(diagonal[static_cast<size_t>(row)]);
        m.inverse_diagonal[static_cast<size_t>(i)] = 1.0f / m.h[static_cast<size_t>(i * n + i)];
    });
    return m;
}

void descend(Panel& panel, const DescentMatrix& matrix, const std::vector<double>& coupling, int sweeps,
             const SolverKernels& kernels) {
    const int64_t n = panel.n, rows = panel.rows;
    const auto size = static_cast<size_t>(rows * n);
    std::vector<float> error(size), y(size), inverse_scale(size), other(static_cast<size_t>(n));
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t k = 0; k < n; ++k) {
            const auto at = static_cast<size_t>(i * n + k);
            error[static_cast<size_t>(k * rows + i)] = std::fma(-panel.multiple[at], panel.scale[at], panel.target[at]);
            inverse_scale[at] = 1.0f / panel.scale[at];
        }
    kernels.rank_update({rows, n, n, error.data(), rows, matrix.h.data(), n, y.data(), n});
    for (int sweep = 0; sweep < sweeps; ++sweep) {
        int64_t changed = 0;
        for (int64_t i = 0; i < rows; ++i) {
            if (!coupling.empty()) {
                std::vector<float> share(static_cast<size_t>(rows));  // S[i, j] / S[i, i]
                for (int64_t j = 0; j < rows; ++j)
                    if (j != i)
                        share[static_cast<size_t>(j)] = static_cast<float>(coupling[static_cast<size_t>(i * rows + j)] /
                                                                           coupling[static_cast<size_t>(i * rows + i)]);
                std::fill(other.begin(), other.end(), 0.0f);
                kernels.rank_update({1, n, rows, share.data(), 1, y.data(), n, other.data(), n});
            }
            const auto at = static_cast<size_t>(i * n);
            changed += kernels.descend_row({n, matrix.h.data(), matrix.inverse_diagonal.data(), &panel.scale[at],
                                            &inverse_scale[at], other.data(), &panel.multiple[at], &y[at]});
        }
        if (!changed) return;
    }
}

std::vector<double> remaining_coupling(const Feedback& rows, int64_t first, int64_t count) {
    // V = U^-1 by columns, from U[i, j] = spread[i, j] / weight[i] and U[i, i] = 1 / weight[i].
    const auto at = [count](int64_t i, int64_t j) { return static_cast<size_t>(i * count + j); };
    std::vector<double> v(static_cast<size_t>(count * count)), s(v.size());
    for (int64_t j = 0; j < count; ++j)
        for (int64_t i = j; i >= 0; --i) {
            double sum = i == j ? double{rows.weight[static_cast<size_t>(first + i)]} : 0.0;
            for (int64_t k = i + 1; k <= j; ++k) sum -= double{rows.row(first + i)[first + k]} * v[at(k, j)];
            v[at(i, j)] = sum;
        }
    for (int64_t i = 0; i < count; ++i)
        for (int64_t j = 0; j < count; ++j)
            for (int64_t k = std::max(i, j); k < count; ++k) s[at(i, j)] += v[at(i, k)] * v[at(j, k)];
    return s;
}

}  // namespace nibble
