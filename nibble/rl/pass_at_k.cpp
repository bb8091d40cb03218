#include "rl/pass_at_k.h"

#include <algorithm>
#include <bit>
#include <map>
#include <vector>

namespace nibble {

double pass_at_k(int64_t n, int64_t c, int64_t k) {
    if (n - c < k) return 1;
    double none = 1;  // probability that none of k answers is correct
    for (int64_t i = n - c + 1; i <= n; ++i) none *= 1 - static_cast<double>(k) / static_cast<double>(i);
    return 1 - none;
}

double cons_at_k(std::span<const std::string> answers, std::span<const uint8_t> right, int64_t k) {
    const size_t n = answers.size();
    std::map<std::string_view, size_t> number;
    std::vector<size_t> kind(n);
    std::vector<uint8_t> kind_right;
    for (size_t i = 0; i < n; ++i) {
        const auto [place, added] = number.try_emplace(answers[i], number.size());
        if (added) kind_right.push_back(right[i]);
        kind[i] = place->second;
    }
    double sum = 0, subsets = 0;
    std::vector<int> votes(kind_right.size());
    for (uint32_t subset = 0; subset < uint32_t{1} << n; ++subset) {
        if (std::popcount(subset) != k) continue;
        std::ranges::fill(votes, 0);
        for (size_t i = 0; i < n; ++i) votes[kind[i]] += subset >> i & 1;
        const int most = *std::ranges::max_element(votes);
        double tied = 0, tied_right = 0;
        for (size_t v = 0; v < votes.size(); ++v)
            if (votes[v] == most) ++tied, tied_right += kind_right[v];
        sum += tied_right / tied, ++subsets;
    }
    return sum / subsets;
}

}  // namespace nibble
