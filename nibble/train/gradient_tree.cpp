#include "train/gradient_tree.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace nibble {
namespace {

constexpr int64_t add_run = 1 << 15;   // elements of one task
constexpr int64_t norm_run = 1 << 12;  // elements of one partial sum

}  // namespace

GradientTree::GradientTree(const Parameters& parameters, std::string head, bool part, ThreadPool& pool)
    : parameters_(parameters), head_(std::move(head)), part_(part), pool_(pool), slots_(parameters.count()) {
    for (size_t id = 0; id < slots_.size(); ++id) slots_[id].cols = parameters.tensors()[id].cols();
}

GradientTree::Values GradientTree::take(Slot& slot, size_t size) const {
    if (slot.spare.empty()) return Values(size);
    Values values = std::move(slot.spare.back());
    slot.spare.pop_back();
    values.resize(size);
    return values;
}

void GradientTree::give(Slot& slot, Values values) const {
    if (values.capacity() > 0) slot.spare.push_back(std::move(values));
}

void GradientTree::add_into(Values& to, const float* from) const {
    const int64_t n = std::ssize(to);
    pool_.parallel_for((n + add_run - 1) / add_run, [&](int64_t run) {
        const int64_t last = std::min(n, (run + 1) * add_run);
        for (int64_t j = run * add_run; j < last; ++j) to[static_cast<size_t>(j)] += from[j];
    });
}

void GradientTree::begin_step() {
    count_ = 0;
    for (Slot& slot : slots_) {
        for (Values& level : slot.levels) give(slot, std::exchange(level, {}));
        give(slot, std::exchange(slot.row, {}));
        give(slot, std::exchange(slot.total, {}));
        slot.sparse_row = {};
        slot.sparse_levels.clear();
    }
}

Status GradientTree::add(const std::string& tensor, const float* gradient, int64_t rows, int64_t cols) {
    const auto found = parameters_.id(tensor == "lm_head.weight" ? head_ : tensor);
    if (!found.ok() && part_) return Ok{};
    NIBBLE_TRY(const size_t id, found);
    const size_t size = parameters_.master(id).size();
    if (static_cast<size_t>(rows * cols) != size)
        return fail("the gradient of '{}' has {} x {} numbers, the parameter {}", tensor, rows, cols, size);
    Slot& slot = slots_[id];
    if (slot.row.empty()) {
        slot.row = take(slot, size);
        std::copy_n(gradient, size, slot.row.begin());
        return Ok{};
    }
    add_into(slot.row, gradient);
    return Ok{};
}

Status GradientTree::add_rows(const std::string& tensor, std::span<const int32_t> ids, const float* gradient,
                              int64_t cols, float scale) {
    const auto found = parameters_.id(tensor);
    if (!found.ok() && part_) return Ok{};
    NIBBLE_TRY(const size_t id, found);
    Slot& slot = slots_[id];
    if (cols != slot.cols) return fail("the gradient of '{}' has {} columns, the parameter {}", tensor, cols, slot.cols);
    SparseRows rows;
    rows.ids.assign(ids.begin(), ids.end());
    std::ranges::sort(rows.ids);
    rows.ids.erase(std::unique(rows.ids.begin(), rows.ids.end()), rows.ids.end());
    rows.values.resize(rows.ids.size() * static_cast<size_t>(cols));
    for (size_t i = 0; i < ids.size(); ++i) {
        const auto at = std::ranges::lower_bound(rows.ids, ids[i]) - rows.ids.begin();
        float* to = rows.values.data() + at * cols;
        for (int64_t j = 0; j < cols; ++j) to[j] += scale * gradient[static_cast<int64_t>(i) * cols + j];
    }
    slot.sparse_row = slot.sparse_row.ids.empty() ? std::move(rows) : merge(slot.sparse_row, rows, cols);
    return Ok{};
}

