// A task for tests of the whole loop, without texts.
#pragma once

#include "rl/rollout.h"

#include <functional>

namespace nibble::test {

// Prompts of a few tokens that follow from their number. A function judges the answers.
class TokenTask : public RolloutTask {
public:
    using Judge = std::function<std::optional<double>(const RolloutPrompt&, const Rollout&)>;
    explicit TokenTask(Judge judge, size_t length = 5) : judge_(std::move(judge)), length_(length) {}
    Result<RolloutPrompt> prompt(uint64_t number) override {
        RolloutPrompt p{.question = std::to_string(number)};
        for (size_t i = 0; i < length_; ++i) p.tokens.push_back(static_cast<int32_t>((number * 7 + i * i) % 40 + 1));
        return p;
    }
    Status judge(const std::vector<RolloutPrompt>& prompts, std::span<Rollout* const> rollouts) override {
        for (Rollout* r : rollouts) {
            r->reward = judge_(prompts[r->prompt], *r);
            if (!r->reward) r->failure = "not judged";
            if (r->reward) r->answer = std::to_string(*r->reward);  // equal rewards count as equal answers
        }
        return Ok{};
    }

private:
    Judge judge_;
    size_t length_;
};

inline std::optional<double> share_of_even_tokens(const RolloutPrompt&, const Rollout& r) {
    double even = 0;
    for (const int32_t id : r.tokens) even += id % 2 == 0;
    return even / static_cast<double>(r.tokens.size());
}

}  // namespace nibble::test
