// Tests experts under a quantized recipe on a GPU: gradients and losses against the CPU trainer, served bits, and
// resumed runs. The linears of every expert round their own rows.
#include "cuda/models/train_gradients.h"
#include "cuda/models/train_same_bits.h"
#include "cuda/models/train_served_export.h"
#include "train/train_shapes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace nibble::test {
namespace {

constexpr int64_t experts_of_test = 8, hidden_of_test = 256;

// `shared`: sigmoid router, a shared expert and a dense layer; otherwise a softmax router.
Json experts_model(bool shared) {
    Json config = recipe_model();
    if (!shared) {
        config["architectures"] = {"MixtralForCausalLM"};
        config.update({{"model_type", "mixtral"}, {"num_local_experts", experts_of_test}, {"num_experts_per_tok", 2}});
        return config;
    }
    config.erase("head_dim");
    config["architectures"] = {"DeepseekV3ForCausalLM"};
    config.update({{"model_type", "deepseek_v3"},
                   {"num_key_value_heads", 4},
                   {"q_lora_rank", 96},
                   {"kv_lora_rank", 64},
                   {"qk_nope_head_dim", 128},
                   {"qk_rope_head_dim", 64},
                   {"v_head_dim", 128},
                   {"n_routed_experts", experts_of_test},
                   {"n_shared_experts", 1},
                   {"num_experts_per_tok", 3},
                   {"moe_intermediate_size", 128},
                   {"n_group", 1},
                   {"topk_group", 1},
                   {"norm_topk_prob", true},
                   {"routed_scaling_factor", 2.5},
                   {"first_k_dense_replace", 1}});
    return config;
}

// Each token ranks the experts in a fixed order with steps larger than any rounding difference from the CPU. Otherwise
// a flipped choice would look like a wrong gradient (as in train_test.cpp).
std::shared_ptr<Parameters> start_of_experts(bool shared, ThreadPool& pool) {
    auto made = random_start(experts_model(shared), DType::bf16, 7, pool);
    EXPECT_TRUE(made.ok()) << made.error().message();
    if (!made.ok()) return nullptr;
    std::mt19937 random(12);
    for (size_t id = 0; id < (*made)->count(); ++id) {
        const std::string& name = (*made)->tensors()[id].name;
        const std::span<float> w = (*made)->master(id);
        if (name.ends_with(".gate.weight")) {
            std::ranges::fill(w, 0.0f);
            for (int64_t e = 0; e < experts_of_test; ++e) w[static_cast<size_t>(e * hidden_of_test + e)] = 0.25f;
        }
        if (name.ends_with(".e_score_correction_bias")) std::ranges::fill(w, 0.0f);
        if (name.ends_with("norm.weight") && std::ssize(w) == hidden_of_test)
            std::fill_n(w.begin(), experts_of_test, 1.0f);
        if (!name.ends_with("embed_tokens.weight")) continue;
        std::vector<float> steps;
        for (int64_t e = 0; e < experts_of_test; ++e)
            steps.push_back(0.5f * static_cast<float>(2 * e - experts_of_test + 1));
        for (int64_t row = 0; row < recipe_vocab; ++row) {
            std::ranges::shuffle(steps, random);
            std::ranges::copy(steps, w.begin() + row * hidden_of_test);
        }
    }
    (*made)->publish(pool);
    return *made;
}

struct OfExperts {
    const char* name;
    TrainPrecision precision;
    bool promised = false, shared = false;
};
void PrintTo(const OfExperts& t, std::ostream* out) { *out << t.name; }

class CudaExperts : public testing::TestWithParam<OfExperts> {
protected:
    std::unique_ptr<DeviceTrainer> on_gpu(int64_t micro_batch) {
        auto made = DeviceTrainer::create(start_of_experts(GetParam().shared, pool_),
                                          {.train = {.precision = GetParam().precision},
                                           .device = recipe_device(),
                                           .rows = 4,
                                           .seq = recipe_seq,
                                           .micro_batch = micro_batch},
                                          pool_);
        EXPECT_TRUE(made.ok()) << made.error().message();
        return made.ok() ? *std::move(made) : nullptr;
    }
    std::unique_ptr<Trainer> on_cpu() {
        auto made =
            Trainer::create(start_of_experts(GetParam().shared, pool_), {.precision = GetParam().precision}, pool_);
        EXPECT_TRUE(made.ok()) << made.error().message();
        return made.ok() ? *std::move(made) : nullptr;
    }
    ThreadPool pool_;
};

// Like CudaRecipe.GradientsAgreeWithTheCpu: the tolerance is the difference between two CPU trainers whose embeddings
// differ by half a unit in the last place, plus a margin. Two steps come first, because with the initial delayed scales
// of 1 gradients are below the smallest E5M2 numbers.
TEST_P(CudaExperts, GradientsAgreeWithTheCpu) {
    const TrainBatch batch = random_batch(4, recipe_seq, recipe_vocab, 3);
    const auto gpu = on_gpu(1);
    const auto cpu = on_cpu(), moved = on_cpu();
    ASSERT_TRUE(gpu && cpu && moved);
    ASSERT_NO_FATAL_FAILURE(
        begin_third_step(*cpu, *gpu, *moved, batch, 1e-4, fmt::format("experts-{}", GetParam().name)));
    std::vector<std::vector<float>> got;
    const auto step = gpu->backward({&batch, 1}, got);
    ASSERT_TRUE(step.ok()) << step.error().message();
    const auto want = cpu->backward({&batch, 1}), other = moved->backward({&batch, 1});
    ASSERT_TRUE(want.ok() && other.ok());
    EXPECT_NEAR(step->loss, want->loss, 6e-3 * want->loss);
    EXPECT_NEAR(step->gradient_norm, want->gradient_norm, 3e-2 * want->gradient_norm);
    double worst = 0, worst_of_own = 0;
    int64_t of_experts = 0;
    for (size_t id = 0; id < got.size(); ++id) {
        const std::string& name = gpu->parameters().tensors()[id].name;
        const auto w = cpu->gradients().gradient(id);
        if (std::ranges::all_of(w, [](float x) { return x == 0; })) {
            EXPECT_TRUE(std::ranges::all_of(got[id], [](float x) { return x == 0; })) << name;
            continue;
        }
        const double here = apart(got[id], w).relative, own = apart(moved->gradients().gradient(id), w).relative;
        EXPECT_LT(here, 1.2 * own + 0.04) << name << ", the moved CPU: " << own;
        worst = std::max(worst, here);
        worst_of_own = std::max(worst_of_own, own);
        of_experts += name.find(".experts.") != std::string::npos;
    }
    EXPECT_GE(of_experts, experts_of_test * 2);
    RecordProperty("worst_relative_error", std::to_string(worst));
    RecordProperty("worst_of_the_moved_cpu", std::to_string(worst_of_own));
}

TEST_P(CudaExperts, LossesAgreeWithTheCpu) {
    const auto gpu = on_gpu(1);
    const auto cpu = on_cpu();
    ASSERT_TRUE(gpu && cpu);
    for (uint32_t i = 0; i < 6; ++i) {
        const TrainBatch batch = random_batch(4, recipe_seq, recipe_vocab, i % 3);
        gpu->begin(i, 6);
        cpu->begin(i, 6);
        const auto a = gpu->step({&batch, 1}, 1e-3), b = cpu->step({&batch, 1}, 1e-3);
        ASSERT_TRUE(a.ok()) << a.error().message();
        ASSERT_TRUE(b.ok()) << b.error().message();
        EXPECT_NEAR(a->loss, b->loss, 0.015 * b->loss) << i;
    }
}

TEST_P(CudaExperts, LogProbabilitiesEqualThoseOfTheEngine) {
    const auto gpu = on_gpu(0);
    ASSERT_TRUE(gpu);
    expect_the_engines_log_probs(*gpu, GetParam().promised);
}

TEST_P(CudaExperts, ResumingFromACheckpointGivesTheSameBits) {
    const auto whole = on_gpu(2), resumed = on_gpu(2);
    ASSERT_TRUE(whole && resumed);
    expect_a_checkpoint_goes_on(*whole, *resumed, fmt::format("experts-{}", GetParam().name));
}

INSTANTIATE_TEST_SUITE_P(All, CudaExperts,
                         testing::Values(OfExperts{"fp8", recipe_of(TrainRecipe::fp8)},
                                         OfExperts{"fp8_delayed", recipe_of(TrainRecipe::fp8_delayed), true},
                                         OfExperts{"fp8_block", recipe_of(TrainRecipe::fp8_block), true, true},
                                         OfExperts{"mxfp8", recipe_of(TrainRecipe::mxfp8), true},
                                         OfExperts{"nvfp4", recipe_of(TrainRecipe::nvfp4)},
                                         OfExperts{"nvfp4_row_scaled", nv_switched(true, true, true, false, true), true,
                                                   true},
                                         OfExperts{"nvfp4_w4a16", named("nvfp4_w4a16"), true},
                                         OfExperts{"nvfp4_w4a4", named("nvfp4_w4a4"), true, true},
                                         OfExperts{"nibble_nvfp4", named("nibble_nvfp4")}),
                         [](const auto& info) { return std::string(info.param.name); });

// The experts of an export multiply as one product, each under its own scales.
TEST(CudaExpertsExport, TheEngineServesTheBitsOfTheTrainingForward) {
    ThreadPool pool;
    for (const char* recipe : {"fp8_block", "nvfp4_w4a4"}) {
        SCOPED_TRACE(recipe);
        const auto trainer = DeviceTrainer::create(start_of_experts(false, pool),
                                                   {.train = {.precision = named(recipe)},
                                                    .device = recipe_device(),
                                                    .rows = 4,
                                                    .seq = recipe_seq,
                                                    .micro_batch = 2},
                                                   pool);
        ASSERT_TRUE(trainer.ok()) << trainer.error().message();
        expect_the_export_is_served(**trainer, true);
    }
}

}  // namespace
}  // namespace nibble::test
