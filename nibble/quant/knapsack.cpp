#include "quant/knapsack.h"

#include "quant/cbc.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>

namespace nibble {
namespace {

struct DeleteModel {
    const CbcFunctions* cbc;
    void operator()(void* model) const { cbc->delete_model(static_cast<Cbc_Model*>(model)); }
};

// Returns the choices without those that no optimal solution needs: another one is not more expensive and scores no
// worse.
std::vector<size_t> undominated(const std::vector<KnapsackChoice>& choices) {
    std::vector<size_t> order(choices.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, [&](size_t a, size_t b) {
        return std::pair(choices[a].cost, choices[a].score) < std::pair(choices[b].cost, choices[b].score);
    });
    std::vector<size_t> kept;
    for (const size_t i : order)
        if (kept.empty() || choices[i].score < choices[kept.back()].score) kept.push_back(i);
    return kept;
}

struct Column {
    size_t group, choice;
    int64_t cost;  // relative to the group's cheapest choice, in units of `unit`
    double score;  // relative to the group's best score
};

// Row g: exactly one choice of group g. Last row: the budget.
struct Programme {
    std::vector<Column> columns;
    size_t groups = 0;
    int64_t budget = 0;
};

Result<std::vector<size_t>> run_cbc(const Programme& programme) {
    NIBBLE_TRY(const CbcFunctions* const cbc, cbc_functions());
    const auto columns = static_cast<int>(programme.columns.size());
    const auto rows = static_cast<int>(programme.groups) + 1;
    std::vector<CoinBigIndex> starts;
    std::vector<int> indices;
    std::vector<double> values, objective;
    // CBC compares reduced costs with a tolerance of 1e-7, so scores are scaled to a range where this is negligible.
    double largest = 0;
    for (const Column& c : programme.columns) largest = std::max(largest, c.score);
    const double scale = largest > 0 ? 1e4 / largest : 1.0;
    for (const Column& c : programme.columns) {
        starts.push_back(static_cast<CoinBigIndex>(indices.size()));
        indices.push_back(static_cast<int>(c.group));
        values.push_back(1.0);
        if (c.cost > 0) {
            indices.push_back(rows - 1);
            values.push_back(static_cast<double>(c.cost));
        }
        objective.push_back(c.score * scale);
    }
    starts.push_back(static_cast<CoinBigIndex>(indices.size()));
    const std::vector<double> low(programme.columns.size(), 0.0), high(programme.columns.size(), 1.0);
    std::vector<double> row_low(static_cast<size_t>(rows), 1.0), row_high(static_cast<size_t>(rows), 1.0);
    row_low.back() = 0.0;
    row_high.back() = static_cast<double>(programme.budget);

    const std::unique_ptr<void, DeleteModel> owner(cbc->new_model(), DeleteModel{cbc});
    auto* model = static_cast<Cbc_Model*>(owner.get());
    cbc->load_problem(model, columns, rows, starts.data(), indices.data(), values.data(), low.data(), high.data(),
                      objective.data(), row_low.data(), row_high.data());
    for (int i = 0; i < columns; ++i) cbc->set_integer(model, i);
    cbc->set_log_level(model, 0);
    for (const char* gap : {"ratioGap", "allowableGap"}) cbc->set_parameter(model, gap, "0");
    cbc->solve(model);
    if (!cbc->is_proven_optimal(model))
        return fail("CBC stopped without a proven optimum (status {})", cbc->status(model));
    const double* solution = cbc->col_solution(model);
    std::vector<size_t> chosen(programme.groups, SIZE_MAX);
    int64_t cost = 0;
    for (size_t i = 0; i < programme.columns.size(); ++i) {
        if (std::lround(solution[i]) != 1) continue;
        const Column& c = programme.columns[i];
        if (chosen[c.group] != SIZE_MAX) return fail("CBC took two choices of group {}", c.group);
        chosen[c.group] = c.choice;
        cost += c.cost;
    }
    if (std::ranges::count(chosen, SIZE_MAX) > 0) return fail("CBC left a group without a choice");
    if (cost > programme.budget) return fail("CBC's solution exceeds the budget: {} > {}", cost, programme.budget);
    return chosen;
}

}  // namespace

Status check_knapsack_solver() {
    NIBBLE_CHECK(cbc_functions());
    return Ok{};
}

Result<std::vector<size_t>> solve_knapsack(std::span<const std::vector<KnapsackChoice>> groups, int64_t budget) {
    // The row of the budget gets small integers, so that no tolerance of the solver reaches half a unit.
    std::vector<std::vector<size_t>> kept;
    int64_t least = 0, unit = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
        for (const KnapsackChoice& c : groups[g])
            if (!(c.score >= 0) || !std::isfinite(c.score)) return fail("group {} has a score of {}", g, c.score);
        kept.push_back(undominated(groups[g]));
        if (kept.back().empty()) return fail("group {} has no choice", g);
        const int64_t cheapest = groups[g][kept.back().front()].cost;
        least += cheapest;
        for (const size_t c : kept.back()) unit = std::gcd(unit, groups[g][c].cost - cheapest);
    }
    if (least > budget) return fail("the cheapest choices cost {}, the budget is {}", least, budget);
    unit = std::max<int64_t>(unit, 1);
    Programme programme{.groups = groups.size(), .budget = (budget - least) / unit};
    int64_t most = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
        const KnapsackChoice& cheapest = groups[g][kept[g].front()];
        const double best = groups[g][kept[g].back()].score;
        for (const size_t c : kept[g])
            programme.columns.push_back({g, c, (groups[g][c].cost - cheapest.cost) / unit, groups[g][c].score - best});
        most += programme.columns.back().cost;
    }
    if (most <= programme.budget) {  // every group can have its best choice
        std::vector<size_t> chosen;
        for (const auto& choices : kept) chosen.push_back(choices.back());
        return chosen;
    }
    return run_cbc(programme);
}

}  // namespace nibble
