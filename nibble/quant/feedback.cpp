#include "quant/feedback.h"

#include "quant/cholesky.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace nibble {
namespace {

std::vector<int32_t> importance_order(const std::vector<double>& diagonal, int64_t block) {
    const int64_t n = static_cast<int64_t>(diagonal.size());
    std::vector<int32_t> order(diagonal.size());
    std::iota(order.begin(), order.end(), 0);
    if (block <= 0) return order;
    const auto heavier = [](const std::vector<double>& mass) {
        return [&mass](int32_t i, int32_t j) { return mass[static_cast<size_t>(i)] > mass[static_cast<size_t>(j)]; };
    };
    std::vector<double> mass(static_cast<size_t>((n + block - 1) / block));
    for (int64_t i = 0; i < n; ++i) mass[static_cast<size_t>(i / block)] += diagonal[static_cast<size_t>(i)];
    std::vector<int32_t> blocks(mass.size());
    std::iota(blocks.begin(), blocks.end(), 0);
    std::stable_sort(blocks.begin(), blocks.end(), heavier(mass));
    auto out = order.begin();
    for (int32_t b : blocks) {
        const auto begin = out;
        for (int64_t i = b * block; i < std::min<int64_t>((b + 1) * block, n); ++i) *out++ = static_cast<int32_t>(i);
        std::stable_sort(begin, out, heavier(diagonal));
    }
    return order;
}

}  // namespace

std::vector<double> damped_diagonal(const Gram& gram, double damping) {
    const int64_t n = gram.size();
    std::vector<double> diagonal(static_cast<size_t>(n));
    double mean = 0;
    for (int64_t i = 0; i < n; ++i)
        mean += diagonal[static_cast<size_t>(i)] = gram.sums()[static_cast<size_t>(i * n + i)];
    mean /= static_cast<double>(std::max<int64_t>(n, 1));
    if (mean == 0) mean = 1;
    for (double& d : diagonal) d = (d == 0 ? mean : d) + damping * mean;
    return diagonal;
}

namespace {

// Factors the damped matrix in f.order, in arithmetic of T.
template <class T>
Status factor(const Gram& gram, const std::vector<double>& diagonal, const SolverKernels& kernels, ThreadPool& pool,
              Feedback& f) {
    const int64_t n = f.n;
    std::vector<T> a(static_cast<size_t>(n * n));
    pool.parallel_for(n, [&](int64_t i) {
        const int64_t row = f.order[static_cast<size_t>(n - 1 - i)];
        const double* h = gram.sums().data() + row * n;
        T* out = a.data() + i * n;
        out[i] = static_cast<T>(diagonal[static_cast<size_t>(row)]);
        for (int64_t j = i + 1; j < n; ++j) out[j] = static_cast<T>(h[f.order[static_cast<size_t>(n - 1 - j)]]);
    });
    NIBBLE_TRY(const std::vector<T> x, reversed_inverse_factor(std::move(a), n, kernels, pool));
    f.weight.resize(static_cast<size_t>(n));
    f.spread.resize(static_cast<size_t>(n * n));
    pool.parallel_for(n, [&](int64_t i) {
        const T* u = x.data() + (n - 1 - i) * n;  // U[i, j] = u[n - 1 - j]
        const double pivot = u[n - 1 - i];
        f.weight[static_cast<size_t>(i)] = static_cast<float>(1.0 / pivot);
        for (int64_t j = i + 1; j < n; ++j)
            f.spread[static_cast<size_t>(i * n + j)] = static_cast<float>(u[n - 1 - j] / pivot);
    });
    return Ok{};
}

// Uses only the diagonal, without error compensation; entries without a usable value count as 1.
void by_the_diagonal(const std::vector<double>& diagonal, Feedback& f) {
    f.answers = false;
    f.weight.resize(diagonal.size());
    for (size_t i = 0; i < diagonal.size(); ++i) {
        const auto root = static_cast<float>(std::sqrt(diagonal[static_cast<size_t>(f.order[i])]));
        f.weight[i] = root > 0 && std::isfinite(root) ? root : 1.0f;
    }
    f.spread.assign(diagonal.size() * diagonal.size(), 0.0f);
}

}  // namespace

Feedback make_feedback(const Gram& gram, const FeedbackOptions& options, const SolverKernels& kernels,
                       ThreadPool& pool) {
    const std::vector<double> diagonal = damped_diagonal(gram, options.damping);
    Feedback f;
    f.n = gram.size();
    f.order = importance_order(diagonal, options.block);
    if (factor<float>(gram, diagonal, kernels, pool, f).ok()) return f;
    if (!factor<double>(gram, diagonal, kernels, pool, f).ok()) by_the_diagonal(diagonal, f);
    return f;
}

}  // namespace nibble
