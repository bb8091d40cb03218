// Assigns prompts to the ranks that generate their answers. The answers do not depend on the assignment, but the time
// of a step is that of its slowest rank.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace nibble {

// Returns the rank of each item. The largest item comes first, and each goes to the rank with the least work so far.
std::vector<int> work_owners(std::span<const double> work, int ranks);

// Work of one rank in the rollouts.
struct RankWork {
    int64_t tokens = 0;  // generated tokens
    double seconds = 0;  // duration of generation
};
// Adds `more` to `to`, rank by rank. `to` may be empty.
void add_work(std::vector<RankWork>& to, std::span<const RankWork> more);
// Returns the maximum divided by the median (for an even count, the lower middle value), or 0 if the median is 0.
double most_to_median(std::vector<double> values);
double tokens_most_to_median(std::span<const RankWork> ranks);
double seconds_most_to_median(std::span<const RankWork> ranks);

// Predicts the length of answers from earlier answers to the same prompt.
class AnswerLengths {
public:
    void note(std::span<const int32_t> prompt, double mean_length);
    // Returns the expected tokens of one answer. For a new prompt it is the mean over all answers so far.
    double expected(std::span<const int32_t> prompt) const;

private:
    static constexpr size_t most_known = size_t{1} << 20;
    std::unordered_map<uint64_t, double> known_;  // last mean length by hash of the prompt
    double sum_ = 0, count_ = 0;
};

}  // namespace nibble
