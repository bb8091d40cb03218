// Reinforcement learning on a GPU: rollouts read the trainer's own weights, and what they say of a token has the bits
// that training computes.
#include "rl/policy_trainer.h"
#include "rl/token_task.h"
#include "train/device/device_trainer.h"
#include "train/small_trainer.h"
#include "train/train_shapes.h"

#include <cstdlib>

namespace nibble::test {
namespace {

DeviceChoice rl_device() {
    const char* name = std::getenv("NIBBLE_DEVICE");
    const auto choice = parse_device(name ? name : "cuda");
    return choice.ok() && choice->cuda ? *choice : DeviceChoice{.cuda = true};
}

Json rl_llama() {
    return {{"architectures", {"LlamaForCausalLM"}},
            {"model_type", "llama"},
            {"hidden_size", 256},
            {"num_hidden_layers", 2},
            {"num_attention_heads", 4},
            {"num_key_value_heads", 2},
            {"head_dim", 64},
            {"intermediate_size", 384},
            {"vocab_size", 1000},
            {"rms_norm_eps", 1e-5},
            {"rope_theta", 10000.0},
            {"tie_word_embeddings", false},
            {"max_position_embeddings", 8192},
            {"hidden_act", "silu"}};
}

Json rl_mixture() {
    Json config = rl_llama();
    config.erase("architectures");
    config.update({{"model_type", "qwen3_moe"},
                   {"num_experts", 16},
                   {"num_experts_per_tok", 4},
                   {"moe_intermediate_size", 136},
                   {"norm_topk_prob", true}});
    return config;
}

Json rl_hybrid() {
    Json config = rl_llama();
    for (const char* key : {"architectures", "rms_norm_eps", "hidden_act", "rope_theta"}) config.erase(key);
    config.update({{"model_type", "nemotron_h"},
                   {"hybrid_override_pattern", "M*EM"},
                   {"num_hidden_layers", 4},
                   {"layer_norm_epsilon", 1e-5},
                   {"mlp_hidden_act", "relu2"},
                   {"n_routed_experts", 16},
                   {"n_shared_experts", 1},
                   {"num_experts_per_tok", 3},
                   {"moe_intermediate_size", 128},
                   {"moe_shared_expert_intermediate_size", 320},
                   {"mamba_num_heads", 8},
                   {"mamba_head_dim", 64},
                   {"n_groups", 2},
                   {"ssm_state_size", 128},
                   {"conv_kernel", 4}});
    return config;
}

RlConfig gpu_config() {
    RlConfig c{.prompts = 8, .generations = 8, .steps = 30, .length = 128};
    c.optimizer.learning_rate = 3e-3;
    c.optimizer.weight_decay = 0;
    c.loss.kl_penalty = 0;
    c.generation.most_tokens = 75;  // beyond a page of 64 positions
    return c;
}

struct GpuRun {
    std::vector<RlStep> steps;
    std::vector<float> masters;
};

GpuRun run_on_gpu(const RlConfig& config, int count, int64_t row_tokens, const Json& model = rl_llama()) {
    ThreadPool pool;
    GpuRun run;
    auto parameters = random_start(model, DType::bf16, 7, pool);
    EXPECT_TRUE(parameters.ok()) << parameters.error().message();
    const int64_t answers = config.prompts * config.generations;
    const auto trainer = DeviceTrainer::create(*parameters,
                                               {.train = {.optimizer = config.optimizer},
                                                .device = rl_device(),
                                                .rows = most_rollout_rows(answers, config.length, row_tokens),
                                                .seq = std::max(row_tokens, config.length),
                                                .micro_batch = 1,
                                                .reference = config.loss.kl_penalty > 0},
                                               pool);
    EXPECT_TRUE(trainer.ok()) << trainer.error().message();
    if (!trainer.ok()) return run;
    TokenTask task(share_of_even_tokens);
    PolicyTrainerOptions options{.end_tokens = {3}, .memory_share = 0.2, .row_tokens = row_tokens};
    if (config.loss.kl_penalty > 0) options.reference = std::make_shared<DeviceReference>(**trainer);
    const auto policy = PolicyTrainer::create(config, **trainer, task, std::move(options));
    EXPECT_TRUE(policy.ok()) << policy.error().message();
    if (!policy.ok()) return run;
    for (int s = 0; s < count; ++s) {
        auto step = (*policy)->step(s);
        EXPECT_TRUE(step.ok()) << step.error().message();
        if (!step.ok()) break;
        run.steps.push_back(*std::move(step));
    }
    const auto state = (*trainer)->state();
    EXPECT_TRUE(state.ok());
    for (const auto& values : state->masters) run.masters.insert(run.masters.end(), values.begin(), values.end());
    return run;
}

TEST(CudaPolicyLoop, NoBitDiffersBetweenRolloutAndTraining) {
    for (const int64_t row_tokens : {0, 1024}) {
        for (const int64_t updates : {1, 2}) {
            RlConfig config = gpu_config();
            if (updates > 1) config.train_batch = config.prompts * config.generations / updates;
            const GpuRun one = run_on_gpu(config, 4, row_tokens), two = run_on_gpu(config, 4, row_tokens);
            ASSERT_EQ(one.steps.size(), 4u);
            ASSERT_EQ(two.steps.size(), 4u);
            for (size_t s = 0; s < 4; ++s) {
                const PolicyMetrics& m = one.steps[s].metrics;
                EXPECT_GT(m.tokens, 1000);
                EXPECT_EQ(m.mismatch_tokens, 0) << "step " << s << ", rows of " << row_tokens;
                EXPECT_EQ(m.max_abs_diff, 0);
                EXPECT_GT(one.steps[s].longest, 64);
                EXPECT_GT(one.steps[s].update.gradient_norm, 0);
                EXPECT_EQ(m.loss, two.steps[s].metrics.loss);
                EXPECT_EQ(one.steps[s].reward, two.steps[s].reward);
            }
            EXPECT_EQ(one.masters, two.masters);
        }
    }
}

// Choices of experts and states of Mamba-2 included.
TEST(CudaPolicyLoop, NoBitDiffersInOtherFamilies) {
    for (const Json& model : {rl_mixture(), rl_hybrid()}) {
        const GpuRun run = run_on_gpu(gpu_config(), 3, 1024, model);
        ASSERT_EQ(run.steps.size(), 3u);
        for (const RlStep& s : run.steps) {
            EXPECT_GT(s.metrics.tokens, 1000);
            EXPECT_EQ(s.metrics.mismatch_tokens, 0) << model["model_type"] << ", step " << s.step;
            EXPECT_GT(s.update.gradient_norm, 0);
        }
    }
}

// The weights of the begin are asked for without a trace in those of today; before the first update both say the same.
TEST(CudaPolicyLoop, TheReferenceIsThePolicyOfTheBegin) {
    ThreadPool pool;
    for (const TrainRecipe recipe : {TrainRecipe::bf16, TrainRecipe::fp8_block}) {
        auto parameters = random_start(rl_llama(), DType::bf16, 7, pool);
        ASSERT_TRUE(parameters.ok());
        DeviceTrainerOptions options{.device = rl_device(), .rows = 2, .seq = 96, .micro_batch = 1, .reference = true};
        options.train.precision.recipe = recipe;
        const auto trainer = DeviceTrainer::create(*parameters, options, pool);
        ASSERT_TRUE(trainer.ok()) << trainer.error().message();
        std::vector<TrainBatch> rows;
        for (int32_t r = 0; r < 2; ++r) {
            TrainBatch row{.rows = 1, .seq = 96};
            for (int32_t t = 0; t < 96; ++t) row.tokens.push_back((t * 37 + r * 11) % 1000);
            row.labels = row.tokens;
            row.documents = {0};
            rows.push_back(std::move(row));
        }
        using Numbers = std::vector<std::vector<float>>;
        const auto now = [&] {
            Numbers all(2, std::vector<float>(96));
            for (size_t r = 0; r < 2; ++r) EXPECT_TRUE((*trainer)->log_probs(rows[r], all[r]).ok());
            return all;
        };
        const auto reference = [&] {
            Numbers all(2);
            const std::array<const TrainBatch*, 2> asked{&rows[0], &rows[1]};
            const Status done = (*trainer)->reference_log_probs(asked, [&](size_t r, std::span<const float> of_row) {
                all[r].assign(of_row.begin(), of_row.end());
                return Status(Ok{});
            });
            EXPECT_TRUE(done.ok()) << done.error().message();
            return all;
        };
        const Numbers first = now();
        EXPECT_EQ(reference(), first);
        for (int step = 0; step < 3; ++step) {
            ASSERT_TRUE((*trainer)->step(rows, 1e-2).ok());
            const Numbers before = now();
            EXPECT_NE(before, first);
            EXPECT_EQ(reference(), first);
            EXPECT_EQ(now(), before);
        }
    }
}

TEST(CudaPolicyLoop, TheKlTermPullsToTheBegin) {
    RlConfig config = gpu_config();
    config.steps = 12;
    config.loss.kl_penalty = 0;
    const GpuRun free = run_on_gpu(config, 12, 2048);
    config.loss.kl_penalty = 1;
    const GpuRun held = run_on_gpu(config, 12, 2048);
    ASSERT_EQ(free.steps.size(), 12u);
    ASSERT_EQ(held.steps.size(), 12u);
    EXPECT_EQ(free.steps[0].reward, held.steps[0].reward);
    EXPECT_EQ(held.steps[0].metrics.kl_loss, 0);  // both are the same policy yet
    EXPECT_GT(held.steps.back().metrics.kl_loss, 0);
    EXPECT_GT(free.steps.back().reward, held.steps.back().reward);
    for (const RlStep& s : held.steps) EXPECT_EQ(s.metrics.mismatch_tokens, 0) << s.step;
}

TEST(CudaPolicyLoop, TheRewardRises) {
    const GpuRun run = run_on_gpu(gpu_config(), 30, 2048);
    ASSERT_EQ(run.steps.size(), 30u);
    EXPECT_LT(run.steps.front().reward, 0.6);
    EXPECT_GT(run.steps.back().reward, 0.75);
    for (const RlStep& s : run.steps) EXPECT_EQ(s.metrics.mismatch_tokens, 0) << s.step;
}

}  // namespace
}  // namespace nibble::test
