#include "quant/search.h"

#include "quant/knapsack.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

constexpr std::pair<ScoreMethod, std::string_view> method_names[] = {{ScoreMethod::fisher, "fisher"},
                                                                     {ScoreMethod::modelopt, "modelopt"},
                                                                     {ScoreMethod::kl, "kl"},
                                                                     {ScoreMethod::given, "given"}};

}  // namespace

std::string_view method_name(ScoreMethod method) {
    return std::ranges::find(method_names, method, &std::pair<ScoreMethod, std::string_view>::first)->second;
}

Result<ScoreMethod> parse_score_method(std::string_view word) {
    for (const auto& [method, name] : method_names)
        if (name == word && method != ScoreMethod::given) return method;
    return fail("unknown --score '{}'; choices: fisher, modelopt, kl", word);
}

void SearchScores::make_monotone() {
    for (auto& group : values)
        for (size_t i = 1; i < group.size(); ++i) group[i] = std::min(group[i], group[i - 1]);
}

Result<SearchPoint> choose(const SearchSpace& space, const SearchScores& scores, double target) {
    if (!(target > 0) || target > 16) return fail("{} effective bits: give a target of at most 16", target);
    const double least = space.least_bits(), most = space.most_bits();
    const int64_t budget = std::llround(target * 1000) * space.units();
    std::vector<std::vector<KnapsackChoice>> groups(space.groups.size());
    int64_t cheapest = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
        const SearchGroup& group = space.groups[g];
        for (size_t i = 0; i < group.candidates.size(); ++i)
            groups[g].push_back({space.cost(g, group.candidates[i]), scores.values[g][i]});
        cheapest += std::ranges::min(groups[g], {}, &KnapsackChoice::cost).cost;
    }
    if (cheapest > budget)
        return fail("{} effective bits cannot be reached: these formats and constraints reach from {:.3f} to {:.3f}",
                    target, std::ceil(least * 1000) / 1000, most);
    NIBBLE_TRY(const auto chosen, solve_knapsack(groups, budget));
    SearchPoint point{.target = target};
    for (size_t g = 0; g < groups.size(); ++g) {
        point.choice.push_back(space.groups[g].candidates[chosen[g]]);
        point.score += scores.values[g][chosen[g]];
    }
    point.bits = space.bits(point.choice);
    return point;
}

Result<std::vector<SearchPoint>> sweep(const SearchSpace& space, const SearchScores& scores, double low, double high,
                                       double step) {
    if (!(step > 0) || !(high >= low)) return fail("a sweep from {} to {} by {} has no points", low, high, step);
    constexpr double most_points = 1000;  // each point is an optimization
    if ((high - low) / step > most_points)
        return fail("a sweep from {} to {} by {} has more than {} points", low, high, step, most_points);
    std::vector<SearchPoint> points;
    for (int i = 0; low + i * step <= high + 1e-9; ++i) {
        const double target = low + i * step;
        // Targets above the cost of the best choices change nothing.
        if (std::llround(target * 1000) < std::llround(std::ceil(space.least_bits() * 1000 - 1e-6))) continue;
        NIBBLE_TRY(auto point, choose(space, scores, target));
        points.push_back(std::move(point));
    }
    return points;
}

}  // namespace nibble
