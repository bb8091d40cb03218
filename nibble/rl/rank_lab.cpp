#include "rl/rank_lab.h"

#include "base/philox.h"
#include "train/check_forward.h"

#include <algorithm>

namespace nibble {
namespace {

constexpr uint64_t rank_lab_role = uint64_t{0x4E} << 56;
constexpr int rank_lab_steps = 2;  // two, so that the second uses weights updated by several ranks

// A task with random prompts. The reward is the share of even token ids.
class LabTask : public RolloutTask {
public:
    LabTask(const MismatchOptions& options, int64_t vocab) : options_(options), vocab_(static_cast<uint64_t>(vocab)) {}
    Result<RolloutPrompt> prompt(uint64_t number) override {
        const PhiloxStream stream{options_.seed, rank_lab_role | number};
        const uint64_t length = 8 + stream.block(0).word[0] % static_cast<uint64_t>(options_.longest_prompt - 7);
        RolloutPrompt p;
        for (uint64_t t = 0; t < length; ++t)
            p.tokens.push_back(static_cast<int32_t>(stream.block(t + 1).word[0] % vocab_));
        return p;
    }
    Status judge(const std::vector<RolloutPrompt>&, std::span<Rollout* const> rollouts) override {
        for (Rollout* r : rollouts)
            r->reward = static_cast<double>(std::ranges::count_if(r->tokens, [](int32_t t) { return t % 2 == 0; })) /
                        static_cast<double>(r->tokens.size());
        return Ok{};
    }

private:
    MismatchOptions options_;
    uint64_t vocab_;
};

}  // namespace

RlConfig rank_lab_config(const MismatchOptions& o) {
    RlConfig c{
        .seed = o.seed, .prompts = 8, .generations = 4, .steps = rank_lab_steps, .length = o.longest_prompt + o.answer};
    c.loss.kl_penalty = 0;
    c.optimizer.learning_rate = 1e-3;
    c.generation.most_tokens = o.answer;
    c.generation.temperature = o.sampling.temperature;
    c.generation.top_p = o.sampling.top_p, c.generation.top_k = o.sampling.top_k;
    return c;
}

int64_t rank_lab_row_tokens(const RlConfig& c) { return 4 * c.length; }

Result<RankLabRun> run_rank_lab(TrainEngine& trainer, const RlConfig& config, const MismatchOptions& options,
                                RankGroup* group, bool even_rows) {
    LabTask task(options, trainer.config().vocab);
    PolicyTrainerOptions rollouts{.ranks = group,
                                  .memory_share = 0.3,
                                  .row_tokens = rank_lab_row_tokens(config),
                                  .even_rows = even_rows,
                                  .samples = static_cast<size_t>(config.prompts * config.generations)};
    NIBBLE_TRY(const auto policy, PolicyTrainer::create(config, trainer, task, std::move(rollouts)));
    RankLabRun run;
    for (int s = 0; s < rank_lab_steps; ++s) {
        NIBBLE_TRY(RlStep step, policy->step(s));
        std::ranges::sort(step.samples, {}, &RlSample::rollout);
        for (RlSample& a : step.samples)
            run.answers.push_back({std::move(a.tokens), std::move(a.generated), std::move(a.previous)});
    }
    if (!group || group->rank() == 0) {
        NIBBLE_TRY(const TrainState state, trainer.state());
        for (const auto& values : state.masters) run.masters.insert(run.masters.end(), values.begin(), values.end());
    }
    NIBBLE_CHECK(trainer.sync());
    return run;
}

std::vector<MismatchLine> compare_rank_runs(const RankLabRun& one, const RankLabRun& several, const std::string& way) {
    MismatchLine rollout{.way = way, .rows = "rollout"}, training{.way = way, .rows = "training"},
        weights{.way = way, .rows = "weights"};
    for (size_t a = 0; a < one.answers.size(); ++a) {
        const RankLabRun::Answer& x = one.answers[a];
        const auto count_of = std::ssize(x.tokens);
        rollout.tokens += count_of, training.tokens += count_of;
        const RankLabRun::Answer* y = a < several.answers.size() ? &several.answers[a] : nullptr;
        for (size_t t = 0; t < x.tokens.size(); ++t) {
            if (!y || t >= y->tokens.size() || y->tokens[t] != x.tokens[t]) {
                ++rollout.mismatches, ++rollout.other_ids;
                ++training.mismatches;  // the trainer scored another token
                continue;
            }
            count_difference(x.generated[t], y->generated[t], rollout.mismatches, rollout.apart);
            if (t < x.trained.size() && t < y->trained.size())
                count_difference(x.trained[t], y->trained[t], training.mismatches, training.apart);
            else
                ++training.mismatches;  // a trainer did not score the token
        }
    }
    weights.tokens = std::ssize(one.masters);
    for (size_t i = 0; i < one.masters.size(); ++i)
        if (i < several.masters.size())
            count_difference(one.masters[i], several.masters[i], weights.mismatches, weights.apart);
        else
            ++weights.mismatches;
    return {rollout, training, weights};
}

}  // namespace nibble
