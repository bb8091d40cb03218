// Trains random starts of every family for some steps on one batch, in BF16 and in a quantized recipe, and runs their
// exports.
#include "train/small_trainer.h"
#include "train/tiny_families.h"

#include "checkpoint/convert.h"
#include "model/models.h"
#include "train/check_forward.h"
#include "train/train_shapes.h"

#include <cmath>

namespace nibble::test {
namespace {

class Families : public testing::TestWithParam<std::string> {};

TEST_P(Families, TrainFromRandomWeights) {
    ThreadPool pool(2);
    for (const char* recipe : {"bf16", "nvfp4", "nibble_nvfp4"}) {
        auto parameters = random_start(tiny(GetParam()), DType::bf16, 3, pool);
        ASSERT_TRUE(parameters.ok()) << parameters.error().message();
        TrainerOptions options;
        options.precision = *train_precision_from_name(recipe);
        options.precision.rank = 4;
        const auto trainer = Trainer::create(*parameters, options, pool);
        ASSERT_TRUE(trainer.ok()) << trainer.error().message();
        const TrainBatch batch = random_batch(2, 32, 64, 8);
        double first = 0, last = 0;
        for (int s = 0; s < 12; ++s) {
            const auto step = (*trainer)->step({&batch, 1}, 0.01);
            ASSERT_TRUE(step.ok()) << step.error().message();
            (s == 0 ? first : last) = step->loss;
        }
        EXPECT_NEAR(first, std::log(64.0), 0.4) << recipe;
        EXPECT_LT(last, 0.8 * first) << recipe;
    }
}

// The written folder, read by the loader, gives the bits of the trained model.
TEST_P(Families, ExportsRunWithTheSameBits) {
    ThreadPool pool(2);
    auto parameters = random_start(tiny(GetParam()), DType::bf16, 4, pool);
    ASSERT_TRUE(parameters.ok()) << parameters.error().message();
    const auto trainer = Trainer::create(*parameters, {}, pool);
    ASSERT_TRUE(trainer.ok()) << trainer.error().message();
    const TrainBatch batch = random_batch(2, 32, 64, 8);
    for (int s = 0; s < 2; ++s) ASSERT_TRUE((*trainer)->step({&batch, 1}, 0.01).ok());
    const TempDir folder;
    const auto written = convert((*trainer)->parameters(), {.out = folder.path() / "model"}, pool, {});
    ASSERT_TRUE(written.ok()) << written.error().message();
    const auto again = Model::load(open_checkpoint(folder.path() / "model"), {}, pool);
    ASSERT_TRUE(again.ok()) << again.error().message();
    const std::vector<std::vector<int32_t>> texts{{batch.tokens.begin(), batch.tokens.begin() + 32}};
    EXPECT_EQ(all_logits(*again, texts), all_logits((*trainer)->model(), texts));
    const auto check = check_forward(**trainer, batch);
    ASSERT_TRUE(check.ok()) << check.error().message();
    EXPECT_TRUE(check->promised);
    EXPECT_EQ(check->mismatches(), 0);
}

INSTANTIATE_TEST_SUITE_P(All, Families,
                         testing::Values("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma3_text",
                                         "deepseek_v3", "nemotron_h"),
                         [](const auto& info) { return info.param; });

TEST(TrainShapes, KnowTheirSizes) {
    EXPECT_EQ((*train_shape("124m", 0))["num_hidden_layers"], 12);
    EXPECT_EQ((*train_shape("124m", 3))["num_hidden_layers"], 3);
    EXPECT_EQ((*train_shape("nemotron-3-nano", 4))["hybrid_override_pattern"], "MEME");
    EXPECT_FALSE(train_shape("124m", 13).ok());
    EXPECT_FALSE(train_shape("123m", 0).ok());
    ThreadPool pool(2);
    const auto error = random_start(Json{{"model_type", "gpt2"}}, DType::bf16, 1, pool);
    ASSERT_FALSE(error.ok());
    EXPECT_NE(error.error().message().find("'gpt2'"), std::string::npos);
    EXPECT_FALSE(random_start(Json{{"model_type", "llama"}, {"hidden_size", 0}}, DType::bf16, 1, pool).ok());
    // Checks deviations of the random weights, and that seeds differ.
    const auto a = random_start(tiny("llama"), DType::f32, 1, pool),
               b = random_start(tiny("llama"), DType::f32, 2, pool);
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_NE(all_masters(**a), all_masters(**b));
    const auto deviation = [&](const char* name) {
        double squares = 0;
        const auto w = (*a)->master(*(*a)->id(name));
        for (const float x : w) squares += double{x} * x;
        return std::sqrt(squares / double(w.size()));
    };
    EXPECT_NEAR(deviation("model.embed_tokens.weight"), 0.02, 0.001);
    EXPECT_NEAR(deviation("model.layers.1.mlp.down_proj.weight"), 0.01, 0.001);
    EXPECT_EQ(deviation("model.norm.weight"), 1.0);
}

}  // namespace
}  // namespace nibble::test
