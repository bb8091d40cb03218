// Precision recipes on a GPU beside the CPU trainer's: gradients of a step and losses of some, the served bits, resumed
// runs, the tree of micro-batches, and what is refused.
#include "train/check_forward.h"
#include "train/device/device_trainer.h"
#include "train/run_state.h"
#include "train/small_trainer.h"
#include "train/train_shapes.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdlib>

namespace nibble::test {
namespace {

using testing::HasSubstr;

constexpr int64_t recipe_seq = 96, recipe_vocab = 1000;

Json recipe_model() {
    return {{"architectures", {"LlamaForCausalLM"}},
            {"model_type", "llama"},
            {"hidden_size", 256},
            {"num_hidden_layers", 2},
            {"num_attention_heads", 4},
            {"num_key_value_heads", 2},
            {"head_dim", 64},
            {"intermediate_size", 384},
            {"vocab_size", recipe_vocab},
            {"rms_norm_eps", 1e-5},
            {"rope_theta", 10000.0},
            {"tie_word_embeddings", false},
            {"max_position_embeddings", 8192},
            {"hidden_act", "silu"}};
}

DeviceChoice recipe_device() {
    const char* name = std::getenv("NIBBLE_DEVICE");
    const auto choice = parse_device(name ? name : "cuda");
    return choice.ok() && choice->cuda ? *choice : DeviceChoice{.cuda = true};
}

struct Trained {
    const char* name;
    TrainPrecision precision;
    bool promised = false;  // the served bits
};
void PrintTo(const Trained& t, std::ostream* out) { *out << t.name; }

Result<std::unique_ptr<DeviceTrainer>> on_gpu(const TrainPrecision& precision, int64_t rows, int64_t micro_batch,
                                              ThreadPool& pool) {
    NIBBLE_TRY(auto parameters, random_start(recipe_model(), DType::bf16, 7, pool));
    return DeviceTrainer::create(parameters,
                                 {.train = {.precision = precision},
                                  .device = recipe_device(),
                                  .rows = rows,
                                  .seq = recipe_seq,
                                  .micro_batch = micro_batch},
                                 pool);
}

class CudaRecipe : public testing::TestWithParam<Trained> {
protected:
    std::unique_ptr<DeviceTrainer> trainer(int64_t rows, int64_t micro_batch) {
        auto made = on_gpu(GetParam().precision, rows, micro_batch, pool_);
        EXPECT_TRUE(made.ok()) << made.error().message();
        return made.ok() ? *std::move(made) : nullptr;
    }
    std::unique_ptr<Trainer> on_cpu() {
        auto parameters = random_start(recipe_model(), DType::bf16, 7, pool_);
        EXPECT_TRUE(parameters.ok());
        auto made = Trainer::create(*parameters, {.precision = GetParam().precision}, pool_);
        EXPECT_TRUE(made.ok()) << made.error().message();
        return made.ok() ? *std::move(made) : nullptr;
    }
    ThreadPool pool_;
};

std::vector<std::byte> all_state(TrainEngine& trainer) {
    const auto state = trainer.state();
    EXPECT_TRUE(state.ok());
    std::vector<std::byte> all;
    const auto add = [&](Bytes bytes) { all.insert(all.end(), bytes.begin(), bytes.end()); };
    for (const auto& values : state->masters) add(std::as_bytes(std::span(values)));
    for (const auto* part : {&state->m, &state->v})
        for (const StateNumbers& values : *part) add(bytes_of(values));
    add(std::as_bytes(std::span(state->recipe)));
    return all;
}

// Rows are micro-batches, so that tensors, blocks and random bits are the CPU's. What differs: the order of sums, and
// gradients of activations, which are BF16 here; a code that flips for it is an error of half a step, so gradients
// agree less than in BF16. The bound would not pass a wrong scale, rotation or sign, nor the recipe's own rounding
// error where codes were drawn otherwise (0.15 to 0.5).
TEST_P(CudaRecipe, GradientsAreTheCpus) {
    const TrainBatch batch = random_batch(4, recipe_seq, recipe_vocab, 3);
    const auto gpu = trainer(4, 1);
    const auto cpu = on_cpu();
    ASSERT_TRUE(gpu && cpu);
    std::vector<std::vector<float>> got;
    const auto step = gpu->backward({&batch, 1}, got);
    ASSERT_TRUE(step.ok()) << step.error().message();
    const auto want = cpu->backward({&batch, 1});
    ASSERT_TRUE(want.ok()) << want.error().message();
    EXPECT_NEAR(step->loss, want->loss, 4e-3 * want->loss);
    EXPECT_NEAR(step->gradient_norm, want->gradient_norm, 2e-2 * want->gradient_norm);
    double worst = 0;
    for (size_t id = 0; id < got.size(); ++id) {
        const auto w = cpu->gradients().gradient(id);
        double apart = 0, ww = 0, gg = 0, gw = 0;
        for (size_t i = 0; i < w.size(); ++i) {
            const double a = got[id][i], b = w[i];
            apart += (a - b) * (a - b), ww += b * b, gg += a * a, gw += a * b;
        }
        const std::string& name = gpu->parameters().tensors()[id].name;
        ASSERT_GT(ww, 0) << name;
        EXPECT_LT(std::sqrt(apart / ww), 0.12) << name;
        EXPECT_GT(gw / std::sqrt(gg * ww), 0.993) << name;
        EXPECT_NEAR(gg / ww, 1, 0.03) << name;
        worst = std::max(worst, std::sqrt(apart / ww));
    }
    RecordProperty("worst_relative_error", std::to_string(worst));
}

TEST_P(CudaRecipe, LossesFollowTheCpus) {
    const auto gpu = trainer(4, 1);
    const auto cpu = on_cpu();
    ASSERT_TRUE(gpu && cpu);
    for (uint32_t i = 0; i < 10; ++i) {
        const TrainBatch batch = random_batch(4, recipe_seq, recipe_vocab, i % 3);
        gpu->begin(i, 10);
        cpu->begin(i, 10);
        const auto a = gpu->step({&batch, 1}, 1e-3), b = cpu->step({&batch, 1}, 1e-3);
        ASSERT_TRUE(a.ok()) << a.error().message();
        ASSERT_TRUE(b.ok()) << b.error().message();
        EXPECT_NEAR(a->loss, b->loss, 0.015 * b->loss) << i;
        EXPECT_NEAR(a->gradient_norm, b->gradient_norm, 0.08 * b->gradient_norm) << i;
    }
}

TEST_P(CudaRecipe, LogProbabilitiesAreTheEngines) {
    const auto gpu = trainer(4, 0);
    ASSERT_TRUE(gpu);
    EXPECT_EQ(gpu->sees_neighbours(), !GetParam().promised);
    for (uint32_t i = 0; i < 2; ++i) {
        const TrainBatch batch = random_batch(4, recipe_seq, recipe_vocab, 50 + i);
        const auto check = check_forward(*gpu, batch);
        ASSERT_TRUE(check.ok()) << check.error().message();
        EXPECT_EQ(check->promised, GetParam().promised);
        for (const ForwardWay& way : check->ways) {
            EXPECT_GT(way.labels, 0);
            if (GetParam().promised) {
                EXPECT_EQ(way.mismatches, 0) << way.name << ", up to " << way.apart;
            }
        }
        ASSERT_TRUE(gpu->step({&batch, 1}, 1e-2).ok());
    }
}

TEST_P(CudaRecipe, GoesOnFromACheckpointToTheSameBits) {
    const auto file =
        std::filesystem::path(testing::TempDir()) / fmt::format("nibble-recipe-{}.safetensors", GetParam().name);
    const auto step = [&](TrainEngine& engine, uint32_t number) {
        const TrainBatch batch = random_batch(4, recipe_seq, recipe_vocab, number);
        engine.begin(number, 5);
        const auto made = engine.step({&batch, 1}, 1e-3);
        EXPECT_TRUE(made.ok()) << made.error().message();
        return made.ok() ? made->loss : 0;
    };
    const auto whole = trainer(4, 2), resumed = trainer(4, 2);
    ASSERT_TRUE(whole && resumed);
    for (uint32_t i = 0; i < 3; ++i) step(*whole, i);
    auto state = copy_state(*whole, {.step = 3});
    ASSERT_TRUE(state.ok()) << state.error().message();
    ASSERT_TRUE(write_state(file, *state).ok());
    step(*resumed, 4);  // something else before
    const auto read = read_state(file, "", *resumed);
    std::filesystem::remove(file);
    ASSERT_TRUE(read.ok()) << read.error().message();
    for (uint32_t i = 3; i < 5; ++i) EXPECT_EQ(step(*whole, i), step(*resumed, i));
    EXPECT_TRUE(all_state(*whole) == all_state(*resumed));
}

TEST_P(CudaRecipe, TheTableSaysWhatIsMultiplied) {
    const auto gpu = trainer(2, 1);
    const auto cpu = on_cpu();
    ASSERT_TRUE(gpu && cpu);
    const auto a = gpu->table(), b = cpu->table();
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
        EXPECT_EQ(a[i].name, b[i].name);
        if (b[i].forward == "BF16") continue;
        EXPECT_THAT(a[i].forward, HasSubstr(b[i].forward));
        EXPECT_THAT(a[i].input_gradient, HasSubstr(b[i].input_gradient));
        EXPECT_THAT(a[i].weight_gradient, HasSubstr(b[i].weight_gradient));
    }
}

TrainPrecision of(TrainRecipe recipe) { return {.recipe = recipe}; }
TrainPrecision nv_switched(bool rotate, bool stochastic, bool square, bool four_over_six, bool row_scaled) {
    return {.recipe = TrainRecipe::nvfp4,
            .rotate = rotate,
            .stochastic = stochastic,
            .square = square,
            .four_over_six = four_over_six,
            .row_scaled = row_scaled};
}

INSTANTIATE_TEST_SUITE_P(
    All, CudaRecipe,
    testing::Values(Trained{"nvfp4", of(TrainRecipe::nvfp4)},
                    Trained{"nvfp4_no_rht", nv_switched(false, true, true, false, false)},
                    Trained{"nvfp4_nearest", nv_switched(true, false, true, false, false)},
                    Trained{"nvfp4_four_over_six", nv_switched(true, true, false, true, false)},
                    Trained{"nvfp4_row_scaled", nv_switched(true, true, true, false, true), true},
                    Trained{"nvfp4_mlp", {.recipe = TrainRecipe::nvfp4, .scope = TrainScope::mlp, .last_bf16 = 1}},
                    Trained{"mxfp8", of(TrainRecipe::mxfp8), true}, Trained{"fp8", of(TrainRecipe::fp8)},
                    Trained{"fp8_delayed", of(TrainRecipe::fp8_delayed), true},
                    Trained{"fp8_delayed_of_3", {.recipe = TrainRecipe::fp8_delayed, .amax_history = 3}, true},
                    Trained{"fp8_block", of(TrainRecipe::fp8_block), true},
                    Trained{"fp8_block_2n", {.recipe = TrainRecipe::fp8_block, .power_of_two = true}, true},
                    Trained{"nvfp4_late_fp8_block",
                            {.recipe = TrainRecipe::nvfp4, .late_forward = TrainRecipe::fp8_block}},
                    Trained{"fp8_late_bf16", {.recipe = TrainRecipe::fp8, .late_forward = TrainRecipe::bf16}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(CudaRecipeRefusals, NameWhatIsNotBuilt) {
    ThreadPool pool;
    const auto refused = [&](const TrainPrecision& precision) {
        const auto made = on_gpu(precision, 2, 1, pool);
        return made.ok() ? std::string() : made.error().message();
    };
    EXPECT_THAT(refused(of(TrainRecipe::fp32)), HasSubstr("fp32 has no products"));
    EXPECT_THAT(refused(of(TrainRecipe::nibble_nvfp4)), HasSubstr("nibble_nvfp4 has no products"));
    EXPECT_THAT(refused({.recipe = TrainRecipe::nvfp4, .first_bf16 = 2, .last_bf16 = 1}), HasSubstr("2 and 1 layers"));
}

}  // namespace
}  // namespace nibble::test
