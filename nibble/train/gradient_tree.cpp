#include "train/gradient_tree.h"

#include "train/rank_message.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace nibble {
namespace {

constexpr int64_t add_run = 1 << 15;   // elements per task
constexpr int64_t norm_run = 1 << 12;  // elements per partial sum

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

void GradientTree::begin_step(int64_t first_row) {
    next_row_ = first_row;
    for (Slot& slot : slots_) {
        for (Node& node : slot.nodes) give(slot, std::move(node.values));
        slot.nodes.clear();
        give(slot, std::exchange(slot.row, {}));
        give(slot, std::exchange(slot.total, {}));
        slot.sparse_row = {};
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
    if (cols != slot.cols)
        return fail("the gradient of '{}' has {} columns, the parameter {}", tensor, cols, slot.cols);
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

void GradientTree::push(Slot& slot, Node node) const {
    while (!slot.nodes.empty()) {
        Node& left = slot.nodes.back();
        const bool halves =
            left.level == node.level && left.begin + left.rows() == node.begin && left.begin % (2 * left.rows()) == 0;
        if (!halves) break;
        if (left.values.empty()) {
            left.values = std::move(node.values);
        } else if (!node.values.empty()) {
            add_into(left.values, node.values.data());
            give(slot, std::move(node.values));
        }
        if (left.sparse.ids.empty())
            left.sparse = std::move(node.sparse);
        else if (!node.sparse.ids.empty())
            left.sparse = merge(left.sparse, node.sparse, slot.cols);
        ++left.level;
        node = std::move(left);
        slot.nodes.pop_back();
    }
    slot.nodes.push_back(std::move(node));
}

void GradientTree::end_row() {
    for (Slot& slot : slots_)
        push(slot,
             {.begin = next_row_, .values = std::exchange(slot.row, {}), .sparse = std::exchange(slot.sparse_row, {})});
    ++next_row_;
}

// Sends the nodes of every parameter to its owner.
Status GradientTree::to_owners(const TrainRanks& ranks) {
    std::vector<RankBytes> to(static_cast<size_t>(ranks.size()));
    for (size_t id = 0; id < slots_.size(); ++id) {
        if (ranks.owns(id)) continue;
        RankBytes& out = to[static_cast<size_t>(ranks.owner[id])];
        put_number(out, std::ssize(slots_[id].nodes));
        for (Node& node : slots_[id].nodes) {
            put_number(out, node.begin);
            put_number(out, node.level);
            put_numbers<float>(out, node.values);
            put_numbers<int32_t>(out, node.sparse.ids);
            put_numbers<float>(out, node.sparse.values);
            give(slots_[id], std::move(node.values));
        }
        slots_[id].nodes.clear();
    }
    NIBBLE_TRY(const auto from, ranks.group->exchange(std::move(to)));
    std::vector<RankReader> readers(from.begin(), from.end());
    for (size_t id = 0; id < slots_.size(); ++id) {
        if (!ranks.owns(id)) continue;
        Slot& slot = slots_[id];
        std::vector<Node> own = std::exchange(slot.nodes, {});
        for (int r = 0; r < ranks.size(); ++r) {
            if (r == ranks.rank()) {
                for (Node& node : own) push(slot, std::move(node));
                continue;
            }
            RankReader& in = readers[static_cast<size_t>(r)];
            for (int64_t left = in.number(); left > 0; --left) {
                Node node;
                node.begin = in.number();
                node.level = in.number();
                node.values = in.numbers<float>();
                node.sparse.ids = in.numbers<int32_t>();
                node.sparse.values = in.numbers<float>();
                push(slot, std::move(node));
            }
        }
    }
    return Ok{};
}

void GradientTree::finish(size_t id) {
    Slot& slot = slots_[id];
    SparseRows sparse;
    for (size_t i = slot.nodes.size(); i-- > 0;) {
        Node& node = slot.nodes[i];
        if (!node.sparse.ids.empty()) sparse = merge(node.sparse, sparse, slot.cols);
        if (node.values.empty()) continue;
        if (!slot.total.empty()) add_into(node.values, slot.total.data());
        give(slot, std::exchange(slot.total, std::move(node.values)));
    }
    slot.nodes.clear();
    if (sparse.ids.empty()) return;
    if (slot.total.empty()) {
        slot.total = take(slot, parameters_.master(id).size());
        std::ranges::fill(slot.total, 0.0f);
    }
    for (size_t i = 0; i < sparse.ids.size(); ++i)
        for (int64_t c = 0; c < slot.cols; ++c)
            slot.total[static_cast<size_t>(sparse.ids[i] * slot.cols + c)] +=
                sparse.values[i * static_cast<size_t>(slot.cols) + static_cast<size_t>(c)];
}

Status GradientTree::end_step(const TrainRanks& ranks) {
    if (ranks.group) NIBBLE_CHECK(to_owners(ranks));
    for (size_t id = 0; id < slots_.size(); ++id)
        if (ranks.owns(id)) finish(id);
    return Ok{};
}

// Returns the sums of squares of runs, in ascending order.
std::vector<double> GradientTree::squares(const Slot& slot) const {
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
    return parts;
}

Result<double> GradientTree::norm(const TrainRanks& ranks) const {
    RankBytes own;
    std::vector<std::vector<double>> parts(slots_.size());
    for (size_t id = 0; id < slots_.size(); ++id) {
        if (!ranks.owns(id)) continue;
        parts[id] = squares(slots_[id]);
        if (ranks.group) put_numbers<double>(own, parts[id]);
    }
    if (ranks.group) {
        NIBBLE_TRY(const auto all, ranks.group->gather(std::move(own)));
        std::vector<RankReader> readers(all.begin(), all.end());
        for (size_t id = 0; id < slots_.size(); ++id)
            parts[id] = readers[static_cast<size_t>(ranks.owner[id])].numbers<double>();
    }
    double sum = 0;
    for (const std::vector<double>& part : parts) sum = std::accumulate(part.begin(), part.end(), sum);
    return std::sqrt(sum);
}

}  // namespace nibble
