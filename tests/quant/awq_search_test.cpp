// AWQ on whole models: folding does not change the computed function, and the search finds scales that were hidden in a
// model.
#include "quant/awq_search.h"

#include "model/models.h"
#include "quant/input_scales.h"
#include "quant/resolve.h"
#include "quant/trial_checkpoint.h"

#include <random>

namespace nibble::test {
namespace {

std::vector<std::vector<int32_t>> random_texts(int64_t vocab, int count, int length) {
    std::mt19937 random(5);
    std::vector<std::vector<int32_t>> texts(static_cast<size_t>(count));
    for (auto& text : texts)
        for (int i = 0; i < length; ++i) text.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(vocab)));
    return texts;
}

Plan plan_for(const Checkpoint& source, const std::string& recipe) {
    auto parsed = parse_recipe(recipe, "r.yaml");
    EXPECT_TRUE(parsed.ok()) << parsed.error().message();
    auto plan = resolve(*parsed, source.tensors(), source.config());
    EXPECT_TRUE(plan.ok()) << plan.error().message();
    return *std::move(plan);
}

const std::string awq_recipe = R"(
imports: {off: configs/ptq/units/base_disable_all, nvfp4: configs/numerics/nvfp4, rest: configs/ptq/units/default_disabled_quantizers}
algorithm: {method: awq_lite, alpha_step: 0.25}
quant_cfg:
  - $import: off
  - {quantizer_name: '*weight_quantizer', cfg: {$import: nvfp4}}
  - $import: rest
)";

std::vector<float> logits_of(std::shared_ptr<const Checkpoint> checkpoint,
                             const std::vector<std::vector<int32_t>>& texts, ThreadPool& pool) {
    ModelOptions options;
    options.compute = Compute::f32;
    options.kv = KvFormat::none;
    auto model = Model::load(std::move(checkpoint), options, pool);
    EXPECT_TRUE(model.ok()) << model.error().message();
    return all_logits(*model, texts);
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    return sum / static_cast<double>(a.size());
}

std::filesystem::path model_path(const std::string& name) {
    return name == "chat" ? test_data(name) : test_data("golden/models") / name;
}

// Returns random powers of two for every group, equal within classes.
Folds random_folds(const Checkpoint& source, const Plan& plan, const ModelConfig& config) {
    auto groups = awq_groups(plan, config, source.tensors());
    EXPECT_TRUE(groups.ok()) << groups.error().message();
    std::mt19937 random(9);
    Folds folds;
    for (const AwqGroup& g : groups->groups) {
        const auto cols = static_cast<size_t>(source.tensors()[g.readers[0]].cols());
        std::vector<float> of_class(cols), scale(cols);
        for (float& s : of_class) s = std::ldexp(1.0f, static_cast<int>(random() % 7) - 3);
        for (size_t k = 0; k < cols; ++k)
            scale[k] = of_class[g.classes.empty() ? k : static_cast<size_t>(g.classes[k])];
        const Status status = fold_group(source, g, config.norm_plus_one, scale, folds);
        EXPECT_TRUE(status.ok()) << status.error().message();
    }
    return folds;
}

class AwqFolds : public testing::TestWithParam<std::string> {};

TEST_P(AwqFolds, PowersOfTwoDoNotChangeABit) {
    const auto path = model_path(GetParam());
    ThreadPool pool(2);
    const auto source = open_checkpoint(path);
    const ModelConfig config = *model_config(*source);
    auto folded = fold_checkpoint(*source, random_folds(*source, plan_for(*source, awq_recipe), config));
    ASSERT_TRUE(folded.ok()) << folded.error().message();
    const auto texts = random_texts(config.vocab, 1, 40);
    const auto expected = logits_of(source, texts, pool), found = logits_of(*std::move(folded), texts, pool);
    EXPECT_EQ(distance(found, expected), 0.0);
}

INSTANTIATE_TEST_SUITE_P(Models, AwqFolds,
                         testing::Values("chat", "llama", "qwen2", "qwen3", "qwen3_moe", "mixtral", "deepseek_v3",
                                         "nemotron_h"));

// A good model is changed so that its inputs are badly scaled; AWQ must lose less on it than scales of maxima.
TEST(AwqSearch, ScalesDownLargeChannels) {
    ThreadPool pool(2);
    const auto source = open_checkpoint(test_data("chat"));
    const ModelConfig config = *model_config(*source);
    const Plan plan = plan_for(*source, awq_recipe);
    auto groups = awq_groups(plan, config, source->tensors());
    ASSERT_TRUE(groups.ok());
    Folds loud;
    for (const AwqGroup& g : groups->groups) {
        std::vector<float> scale(static_cast<size_t>(source->tensors()[g.readers[0]].cols()), 1.0f);
        for (size_t k = 0; k < scale.size(); ++k)
            if ((g.classes.empty() ? k : static_cast<size_t>(g.classes[k])) % 11 == 3) scale[k] = 1.0f / 32;
        ASSERT_TRUE(fold_group(*source, g, config.norm_plus_one, scale, loud).ok());
    }
    const auto bad = *fold_checkpoint(*source, loud);
    const auto texts = random_texts(config.vocab, 4, 50);

    std::optional<AwqResult> first;
    for (const int threads : {1, 3}) {
        ThreadPool some(threads);
        auto found = awq_search(*bad, plan, texts, {.batch_tokens = threads == 1 ? 50 : 4096}, some, {});
        ASSERT_TRUE(found.ok()) << found.error().message();
        EXPECT_EQ(found->choices.size(), groups->groups.size());
        for (const AwqChoice& c : found->choices) EXPECT_EQ(c.taken, c.after < c.before) << c.first;
        if (first) {
            EXPECT_EQ(first->summary(), found->summary()) << "threads or batches show";
        }
        first = *std::move(found);
    }
    const auto awq = *fold_checkpoint(*bad, first->folds);
    const auto error_of = [&](const Checkpoint& checkpoint) {
        Plan weights = plan;
        weights.awq.reset();
        const auto scales = resolve_activation_scales(weights, nullptr);
        EXPECT_TRUE(scales.ok());
        auto trial = TrialCheckpoint::create(checkpoint, weights, *scales, pool);
        EXPECT_TRUE(trial.ok()) << trial.error().message();
        return distance(logits_of(*std::move(trial), texts, pool), logits_of(source, texts, pool));
    };
    EXPECT_LT(error_of(*awq), 0.5 * error_of(*bad));
}

TEST(AwqGroups, UnscalableLinearsAreListed) {
    const auto path = model_path("nemotron_h");
    const auto source = open_checkpoint(path);
    const auto groups = awq_groups(plan_for(*source, awq_recipe), *model_config(*source), source->tensors());
    ASSERT_TRUE(groups.ok());
    ASSERT_EQ(groups->unscaled.size(), 2u);
    EXPECT_NE(groups->unscaled[0].find("its input is not a linear function of up_proj's output"), std::string::npos);
    EXPECT_NE(groups->unscaled[1].find("no norm or linear before it can absorb the inverse scale"), std::string::npos);
    for (const AwqGroup& g : groups->groups)
        EXPECT_TRUE(g.powers_of_two || !g.watched[0].ends_with(".gate")) << "the router stays BF16";
}

}  // namespace
}  // namespace nibble::test
