#include "quant/cholesky.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

constexpr int64_t panel_rows = 192, task_rows = 96, rows_one_by_one = 16;

// Both halves of [J H J | I], each [n, n]. Only a's upper and x's lower triangle mean anything.
struct Elimination {
    int64_t n;
    std::vector<double> a, x;
    const SolverKernels& kernels;

    double* a_at(int64_t i, int64_t j) { return a.data() + i * n + j; }
    double* x_at(int64_t i, int64_t j) { return x.data() + i * n + j; }

    // Rows [begin, end) below, or inside, the panel of rows [p, p + k): both halves, a's columns from `col` on.
    void subtract_panel(int64_t begin, int64_t end, int64_t p, int64_t k, int64_t col) {
        const double* factor = a_at(p, begin);
        kernels.rank_update_f64({end - begin, n - col, k, factor, n, a_at(p, col), n, a_at(begin, col), n, true});
        kernels.rank_update_f64({end - begin, p + k, k, factor, n, x_at(p, 0), n, x_at(begin, 0), n, true});
    }

    // Eliminates rows [p, end) among themselves, by halves: most of the work is then a product of blocks. Returns the
    // row whose pivot is not positive, or -1.
    int64_t eliminate(int64_t p, int64_t end) {
        if (end - p > rows_one_by_one) {
            const int64_t middle = p + (end - p) / 2;
            if (const int64_t bad = eliminate(p, middle); bad >= 0) return bad;
            subtract_panel(middle, end, p, middle - p, middle);
            return eliminate(middle, end);
        }
        for (int64_t i = p; i < end; ++i) {
            if (i > p) subtract_panel(i, i + 1, p, i - p, i);
            const double pivot = *a_at(i, i);
            if (!(pivot > 0.0) || !std::isfinite(pivot)) return i;
            const double root = std::sqrt(pivot);
            *x_at(i, i) = 1.0;
            for (double* v = a_at(i, i); v < a_at(i, 0) + n; ++v) *v /= root;
            for (double* v = x_at(i, 0); v <= x_at(i, i); ++v) *v /= root;
        }
        return -1;
    }
};

}  // namespace

Result<std::vector<double>> inverse_factor(std::span<const double> h, int64_t n, const SolverKernels& kernels,
                                           ThreadPool& pool) {
    Elimination e{n, std::vector<double>(static_cast<size_t>(n * n)), std::vector<double>(static_cast<size_t>(n * n)),
                  kernels};
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = i; j < n; ++j) *e.a_at(i, j) = h[static_cast<size_t>((n - 1 - j) * n + n - 1 - i)];
    for (int64_t p = 0; p < n; p += panel_rows) {
        const int64_t end = std::min(p + panel_rows, n);
        if (const int64_t bad = e.eliminate(p, end); bad >= 0)
            return fail("the matrix is not positive definite at row {} of {}; more damping is needed", n - 1 - bad, n);
        pool.parallel_for((n - end + task_rows - 1) / task_rows, [&](int64_t block) {
            const int64_t i = end + block * task_rows;
            e.subtract_panel(i, std::min(i + task_rows, n), p, end - p, i);
        });
    }
    std::vector<double>& u = e.a;
    std::fill(u.begin(), u.end(), 0.0);
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = i; j < n; ++j) u[static_cast<size_t>(i * n + j)] = *e.x_at(n - 1 - i, n - 1 - j);
    return std::move(e.a);
}

}  // namespace nibble
