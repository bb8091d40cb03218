// Tests temperatures other than 1, top-p and top-k: training learns the sampled distribution.
#include "rl/frozen_policy.h"
#include "rl/policy_trainer.h"
#include "rl/token_task.h"
#include "train/small_trainer.h"

#include <cmath>
#include <set>

namespace nibble::test {
namespace {

RlConfig warm_config(double temperature) {
    RlConfig c{.prompts = 3, .generations = 4, .steps = 10, .length = 128};
    c.optimizer.learning_rate = 3e-3;
    c.loss.kl_penalty = 0.01;
    c.generation.most_tokens = 70;
    c.generation.temperature = temperature;
    return c;
}

std::vector<RlStep> warm_steps(const RlConfig& config, const TrainPrecision& precision,
                               const SamplingParams& of_trainer) {
    ThreadPool pool(2);
    const auto trainer =
        small_trainer(pool, {.precision = precision, .optimizer = config.optimizer, .sampling = of_trainer});
    TokenTask task(share_of_even_tokens);
    PolicyTrainerOptions options{.end_tokens = {3}};
    auto reference = FrozenPolicy::create(*small_checkpoint(), precision, "", pool, of_trainer.temperature);
    EXPECT_TRUE(reference.ok()) << reference.error().message();
    options.reference = *std::move(reference);
    const auto policy = PolicyTrainer::create(config, *trainer, task, options);
    EXPECT_TRUE(policy.ok()) << policy.error().message();
    std::vector<RlStep> steps;
    for (int s = 0; s < 2; ++s) {
        auto step = (*policy)->step(s);
        EXPECT_TRUE(step.ok()) << step.error().message();
        if (step.ok()) steps.push_back(*std::move(step));
    }
    return steps;
}

TEST(Temperature, NoBitDiffers) {
    for (const double t : {0.7, 1.6})
        for (const TrainPrecision& precision :
             {TrainPrecision{.recipe = TrainRecipe::bf16}, TrainPrecision{.recipe = TrainRecipe::fp8_block}})
            for (const RlStep& step : warm_steps(warm_config(t), precision, warm_config(t).generation.sampling())) {
                EXPECT_GT(step.metrics.tokens, 100);
                EXPECT_EQ(step.metrics.mismatch_tokens, 0);
                EXPECT_EQ(step.metrics.max_abs_diff, 0);
                EXPECT_EQ(step.metrics.kl_penalty == 0, step.step == 0);
            }
    // Negative control: a trainer without these settings.
    const auto other = warm_steps(warm_config(0.7), {}, {});
    ASSERT_EQ(other.size(), 2u);
    EXPECT_GT(other[0].metrics.mismatch_tokens, other[0].metrics.tokens / 2);
}

// Compares with the raw log-probabilities of the whole vocabulary.
TEST(Temperature, LogProbabilitiesAreThoseOfTheScaledDistribution) {
    ThreadPool pool(2);
    const auto trainer = small_trainer(pool, {});
    const auto model = trainer->serving();
    ASSERT_TRUE(model.ok());
    const auto engine = Engine::create(*model, std::nullopt, {.sequences = 2, .context = 64});
    ASSERT_TRUE(engine.ok()) << engine.error().message();
    const auto vocab = static_cast<int32_t>(trainer->config().vocab);
    Request request{.prompt = {1, 2, 3}, .max_tokens = 20, .top_logprobs = vocab};
    request.sampling.temperature = 0.6f;
    std::vector<WholeAnswer> raw, scaled;
    ASSERT_TRUE(answer_all(**engine, {request}, {}, raw).ok());
    request.sampled_logprobs = true;
    request.top_logprobs = -1;
    ASSERT_TRUE(answer_all(**engine, {request}, {}, scaled).ok());
    ASSERT_EQ(raw[0].tokens.size(), scaled[0].tokens.size());
    for (size_t i = 0; i < raw[0].tokens.size(); ++i) {
        ASSERT_EQ(raw[0].tokens[i].id, scaled[0].tokens[i].id);
        double sum = 0;
        for (const TokenLogprob& t : raw[0].tokens[i].top) sum += std::exp(double{t.logprob} / 0.6);
        EXPECT_NEAR(scaled[0].tokens[i].logprob, double{raw[0].tokens[i].logprob} / 0.6 - std::log(sum), 1e-4);
    }
    // The five most likely tokens.
    request.sampling.top_k = 5;
    std::vector<WholeAnswer> five;
    ASSERT_TRUE(answer_all(**engine, {request}, {}, five).ok());
    double sum = 0;  // the first token's context is the same
    const GeneratedToken& first = raw[0].tokens[0];
    for (size_t i = 0; i < 5; ++i) sum += std::exp(double{first.top[i].logprob} / 0.6);
    for (size_t i = 0; i < 5; ++i)
        if (first.top[i].id == five[0].tokens[0].id) {
            EXPECT_NEAR(five[0].tokens[0].logprob, double{first.top[i].logprob} / 0.6 - std::log(sum), 1e-4);
            sum = 0;
        }
    EXPECT_EQ(sum, 0);  // the token is one of the five
    request.sampling.presence_penalty = 1;
    const auto refused = (*engine)->submit(request, [](const AnswerEvent&) {});
    EXPECT_EQ(refused.message, "sampled_logprobs requires that only temperature and filters change the distribution");
}

// Temperature 2 equals a head with half the weights: equal bits, except for the head's own gradient.
TEST(Temperature, GradientsAreThoseOfSmallerLogits) {
    ThreadPool pool(2);
    const TrainBatch batch = random_batch(2, 24, small_llama().at("vocab_size").get<int64_t>(), 3);
    std::vector<std::vector<float>> said[2], gradients[2];
    std::vector<std::string> names;
    for (const bool half : {false, true}) {
        auto checkpoint = small_checkpoint();
        if (half) checkpoint->scale("lm_head.weight", 0.5f);
        auto parameters = Parameters::copy(*checkpoint, DType::bf16, pool);
        ASSERT_TRUE(parameters.ok());
        TrainerOptions options;
        options.sampling.temperature = half ? 1 : 2;
        const auto trainer = Trainer::create(*parameters, options, pool);
        ASSERT_TRUE(trainer.ok()) << trainer.error().message();
        const auto step = (*trainer)->backward(
            std::span(&batch, 1),
            [&](int64_t, std::span<const float> log_probs, std::span<float> slopes, double&) -> Status {
                said[half].emplace_back(log_probs.begin(), log_probs.end());
                for (size_t i = 0; i < slopes.size(); ++i) slopes[i] = static_cast<float>(i % 5) - 2.0f;
                return Ok{};
            });
        ASSERT_TRUE(step.ok()) << step.error().message();
        for (size_t id = 0; id < (*parameters)->count(); ++id) {
            if (!half) names.push_back((*parameters)->tensors()[id].name);
            const auto g = (*trainer)->gradients().gradient(id);
            gradients[half].emplace_back(g.begin(), g.end());
        }
    }
    EXPECT_EQ(said[0], said[1]);
    for (size_t id = 0; id < names.size(); ++id)
        EXPECT_EQ(gradients[0][id] == gradients[1][id], names[id] != "lm_head.weight") << names[id];
}

// Central differences of sum(log p) by elements of the head: excluded tokens have no gradient.
TEST(Temperature, GradientsWithFilters) {
    ThreadPool pool(2);
    const TrainBatch batch = random_batch(1, 16, 48, 4);
    TrainerOptions options{.precision = {.recipe = TrainRecipe::fp32}};
    options.sampling = {.temperature = 0.8f, .top_k = 12, .top_p = 0.97f};
    const auto trainer_with = [&](size_t element, float change) {
        auto parameters = Parameters::copy(*small_checkpoint(), DType::f32, pool);
        EXPECT_TRUE(parameters.ok());
        (*parameters)->master(*(*parameters)->id("lm_head.weight"))[element] += change;
        (*parameters)->publish(pool);
        auto made = Trainer::create(*parameters, options, pool);
        EXPECT_TRUE(made.ok()) << made.error().message();
        return *std::move(made);
    };
    int kept = 0, left_out = 0;
    const auto said = [&](size_t element, float change) {
        std::vector<float> log_probs(16);
        EXPECT_TRUE(trainer_with(element, change)->log_probs(batch, log_probs).ok());
        double sum = 0;
        kept = left_out = 0;
        for (size_t i = 0; i < 16; ++i)
            if (batch.labels[i] >= 0) std::isfinite(log_probs[i]) ? (++kept, sum += log_probs[i]) : ++left_out;
        return sum;
    };
    const auto trainer = trainer_with(0, 0);
    const auto step =
        trainer->backward(std::span(&batch, 1),
                          [&](int64_t, std::span<const float> log_probs, std::span<float> slopes, double&) -> Status {
                              for (size_t i = 0; i < slopes.size(); ++i)
                                  slopes[i] = std::isfinite(log_probs[i]) ? 1.0f : 0.0f;
                              return Ok{};
                          });
    ASSERT_TRUE(step.ok()) << step.error().message();
    const auto gradient = trainer->gradients().gradient(*trainer->parameters().id("lm_head.weight"));
    for (size_t element = 3; element < gradient.size(); element += 131) {
        const double apart = said(element, 1e-3f) - said(element, -1e-3f);
        EXPECT_NEAR(gradient[element], apart / 2e-3, 2e-2 * (1 + std::abs(gradient[element]))) << element;
    }
    EXPECT_GT(kept, 2);
    EXPECT_GT(left_out, 2);
}

// Filters keep the same tokens on both sides. New weights may exclude a token that old weights sampled.
TEST(Temperature, FiltersKeepTheSameTokens) {
    for (const bool several : {false, true})
        for (const TrainPrecision& precision :
             {TrainPrecision{.recipe = TrainRecipe::bf16}, TrainPrecision{.recipe = TrainRecipe::fp8_block}}) {
            RlConfig config = warm_config(0.8);
            config.loss.kl_penalty = 0;
            config.generation.top_p = 0.9, config.generation.top_k = 12;
            config.optimizer.learning_rate = 1e-2;
            if (several) config.train_batch = 4;
            int64_t filtered = 0;
            for (const RlStep& step : warm_steps(config, precision, config.generation.sampling())) {
                EXPECT_EQ(step.metrics.mismatch_tokens, 0);
                EXPECT_EQ(step.metrics.max_abs_diff, 0);
                EXPECT_EQ(step.metrics.tokens + step.metrics.filtered_tokens, step.generated_tokens);
                EXPECT_TRUE(std::isfinite(step.metrics.loss));
                filtered += step.metrics.filtered_tokens;
            }
            EXPECT_EQ(filtered > 0, several);
            if (several) continue;
            // Negative controls: without the filters, and with others.
            SamplingParams other = config.generation.sampling();
            other.top_k = 0;
            EXPECT_GT(warm_steps(config, precision, other)[0].metrics.mismatch_tokens, 0);
            other.top_k = 4;
            EXPECT_GT(warm_steps(config, precision, other)[0].metrics.mismatch_tokens, 0);
        }
}

TEST(Temperature, ValidationMayHaveItsOwn) {
    for (const std::optional<double>& own : {std::optional<double>(), std::optional(0.0)}) {
        ThreadPool pool(2);
        RlConfig config = warm_config(1.5);
        config.loss.kl_penalty = 0;
        config.validation_prompts = 1, config.validation_answers = 6;
        config.generation.validation_temperature = own;
        const auto trainer = small_trainer(pool, {.sampling = config.generation.sampling()});
        std::set<std::vector<int32_t>> answers;
        TokenTask task([&](const RolloutPrompt&, const Rollout& r) { return answers.insert(r.tokens), 1.0; });
        const auto policy = PolicyTrainer::create(config, *trainer, task, {});
        ASSERT_TRUE(policy.ok()) << policy.error().message();
        ASSERT_TRUE((*policy)->validate().ok());
        EXPECT_EQ(answers.size(), own ? 1u : 6u);
    }
}

}  // namespace
}  // namespace nibble::test
