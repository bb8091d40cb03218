#include "rl/weigh_rollouts.h"

#include "rl/advantage.h"

#include <algorithm>

namespace nibble {
namespace {

void shape(const RlConfig& config, RolloutBatch& batch) {
    for (Rollout& r : batch.rollouts) {
        if (!r.reward) continue;
        r.shaped = config.scaling ? scaled_reward(*r.reward, *config.scaling) : *r.reward;
        if (config.shaping) r.shaped = shaped_reward(r.shaped, r.length(), r.cut, *config.shaping);
    }
}

}  // namespace

bool all_equal(std::span<const Rollout> group, const std::optional<RewardScaling>& scaling) {
    std::optional<double> first;
    for (const Rollout& r : group) {
        if (!r.reward) continue;
        const double reward = scaling ? scaled_reward(*r.reward, *scaling) : *r.reward;
        if (first && reward != *first) return false;
        first = reward;
    }
    return true;
}

Status weigh_rollouts(const RlConfig& config, RolloutBatch& batch, RlStep& step) {
    shape(config, batch);
    std::vector<double> rewards;
    std::vector<int64_t> groups, lengths;
    std::vector<Rollout*> judged;
    int64_t generated = 0;  // without answers whose prompts left no room
    for (Rollout& r : batch.rollouts) {
        const int64_t length = r.length();
        generated += length > 0;
        step.mean_length += static_cast<double>(length);
        step.longest = std::max(step.longest, length);
        step.cut_share += r.cut;
        step.mean_turns += static_cast<double>(r.turns),
            step.turn_limit_share += !r.observation.empty() && r.turns == config.most_turns;
        if (!r.reward) {
            ++step.failures;
            if (step.failure_reasons.size() < 4) step.failure_reasons.push_back(r.failure);
            continue;
        }
        step.reward += *r.reward, step.shaped_reward += r.shaped, step.accuracy += *r.reward == 1;
        judged.push_back(&r);
        rewards.push_back(r.shaped);
        groups.push_back(static_cast<int64_t>(r.prompt));
        lengths.push_back(length);
    }
    step.prompts = std::ssize(batch.prompts), step.answers = std::ssize(batch.rollouts);
    if (judged.empty())
        return fail("step {}: none of the {} answers could be judged: {}", step.step, step.answers,
                    step.failure_reasons.empty() ? "" : step.failure_reasons[0]);
    const auto all = static_cast<double>(std::max<int64_t>(generated, 1)),
               of_judged = static_cast<double>(judged.size());
    for (double* mean : {&step.mean_length, &step.cut_share, &step.mean_turns, &step.turn_limit_share}) *mean /= all;
    step.reward /= of_judged, step.shaped_reward /= of_judged, step.accuracy /= of_judged;
    NIBBLE_TRY(const auto values, advantages(rewards, groups, lengths, config.advantage));
    for (size_t i = 0; i < judged.size(); ++i) judged[i]->advantage = values[i];
    const auto group = static_cast<size_t>(config.generations);
    for (size_t p = 0; p < batch.prompts.size(); ++p) {
        const auto answers = std::span(std::as_const(batch.rollouts)).subspan(p * group, group);
        step.equal_groups += all_equal(answers, config.scaling);
    }
    return Ok{};
}

}  // namespace nibble
