// Tests models with experts: rollout and training select the same experts, because they compute the same bits.
#include "rl/policy_trainer.h"
#include "rl/token_task.h"
#include "train/small_trainer.h"
#include "train/tiny_families.h"
#include "train/train_shapes.h"

#include <fmt/format.h>

namespace nibble::test {
namespace {

RlConfig moe_config() {
    RlConfig c{.prompts = 3, .generations = 4, .steps = 10, .length = 128};
    c.optimizer.learning_rate = 3e-3;
    c.loss.kl_penalty = 0;
    c.generation.most_tokens = 75;
    return c;
}

// Returns random weights larger than initial ones, so that experts and tokens differ.
std::shared_ptr<Parameters> moe_parameters(const std::string& family, ThreadPool& pool) {
    auto made = random_start(tiny(family), DType::bf16, 3, pool);
    EXPECT_TRUE(made.ok()) << made.error().message();
    for (size_t id = 0; id < (*made)->count(); ++id)
        if ((*made)->matrix(id))
            for (float& w : (*made)->master(id)) w *= 8;
    (*made)->publish(pool);
    return *made;
}

// Returns the parameters of routers, by name.
std::vector<size_t> routers(const Parameters& parameters) {
    std::vector<size_t> ids;
    for (size_t id = 0; id < parameters.count(); ++id)
        if (parameters.tensors()[id].name.ends_with(".gate.weight")) ids.push_back(id);
    return ids;
}

std::unique_ptr<Trainer> moe_trainer(const std::string& family, const TrainPrecision& precision, ThreadPool& pool) {
    auto made = Trainer::create(moe_parameters(family, pool),
                                {.precision = precision, .optimizer = moe_config().optimizer}, pool);
    EXPECT_TRUE(made.ok()) << made.error().message();
    return *std::move(made);
}

class MoeLoop : public testing::TestWithParam<std::string> {};

TEST_P(MoeLoop, NoBitDiffers) {
    for (const TrainPrecision& precision :
         {TrainPrecision{.recipe = TrainRecipe::bf16}, TrainPrecision{.recipe = TrainRecipe::fp8_block},
          TrainPrecision{.recipe = TrainRecipe::nvfp4, .row_scaled = true},
          TrainPrecision{.recipe = TrainRecipe::nvfp4, .stored_inputs = true}})
        for (const bool outlives : {false, true}) {
            SCOPED_TRACE(fmt::format("{} {}", train_recipe_name(precision.recipe), outlives));
            ThreadPool pool(2);
            RlConfig config = moe_config();
            if (outlives) {
                config.async = RlAsync{.most_age = 3, .prompts_in_flight = 5, .round_tokens = 20};
                config.loss.importance_sampling_correction = true;
            }
            const auto trainer = moe_trainer(GetParam(), precision, pool);
            const auto ids = routers(trainer->parameters());
            ASSERT_FALSE(ids.empty());
            const auto first = trainer->parameters().master(ids[0]);
            const std::vector<float> before(first.begin(), first.end());
            TokenTask task(share_of_even_tokens);
            const auto policy =
                PolicyTrainer::create(config, *trainer, task, {.end_tokens = {3, 30}, .row_tokens = 300});
            ASSERT_TRUE(policy.ok()) << policy.error().message();
            for (int s = 0; s < 3; ++s) {
                const auto step = (*policy)->step(s);
                ASSERT_TRUE(step.ok()) << step.error().message();
                EXPECT_GT(step->metrics.tokens, 20);
                EXPECT_EQ(step->metrics.mismatch_tokens, 0);
                EXPECT_EQ(step->metrics.max_abs_diff, 0);
            }
            const auto after = trainer->parameters().master(ids[0]);
            EXPECT_FALSE(std::ranges::equal(before, after));  // routers learn too
        }
}

// Negative control: the same experts, selected by other routers.
TEST_P(MoeLoop, ChangedExpertChoicesAreDetected) {
    ThreadPool pool(2);
    const auto trainer = moe_trainer(GetParam(), {}, pool);
    const auto other = moe_parameters(GetParam(), pool);
    for (const size_t id : routers(*other)) {
        const auto w = other->master(id);
        std::rotate(w.begin(), w.begin() + std::ssize(w) / 4, w.end());  // expert i now gets the tokens of expert i + 1
    }
    other->publish(pool);
    auto model = Model::load(other, {}, pool);
    ASSERT_TRUE(model.ok()) << model.error().message();
    TokenTask task(share_of_even_tokens);
    const auto policy = PolicyTrainer::create(moe_config(), *trainer, task,
                                              {.generator = std::make_shared<const Model>(*std::move(model))});
    ASSERT_TRUE(policy.ok()) << policy.error().message();
    const auto step = (*policy)->step(0);
    ASSERT_TRUE(step.ok()) << step.error().message();
    EXPECT_GT(step->metrics.mismatch_tokens, step->metrics.tokens / 2);
}

INSTANTIATE_TEST_SUITE_P(All, MoeLoop, testing::Values("qwen3_moe", "nemotron_h"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace nibble::test
