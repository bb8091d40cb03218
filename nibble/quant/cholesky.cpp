#include "quant/cholesky.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

constexpr int64_t factor_rows = 192, task_rows = 96, rows_one_by_one = 16;

void update(const SolverKernels& kernels, const RankUpdate<float>& u) { kernels.rank_update(u); }
void update(const SolverKernels& kernels, const RankUpdate<double>& u) { kernels.rank_update_f64(u); }

// Both halves of [J H J
// I], each [n, n]. Only a's upper and x's lower triangle are defined.
template <class T>
struct Elimination {
    int64_t n;
    std::vector<T> a, x;
    const SolverKernels& kernels;

    T* a_at(int64_t i, int64_t j) { return a.data() + i * n + j; }
    T* x_at(int64_t i, int64_t j) { return x.data() + i * n + j; }

    // Subtracts the panel of rows [p, p + k) from rows [begin, end) below or inside it: both halves, a's columns from
    // `col` on.
    void subtract_panel(int64_t begin, int64_t end, int64_t p, int64_t k, int64_t col) {
        const T* factor = a_at(p, begin);
        update(kernels, {end - begin, n - col, k, factor, n, a_at(p, col), n, a_at(begin, col), n, true});
        update(kernels, {end - begin, p + k, k, factor, n, x_at(p, 0), n, x_at(begin, 0), n, true});
    }

    // Eliminates rows [p, end) among themselves, recursively by halves, so that most of the work is products of blocks.
    // Returns the row whose pivot is not positive, or -1.
    int64_t eliminate(int64_t p, int64_t end) {
        if (end - p > rows_one_by_one) {
            const int64_t middle = p + (end - p) / 2;
            if (const int64_t bad = eliminate(p, middle); bad >= 0) return bad;
            subtract_panel(middle, end, p, middle - p, middle);
            return eliminate(middle, end);
        }
        for (int64_t i = p; i < end; ++i) {
            if (i > p) subtract_panel(i, i + 1, p, i - p, i);
            const T pivot = *a_at(i, i);
            if (!(pivot > 0) || !std::isfinite(pivot)) return i;
            const T root = std::sqrt(pivot);
            *x_at(i, i) = 1;
            for (T* v = a_at(i, i); v < a_at(i, 0) + n; ++v) *v /= root;
            for (T* v = x_at(i, 0); v <= x_at(i, i); ++v) *v /= root;
        }
        return -1;
    }
};

}  // namespace

template <class T>
Result<std::vector<T>> reversed_inverse_factor(std::vector<T> a, int64_t n, const SolverKernels& kernels,
                                               ThreadPool& pool) {
    Elimination<T> e{n, std::move(a), std::vector<T>(static_cast<size_t>(n * n)), kernels};
    for (int64_t p = 0; p < n; p += factor_rows) {
        const int64_t end = std::min(p + factor_rows, n);
        if (const int64_t bad = e.eliminate(p, end); bad >= 0)
            return fail("the matrix is not positive definite at row {} of {}; more damping is needed", n - 1 - bad, n);
        pool.parallel_for((n - end + task_rows - 1) / task_rows, [&](int64_t block) {
            const int64_t i = end + block * task_rows;
            e.subtract_panel(i, std::min(i + task_rows, n), p, end - p, i);
        });
    }
    return std::move(e.x);
}

template Result<std::vector<float>> reversed_inverse_factor(std::vector<float>, int64_t, const SolverKernels&,
                                                            ThreadPool&);
template Result<std::vector<double>> reversed_inverse_factor(std::vector<double>, int64_t, const SolverKernels&,
                                                             ThreadPool&);

Result<std::vector<double>> inverse_factor(std::span<const double> h, int64_t n, const SolverKernels& kernels,
                                           ThreadPool& pool) {
    std::vector<double> a(static_cast<size_t>(n * n));
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = i; j < n; ++j)
            a[static_cast<size_t>(i * n + j)] = h[static_cast<size_t>((n - 1 - j) * n + n - 1 - i)];
    NIBBLE_TRY(std::vector<double> u, reversed_inverse_factor(std::move(a), n, kernels, pool));
    std::ranges::reverse(u);  // computes J x J
    return u;
}

}  // namespace nibble
