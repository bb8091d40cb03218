// Who generates the answers to which prompt, where several ranks share a step. The answers do not depend on it: only
// the time does, which is that of the slowest rank.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace nibble {

// The rank of each, by its expected work: the largest first, each to whom has least.
std::vector<int> deal_work(std::span<const double> work, int ranks);

// What a rank has done of the rollouts.
struct RankWork {
    int64_t tokens = 0;  // that it generated
    double seconds = 0;  // of generation
};
// By rank; `to` may be empty.
void add_work(std::vector<RankWork>& to, std::span<const RankWork> more);
// The most over the median (of an even number the lower of the two in the middle); 0: the median is 0.
double most_to_median(std::vector<double> values);
double tokens_most_to_median(std::span<const RankWork> ranks);
double seconds_most_to_median(std::span<const RankWork> ranks);

// How long answers to a prompt are, by its tokens: what is asked again is known.
class AnswerLengths {
public:
    void note(std::span<const int32_t> prompt, double mean_length);
    // Of one answer; where the prompt is new, the mean of all so far.
    double expected(std::span<const int32_t> prompt) const;

private:
    static constexpr size_t most_known = size_t{1} << 20;
    std::unordered_map<uint64_t, double> known_;  // the last mean
    double sum_ = 0, count_ = 0;
};

}  // namespace nibble
