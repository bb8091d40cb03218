// Tests learning on problems whose best policy is known.
#include "rl/frozen_policy.h"
#include "rl/policy_trainer.h"
#include "rl/token_task.h"
#include "train/small_trainer.h"

#include <cmath>

namespace nibble::test {
namespace {

// A bandit: one question that is answered by one token, the arm.
class Bandit : public RolloutTask {
public:
    explicit Bandit(std::function<double(int32_t arm)> reward) : reward_(std::move(reward)) {}
    Result<RolloutPrompt> prompt(uint64_t) override { return RolloutPrompt{.tokens = question}; }
    Status judge(const std::vector<RolloutPrompt>&, std::span<Rollout* const> rollouts) override {
        for (Rollout* r : rollouts) r->reward = reward_(r->tokens[0]);
        return Ok{};
    }
    double reward(int32_t arm) const { return reward_(arm); }
    inline static const std::vector<int32_t> question{5, 17, 2, 9};

private:
    std::function<double(int32_t)> reward_;
};

constexpr size_t arms = 48;  // the vocabulary size

// Returns log p(arm) of every arm by the trainer.
std::vector<double> policy_of(TrainEngine& trainer) {
    TrainBatch batch{.rows = 1};
    for (size_t arm = 0; arm < arms; ++arm) {
        batch.documents.push_back(batch.seq);
        batch.tokens.insert(batch.tokens.end(), Bandit::question.begin(), Bandit::question.end());
        batch.labels.insert(batch.labels.end(), {-1, -1, -1, static_cast<int32_t>(arm)});
        batch.seq += 4;
    }
    std::vector<float> all(batch.tokens.size());
    EXPECT_TRUE(trainer.log_probs(batch, all).ok());
    std::vector<double> log_probs;
    for (size_t arm = 0; arm < arms; ++arm) log_probs.push_back(all[4 * arm + 3]);
    return log_probs;
}

double divergence(const std::vector<double>& p, const std::vector<double>& q) {
    double sum = 0;
    for (size_t a = 0; a < arms; ++a) sum += std::exp(p[a]) * (p[a] - q[a]);
    return sum;
}

RlConfig bandit_config() {
    RlConfig c{.prompts = 1, .generations = 256, .steps = 1000, .length = 16};
    c.generation.most_tokens = 1;
    c.advantage.normalize_rewards = false;
    c.loss.kl_penalty = 0;
    c.optimizer.weight_decay = 0;
    return c;
}

// The best policy of  E[r] - beta KL(policy || reference)  is proportional to reference * exp(r / beta).
void expect_the_optimum(RlConfig config) {
    ThreadPool pool(2);
    const double beta = config.loss.kl_penalty = 0.5;
    config.optimizer.learning_rate = 2e-3;
    const auto trainer = small_trainer(pool, {.optimizer = config.optimizer});
    const auto reward = [](int32_t arm) { return arm % 4 / 3.0; };
    Bandit task(reward);
    PolicyTrainerOptions options{.sequences = 256, .row_tokens = 256};
    auto reference = FrozenPolicy::create(*small_checkpoint(), {}, "", pool);
    ASSERT_TRUE(reference.ok());
    options.reference = *std::move(reference);
    const auto policy = PolicyTrainer::create(config, *trainer, task, options);
    ASSERT_TRUE(policy.ok()) << policy.error().message();
    const std::vector<double> start = policy_of(*trainer);
    std::vector<double> best;
    double mass = 0;
    for (size_t a = 0; a < arms; ++a) mass += std::exp(start[a] + reward(int32_t(a)) / beta);
    for (size_t a = 0; a < arms; ++a) best.push_back(start[a] + reward(int32_t(a)) / beta - std::log(mass));
    for (int s = 0; s < 100; ++s) {
        const auto step = (*policy)->step(s);
        ASSERT_TRUE(step.ok()) << step.error().message();
        EXPECT_EQ(step->metrics.mismatch_tokens, 0);
        EXPECT_EQ(step->kl_in_reward.has_value(), config.loss.kl_in_reward);
        if (!config.loss.kl_in_reward) continue;
        EXPECT_EQ(step->metrics.kl_penalty, 0);
        if (s == 0) {
            EXPECT_EQ(*step->kl_in_reward, 0);  // the reference equals the policy
        } else if (s == 99) {
            EXPECT_NEAR(*step->kl_in_reward, divergence(best, start), 0.1);
        }
    }
    EXPECT_GT(divergence(start, best), 0.25);
    EXPECT_LT(divergence(policy_of(*trainer), best), 0.01);
}

TEST(Learning, ABanditWithAPenaltyFindsItsOptimum) { expect_the_optimum(bandit_config()); }

// REINFORCE++ with the KL estimate in the reward: if r - beta log(p / reference) is equal for all arms, whitened
// advantages are 0, so the optimum is the same.
TEST(Learning, ABanditWithThePenaltyInItsRewardFindsTheSameOptimum) {
    RlConfig config = bandit_config();
    config.advantage.estimator = AdvantageEstimator::reinforce_plus_plus;
    config.loss.kl_in_reward = true;
    config.loss.kl_type = KlEstimator::k1;
    expect_the_optimum(config);
}

double mean_reward(const std::vector<double>& log_probs, const Bandit& bandit) {
    double mean = 0;
    for (size_t a = 0; a < arms; ++a) mean += std::exp(log_probs[a]) * bandit.reward(static_cast<int32_t>(a));
    return mean;
}

// A good policy continues to learn from an outdated generator: the initial weights in NVFP4. The generator rarely
// samples the best arm and often a poor one. Without importance weights the steps follow q(a) (r(a) - mean), where q is
// the generator's distribution; the poor arm wins and the policy is lost. With weights they follow the policy's own
// gradient.
TEST(Learning, ADifferentGeneratorRuinsAPolicyUnlessItsTokensAreWeighted) {
    ThreadPool pool(2);
    const auto parameters = small_parameters(pool, DType::bf16);
    const auto coarse = Trainer::create(parameters, {.precision = {.recipe = TrainRecipe::nvfp4}}, pool);
    ASSERT_TRUE(coarse.ok());
    const auto generator = (*coarse)->serving();
    ASSERT_TRUE(generator.ok());
    const std::vector<double> drawn = policy_of(**coarse);
    const auto poor = static_cast<int32_t>(std::ranges::max_element(drawn) - drawn.begin());
    // The most likely arm below 1 %.
    int32_t best = -1;
    for (size_t a = 0; a < arms; ++a)
        if (drawn[a] < std::log(0.01) && (best < 0 || drawn[a] > drawn[size_t(best)])) best = static_cast<int32_t>(a);
    ASSERT_GT(std::exp(drawn[size_t(poor)]), 5 * std::exp(drawn[size_t(best)]));
    double of_poor = 0;
    Bandit task([&](int32_t arm) { return arm == best ? 1.0 : arm == poor ? of_poor : 0.0; });

    for (const bool corrected : {false, true}) {
        RlConfig config = bandit_config();
        config.optimizer.learning_rate = 1e-2;
        config.loss.importance_sampling_correction = corrected;
        const auto trainer = small_trainer(pool, {.optimizer = config.optimizer});
        int64_t steps = 0;
        const auto learn = [&](int count, std::shared_ptr<const LanguageModel> from) {
            const PolicyTrainerOptions options{.generator = std::move(from), .sequences = 256, .row_tokens = 256};
            const auto policy = PolicyTrainer::create(config, *trainer, task, options);
            ASSERT_TRUE(policy.ok()) << policy.error().message();
            ASSERT_TRUE((*policy)->set_place({{"prompt", steps}}).ok());
            for (int s = 0; s < count; ++s) {
                const auto step = (*policy)->step(steps++);
                ASSERT_TRUE(step.ok()) << step.error().message();
            }
        };
        of_poor = 0;
        learn(40, nullptr);
        of_poor = 0.4;
        const double before = mean_reward(policy_of(*trainer), task);
        learn(60, *generator);
        const double after = mean_reward(policy_of(*trainer), task);
        EXPECT_GT(before, 0.9);
        if (corrected)
            EXPECT_GT(after, 0.9);
        else
            EXPECT_LT(after, 0.5);
    }
}

}  // namespace
}  // namespace nibble::test
