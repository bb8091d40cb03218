#include "train/input_directions.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace nibble {
namespace {

// Gram-Schmidt, twice, in FP64. A column that vanishes is replaced by the first unit vector outside the span.
std::vector<double> orthonormal(std::vector<double> m, int64_t cols, int64_t rank) {
    const auto at = [&](int64_t i, int64_t j) -> double& { return m[static_cast<size_t>(i * rank + j)]; };
    for (int64_t j = 0; j < rank; ++j)
        for (int64_t unit = -1; unit < cols; ++unit) {
            if (unit >= 0)
                for (int64_t i = 0; i < cols; ++i) at(i, j) = i == unit;
            double before = 0, after = 0;
            for (int64_t i = 0; i < cols; ++i) before += at(i, j) * at(i, j);
            for (int pass = 0; pass < 2; ++pass)
                for (int64_t k = 0; k < j; ++k) {
                    double dot = 0;
                    for (int64_t i = 0; i < cols; ++i) dot += at(i, j) * at(i, k);
                    for (int64_t i = 0; i < cols; ++i) at(i, j) -= dot * at(i, k);
                }
            for (int64_t i = 0; i < cols; ++i) after += at(i, j) * at(i, j);
            if (!(after > 1e-20 * before)) continue;
            const double length = std::sqrt(after);
            for (int64_t i = 0; i < cols; ++i) at(i, j) /= length;
            break;
        }
    return m;
}

}  // namespace

InputDirections::InputDirections(int64_t cols, int64_t rank, const CastRandom& random)
    : cols_(cols), rank_(std::min(rank, cols)) {
    std::vector<double> m(static_cast<size_t>(cols_ * rank_));
    for (size_t i = 0; i < m.size(); ++i) {
        const PhiloxBlock b = random.block(i, 0);
        const double u = (b.word[0] + 0.5) * 0x1p-32, v = (b.word[1] + 0.5) * 0x1p-32;
        m[i] = std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
    }
    for (const double x : orthonormal(std::move(m), cols_, rank_)) p_.push_back(round_to_bf16(static_cast<float>(x)));
    z_.resize(p_.size());
    step_.resize(p_.size());
}

void InputDirections::split(const float* x, int64_t n, float* a, float* r, ThreadPool& pool) const {
    pool.parallel_for(n, [&](int64_t i) {
        const float* row = x + i * cols_;
        float* to = a + i * rank_;
        std::fill_n(to, rank_, 0.0f);
        for (int64_t c = 0; c < cols_; ++c)
            for (int64_t j = 0; j < rank_; ++j) to[j] += row[c] * p_[static_cast<size_t>(c * rank_ + j)];
        for (int64_t j = 0; j < rank_; ++j) to[j] = round_to_bf16(to[j]);
        if (!r) return;
        for (int64_t c = 0; c < cols_; ++c) {
            float sum = 0;
            for (int64_t j = 0; j < rank_; ++j) sum += to[j] * p_[static_cast<size_t>(c * rank_ + j)];
            r[i * cols_ + c] = round_to_bf16(row[c] - sum);
        }
    });
}

void InputDirections::observe(const float* x, const float* a, int64_t n, ThreadPool& pool) {
    n = std::min(n, most_observed - seen_);
    if (n <= 0) return;
    seen_ += n;
    pool.parallel_for(cols_, [&](int64_t c) {
        float* z = step_.data() + c * rank_;
        for (int64_t i = 0; i < n; ++i)
            for (int64_t j = 0; j < rank_; ++j) z[j] += x[i * cols_ + c] * a[i * rank_ + j];
    });
}

void InputDirections::begin_step() {
    std::ranges::fill(step_, 0.0f);
    seen_ = 0;
}

void InputDirections::end_step() {
    for (size_t i = 0; i < z_.size(); ++i) z_[i] += step_[i];
    begin_step();
}

void InputDirections::renew() {
    std::vector<double> m(p_.size());
    for (size_t i = 0; i < m.size(); ++i) m[i] = double{z_[i]} + 1e-6 * double{p_[i]};
    const std::vector<double> q = orthonormal(std::move(m), cols_, rank_);
    for (size_t i = 0; i < q.size(); ++i) p_[i] = round_to_bf16(static_cast<float>(q[i]));
    std::ranges::fill(z_, 0.0f);
}

std::vector<float> InputDirections::state() const {
    std::vector<float> all = p_;
    all.insert(all.end(), z_.begin(), z_.end());
    return all;
}

bool InputDirections::set_state(const std::vector<float>& state) {
    if (state.size() != p_.size() + z_.size()) return false;
    std::copy_n(state.begin(), p_.size(), p_.begin());
    std::copy_n(state.begin() + static_cast<std::ptrdiff_t>(p_.size()), z_.size(), z_.begin());
    return true;
}

}  // namespace nibble