GradientTree::SparseRows GradientTree::merge(const SparseRows& a, const SparseRows& b, int64_t cols) {
    SparseRows sum;
    std::ranges::set_union(a.ids, b.ids, std::back_inserter(sum.ids));
    sum.values.resize(sum.ids.size() * static_cast<size_t>(cols));
    size_t i = 0, j = 0;
    float* to = sum.values.data();
    for (const int32_t id : sum.ids) {
        const float* left = i < a.ids.size() && a.ids[i] == id ? a.values.data() + std::ptrdiff_t(i++) * cols : nullptr;
        const float* right =
            j < b.ids.size() && b.ids[j] == id ? b.values.data() + std::ptrdiff_t(j++) * cols : nullptr;
        for (int64_t c = 0; c < cols; ++c) to[c] = left && right ? left[c] + right[c] : left ? left[c] : right[c];
        to += cols;
    }
    return sum;
}

void GradientTree::end_row() {
    for (Slot& slot : slots_) {
        Values carry = std::exchange(slot.row, {});
        SparseRows sparse = std::exchange(slot.sparse_row, {});
        size_t level = 0;
        for (int64_t bits = count_; bits & 1; bits >>= 1, ++level) {
            if (level < slot.levels.size()) {
                Values& earlier = slot.levels[level];
                if (!earlier.empty() && !carry.empty()) add_into(earlier, carry.data());
                if (!earlier.empty()) {
                    give(slot, std::exchange(carry, std::move(earlier)));
                    earlier = {};
                }
            }
            if (level < slot.sparse_levels.size() && !slot.sparse_levels[level].ids.empty())
                sparse = merge(std::exchange(slot.sparse_levels[level], {}), sparse, slot.cols);
        }
        if (!carry.empty()) {
            if (slot.levels.size() <= level) slot.levels.resize(level + 1);
            slot.levels[level] = std::move(carry);
        }
        if (!sparse.ids.empty()) {
            if (slot.sparse_levels.size() <= level) slot.sparse_levels.resize(level + 1);
            slot.sparse_levels[level] = std::move(sparse);
        }
    }
    ++count_;
}

void GradientTree::end_step() {
    for (Slot& slot : slots_) {
        for (Values& level : slot.levels) {
            if (level.empty()) continue;
            if (!slot.total.empty()) add_into(level, slot.total.data());
            give(slot, std::exchange(slot.total, std::exchange(level, {})));
        }
        SparseRows sparse;
        for (SparseRows& level : slot.sparse_levels)
            if (!level.ids.empty()) sparse = merge(level, sparse, slot.cols);
        slot.sparse_levels.clear();
        if (sparse.ids.empty()) continue;
        if (slot.total.empty()) {
            const auto id = static_cast<size_t>(&slot - slots_.data());
            slot.total = take(slot, parameters_.master(id).size());
            std::ranges::fill(slot.total, 0.0f);
        }
        for (size_t i = 0; i < sparse.ids.size(); ++i)
            for (int64_t c = 0; c < slot.cols; ++c)
                slot.total[static_cast<size_t>(sparse.ids[i] * slot.cols + c)] +=
                    sparse.values[i * static_cast<size_t>(slot.cols) + static_cast<size_t>(c)];
    }
}

double GradientTree::norm() const {
    double sum = 0;
    for (const Slot& slot : slots_) {
        const int64_t n = std::ssize(slot.total), runs = (n + norm_run - 1) / norm_run;
        std::vector<double> parts(static_cast<size_t>(runs));
        pool_.parallel_for(runs, [&](int64_t run) {
            double part = 0;
            for (int64_t j = run * norm_run; j < std::min(n, (run + 1) * norm_run); ++j) {
                const double g = slot.total[static_cast<size_t>(j)];
                part += g * g;
            }
            parts[static_cast<size_t>(run)] = part;
        });
        sum = std::accumulate(parts.begin(), parts.end(), sum);
    }
    return std::sqrt(sum);
}

}  // namespace nibble
