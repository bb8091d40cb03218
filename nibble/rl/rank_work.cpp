#include "rl/rank_work.h"

#include <xxhash.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace nibble {
namespace {

uint64_t hash_of(std::span<const int32_t> prompt) { return XXH3_64bits(prompt.data(), prompt.size_bytes()); }

}  // namespace

std::vector<int> work_owners(std::span<const double> work, int ranks) {
    std::vector<size_t> order(work.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return work[i]; });
    std::vector<double> load(static_cast<size_t>(ranks));
    std::vector<int> owner(work.size());
    for (const size_t i : order) {
        const auto least = std::ranges::min_element(load);
        *least += work[i];
        owner[i] = static_cast<int>(least - load.begin());
    }
    return owner;
}

void add_work(std::vector<RankWork>& to, std::span<const RankWork> more) {
    if (to.empty()) to.resize(more.size());
    for (size_t r = 0; r < more.size(); ++r) to[r].tokens += more[r].tokens, to[r].seconds += more[r].seconds;
}

double most_to_median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::ranges::sort(values);
    const double median = values[(values.size() - 1) / 2];
    return median > 0 ? values.back() / median : 0;
}

double tokens_most_to_median(std::span<const RankWork> ranks) {
    std::vector<double> values;
    for (const RankWork& r : ranks) values.push_back(static_cast<double>(r.tokens));
    return most_to_median(std::move(values));
}

double seconds_most_to_median(std::span<const RankWork> ranks) {
    std::vector<double> values;
    for (const RankWork& r : ranks) values.push_back(r.seconds);
    return most_to_median(std::move(values));
}

void AnswerLengths::note(std::span<const int32_t> prompt, double mean_length) {
    if (known_.size() >= most_known) known_.clear();
    known_[hash_of(prompt)] = mean_length;
    sum_ += mean_length, ++count_;
}

double AnswerLengths::expected(std::span<const int32_t> prompt) const {
    if (const auto found = known_.find(hash_of(prompt)); found != known_.end()) return found->second;
    return count_ > 0 ? sum_ / count_ : 0;
}

}  // namespace nibble
