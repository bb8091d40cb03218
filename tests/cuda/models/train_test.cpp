// Tests training on a GPU: gradients and losses against the CPU trainer, log-probabilities equal to the engine's bit
// for bit, and settings that must not change bits: a second run, a resumed run, recomputation.
#include "cuda/models/prefer_experts.h"
#include "run/state.h"
#include "train/check_forward.h"
#include "train/device/device_trainer.h"
#include "train/small_trainer.h"
#include "train/train_shapes.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>

namespace nibble::test {
namespace {

using testing::HasSubstr;

struct TrainedShape {
    const char* name;
    const char* family = "llama";
    int head_dim = 64, heads = 4, kv_heads = 2, layers = 2, vocab = 1000;
    bool tied = false;
    int64_t seq = 96;
    Json more = Json::object();  // added to the config
};
void PrintTo(const TrainedShape& s, std::ostream* out) { *out << s.name; }

Json config_of(const TrainedShape& s) {
    Json config{{"model_type", s.family},
                {"hidden_size", 256},
                {"num_hidden_layers", s.layers},
                {"num_attention_heads", s.heads},
                {"num_key_value_heads", s.kv_heads},
                {"head_dim", s.head_dim},
                {"intermediate_size", 384},
                {"vocab_size", s.vocab},
                {"rms_norm_eps", 1e-5},
                {"rope_theta", 10000.0},
                {"tie_word_embeddings", s.tied},
                {"max_position_embeddings", 8192},
                {"hidden_act", "silu"}};
    const std::string family = s.family;
    if (family == "gemma3_text") {
        config.erase("hidden_act"), config.erase("rope_theta");
        config.update({{"hidden_activation", "gelu_pytorch_tanh"},
                       {"query_pre_attn_scalar", s.head_dim},
                       {"sliding_window", 8},
                       {"sliding_window_pattern", 2},
                       {"tie_word_embeddings", true}});
    }
    if (family == "mixtral") config.update({{"num_local_experts", 8}, {"num_experts_per_tok", 2}});
    if (family == "qwen3_moe")
        config.update({{"num_experts", 16},
                       {"num_experts_per_tok", 4},
                       {"moe_intermediate_size", 136},  // not a multiple of 64 rows
                       {"norm_topk_prob", true},
                       {"decoder_sparse_step", 1},
                       {"mlp_only_layers", Json::array()}});
    if (family == "nemotron_h") {
        for (const char* key : {"rms_norm_eps", "hidden_act", "rope_theta"}) config.erase(key);
        config.update({{"hybrid_override_pattern", "*E-E"},
                       {"num_hidden_layers", 4},
                       {"layer_norm_epsilon", 1e-5},
                       {"mlp_hidden_act", "relu2"},
                       {"n_routed_experts", 16},
                       {"n_shared_experts", 1},
                       {"num_experts_per_tok", 3},
                       {"moe_intermediate_size", 128},
                       {"moe_shared_expert_intermediate_size", 320},
                       {"n_group", 1},
                       {"topk_group", 1},
                       {"norm_topk_prob", true},
                       {"routed_scaling_factor", 2.5},
                       {"mamba_num_heads", 8},
                       {"mamba_head_dim", 64},
                       {"n_groups", 2},
                       {"ssm_state_size", 128},
                       {"conv_kernel", 4}});
    }
    if (family == "deepseek_v3") {  // keys of 192, values of 128
        config.erase("head_dim");
        config.update({{"num_key_value_heads", s.heads},
                       {"q_lora_rank", 96},
                       {"kv_lora_rank", 64},
                       {"qk_nope_head_dim", 128},
                       {"qk_rope_head_dim", 64},
                       {"v_head_dim", 128},
                       {"n_routed_experts", 16},
                       {"n_shared_experts", 1},
                       {"num_experts_per_tok", 3},
                       {"moe_intermediate_size", 128},
                       {"n_group", 1},
                       {"topk_group", 1},
                       {"norm_topk_prob", true},
                       {"routed_scaling_factor", 2.5},
                       {"first_k_dense_replace", 1}});
    }
    config.update(s.more);
    return config;
}

// Changes vectors that a random start sets to 0 or 1, so that a missing bias is detected. Vectors that enter the
// residual stream stay small relative to the embedding: if tokens were nearly equal, gradients of queries and keys
// would be differences of almost equal sums.
void move_vectors(Parameters& parameters) {
    std::mt19937 random(11);
    std::uniform_real_distribution<float> some(-1.0f, 1.0f);
    for (size_t id = 0; id < parameters.count(); ++id) {
        const CheckpointTensor& t = parameters.tensors()[id];
        if (t.shape.size() != 1) continue;
        const bool to_stream = t.name.ends_with("o_proj.bias") || t.name.ends_with("down_proj.bias");
        for (float& x : parameters.master(id)) x += (to_stream ? 0.01f : 0.2f) * some(random);
    }
}

DeviceChoice tested_device() {
    const char* name = std::getenv("NIBBLE_DEVICE");
    const auto choice = parse_device(name ? name : "cuda");
    return choice.ok() && choice->cuda ? *choice : DeviceChoice{.cuda = true};
}

std::shared_ptr<Parameters> start_of(const TrainedShape& s, ThreadPool& pool) {
    auto made = random_start(config_of(s), DType::bf16, 7, pool);
    EXPECT_TRUE(made.ok()) << made.error().message();
    if (!made.ok()) return nullptr;
    move_vectors(**made);
    prefer_experts(**made);
    (*made)->publish(pool);
    return *made;
}

struct Extra {
    int64_t rows = 6, micro_batch = 0;
    Recompute recompute = Recompute::automatic;
};
std::unique_ptr<DeviceTrainer> device_trainer(const TrainedShape& s, const Extra& e, ThreadPool& pool) {
    auto made = DeviceTrainer::create(start_of(s, pool),
                                      {.device = tested_device(),
                                       .rows = e.rows,
                                       .seq = s.seq,
                                       .micro_batch = e.micro_batch,
                                       .recompute = e.recompute},
                                      pool);
    EXPECT_TRUE(made.ok()) << made.error().message();
    return made.ok() ? *std::move(made) : nullptr;
}

// Returns all master weights and optimizer states.
std::vector<std::byte> state_bytes(TrainEngine& trainer) {
    const auto state = trainer.state();
    EXPECT_TRUE(state.ok());
    std::vector<std::byte> all;
    const auto add = [&](Bytes bytes) { all.insert(all.end(), bytes.begin(), bytes.end()); };
    for (const auto& values : state->masters) add(std::as_bytes(std::span(values)));
    for (const auto* part : {&state->m, &state->v})
        for (const StateNumbers& values : *part) add(bytes_of(values));
    return all;
}

class CudaTraining : public testing::TestWithParam<TrainedShape> {
protected:
    ThreadPool pool_;
};

TEST_P(CudaTraining, GradientsAgreeWithTheCpu) {
    const TrainedShape& s = GetParam();
    const TrainBatch batch = random_batch(6, s.seq, s.vocab, 3);
    const auto trainer = device_trainer(s, {}, pool_);
    ASSERT_TRUE(trainer);
    std::vector<std::vector<float>> got;
    const auto step = trainer->backward({&batch, 1}, got);
    ASSERT_TRUE(step.ok()) << step.error().message();
    const auto cpu = Trainer::create(start_of(s, pool_), {}, pool_);
    ASSERT_TRUE(cpu.ok()) << cpu.error().message();
    const auto want = (*cpu)->backward({&batch, 1});
    ASSERT_TRUE(want.ok()) << want.error().message();
    EXPECT_NEAR(step->loss, want->loss, 2e-3 * want->loss);
    EXPECT_NEAR(step->gradient_norm, want->gradient_norm, 5e-3 * want->gradient_norm);
    EXPECT_EQ(step->weight, want->weight);
    EXPECT_EQ(step->tokens, want->tokens);
    double worst = 0;
    int idle = 0;
    for (size_t id = 0; id < got.size(); ++id) {
        const std::string& name = trainer->parameters().tensors()[id].name;
        const auto w = (*cpu)->gradients().gradient(id);
        if (w.empty()) {  // no gradient arrived
            EXPECT_TRUE(std::ranges::all_of(got[id], [](float x) { return x == 0; })) << name;
            idle += name.find(".experts.") != std::string::npos;
            continue;
        }
        ASSERT_EQ(w.size(), got[id].size()) << name;
        double apart = 0, ww = 0, gg = 0, gw = 0;
        for (size_t i = 0; i < w.size(); ++i) {
            const double a = got[id][i], b = w[i];
            apart += (a - b) * (a - b), ww += b * b, gg += a * a, gw += a * b;
        }
        if (name.ends_with("e_score_correction_bias")) {  // a choice of experts has no gradient
            EXPECT_EQ(ww, 0) << name;
            EXPECT_EQ(gg, 0) << name;
            continue;
        }
        if (name.ends_with("k_proj.bias")) {
            // A key component that all positions share changes no probability. Without rotary embedding its gradient is
            // 0, with it a small difference of large sums. It is compared with the queries' gradient, whose sums have
            // the same size.
            const std::string query = name.substr(0, name.size() - 11) + "q_proj.bias";
            double of_query = 0;
            for (const float x : (*cpu)->gradients().gradient(*trainer->parameters().id(query)))
                of_query += double{x} * x;
            EXPECT_LT(apart, 4e-4 * of_query) << name;
            continue;
        }
        ASSERT_GT(ww, 0) << name;
        // One number per head, summed over all tokens with signs that cancel. If weights change so much that gradients
        // of matrices change by 2 % on the CPU, these change by 3 to 4 %, A_log by up to 13 %.
        const bool of_heads = name.ends_with(".A_log") || name.ends_with(".D") || name.ends_with(".dt_bias");
        EXPECT_LT(std::sqrt(apart / ww), of_heads ? 5e-2 : 2e-2) << name;
        EXPECT_GT(gw / std::sqrt(gg * ww), of_heads ? 0.998 : 0.9995) << name;
        worst = std::max(worst, std::sqrt(apart / ww));
    }
    // One unused expert per mixture, with two matrices or three.
    const Json config = config_of(s);
    const auto pattern = config.value("hybrid_override_pattern", std::string());
    EXPECT_EQ(idle, 2 * std::ranges::count(pattern, 'E') + (config.contains("first_k_dense_replace") ? 3 : 0));
    RecordProperty("worst_relative_error", std::to_string(worst));
}

TEST_P(CudaTraining, LossesAgreeWithTheCpu) {
    const TrainedShape& s = GetParam();
    const auto trainer = device_trainer(s, {.rows = 4}, pool_);
    ASSERT_TRUE(trainer);
    const auto cpu = Trainer::create(start_of(s, pool_), {}, pool_);
    ASSERT_TRUE(cpu.ok()) << cpu.error().message();
    const TrainBatch held_out = random_batch(4, s.seq, s.vocab, 1000);
    for (uint32_t i = 0; i < 20; ++i) {
        const TrainBatch batch = random_batch(4, s.seq, s.vocab, i % 3);  // batches repeat, so the loss falls
        const auto a = trainer->step({&batch, 1}, 1e-3);
        const auto b = (*cpu)->step({&batch, 1}, 1e-3);
        ASSERT_TRUE(a.ok()) << a.error().message();
        ASSERT_TRUE(b.ok()) << b.error().message();
        EXPECT_NEAR(a->loss, b->loss, 0.01 * b->loss) << i;
        EXPECT_NEAR(a->gradient_norm, b->gradient_norm, 0.05 * b->gradient_norm) << i;
    }
    const auto a = trainer->evaluate({&held_out, 1}), b = (*cpu)->evaluate({&held_out, 1});
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_NEAR(*a, *b, 0.01 * *b);
}

TEST_P(CudaTraining, LogProbabilitiesEqualThoseOfTheEngine) {
    const TrainedShape& s = GetParam();
    const auto trainer = device_trainer(s, {.rows = 4}, pool_);
    ASSERT_TRUE(trainer);
    for (uint32_t i = 0; i < 2; ++i) {
        const TrainBatch batch = random_batch(4, s.seq, s.vocab, 50 + i);
        const auto check = check_forward(*trainer, batch);
        ASSERT_TRUE(check.ok()) << check.error().message();
        EXPECT_TRUE(check->promised);
        for (const ForwardWay& way : check->ways) {
            EXPECT_GT(way.labels, 0);
            EXPECT_EQ(way.mismatches, 0) << way.name << ", up to " << way.apart;
        }
        ASSERT_TRUE(trainer->step({&batch, 1}, 1e-2).ok());  // again with weights published on the device
    }
}

TEST_P(CudaTraining, RecomputationChangesNoBit) {
    const TrainedShape& s = GetParam();
    std::vector<std::byte> first;
    for (const Recompute level : {Recompute::none, Recompute::none, Recompute::block}) {
        const auto trainer = device_trainer(s, {.recompute = level}, pool_);
        ASSERT_TRUE(trainer);
        for (uint32_t i = 0; i < 3; ++i) {
            const TrainBatch batch = random_batch(6, s.seq, s.vocab, i);
            const auto step = trainer->step({&batch, 1}, 1e-3);
            ASSERT_TRUE(step.ok()) << step.error().message();
        }
        const std::vector<std::byte> now = state_bytes(*trainer);
        if (first.empty()) first = now;
        EXPECT_TRUE(first == now) << (level == Recompute::none ? "a second run" : "blocks computed again");
    }
}

TEST_P(CudaTraining, ResumingFromACheckpointGivesTheSameBits) {
    const TrainedShape& s = GetParam();
    const auto file = std::filesystem::path(testing::TempDir()) / fmt::format("nibble-cuda-{}.safetensors", s.name);
    const auto step = [&](TrainEngine& trainer, uint32_t number) {
        const TrainBatch batch = random_batch(6, s.seq, s.vocab, number);
        const auto made = trainer.step({&batch, 1}, 1e-3);
        EXPECT_TRUE(made.ok()) << made.error().message();
        return made.ok() ? made->loss : 0;
    };
    const auto whole = device_trainer(s, {.micro_batch = 2}, pool_);
    ASSERT_TRUE(whole);
    for (uint32_t i = 0; i < 3; ++i) step(*whole, i);
    auto state = copy_state(*whole, {.step = 3});
    ASSERT_TRUE(state.ok()) << state.error().message();
    ASSERT_TRUE(write_state(file, *state).ok());
    const auto resumed = device_trainer(s, {.micro_batch = 2}, pool_);
    ASSERT_TRUE(resumed);
    step(*resumed, 9);  // another step first
    const auto read = read_state(file, {""}, *resumed);
    std::filesystem::remove(file);
    ASSERT_TRUE(read.ok()) << read.error().message();
    for (uint32_t i = 3; i < 5; ++i) EXPECT_EQ(step(*whole, i), step(*resumed, i));
    EXPECT_TRUE(state_bytes(*whole) == state_bytes(*resumed));
}

TEST_P(CudaTraining, MuonUpdatesTheSameMatricesAsOnACpu) {
    const TrainerOptions muon{.optimizer = {.kind = OptimizerKind::muon}};
    const auto gpu =
        DeviceTrainer::create(start_of(GetParam(), pool_),
                              {.train = muon, .device = tested_device(), .rows = 2, .seq = GetParam().seq}, pool_);
    const auto cpu = Trainer::create(start_of(GetParam(), pool_), muon, pool_);
    ASSERT_TRUE(gpu.ok()) << gpu.error().message();
    ASSERT_TRUE(cpu.ok()) << cpu.error().message();
    int64_t matrices = 0;
    for (size_t id = 0; id < (*gpu)->parameters().count(); ++id) {
        const OptimizerLayout here = (*gpu)->state_layout(id), there = (*cpu)->state_layout(id);
        EXPECT_EQ(here.second, there.second) << (*gpu)->parameters().tensors()[id].name;
        EXPECT_EQ(here.dtype, there.dtype);
        matrices += !here.second;
    }
    EXPECT_GT(matrices, 0);
    const TrainBatch batch = random_batch(2, GetParam().seq, GetParam().vocab, 3);
    const auto step = (*gpu)->step({&batch, 1}, 1e-3);
    EXPECT_TRUE(step.ok()) << step.error().message();
}

// All rows have equal weights, so a single row has exactly four times the slopes.
TEST_P(CudaTraining, MicroBatchesAreAddedAsATree) {
    const TrainedShape& s = GetParam();
    TrainBatch batch = random_batch(4, s.seq, s.vocab, 5);
    for (size_t i = 0; i < batch.labels.size(); ++i) {
        batch.weights[i] = 1.0f;
        if (batch.labels[i] < 0) batch.labels[i] = 1;
    }
    const auto trainer = device_trainer(s, {.rows = 4, .micro_batch = 1}, pool_);
    ASSERT_TRUE(trainer);
    std::vector<std::vector<float>> all;
    ASSERT_TRUE(trainer->backward({&batch, 1}, all).ok());
    std::vector<std::vector<std::vector<float>>> rows(4);
    for (int64_t r = 0; r < 4; ++r) {
        const TrainBatch row = rows_of(batch, r, 1);
        ASSERT_TRUE(trainer->backward({&row, 1}, rows[static_cast<size_t>(r)]).ok());
    }
    for (size_t id = 0; id < all.size(); ++id) {
        int64_t wrong = 0;
        for (size_t i = 0; i < all[id].size(); ++i) {
            const float sum = (rows[0][id][i] + rows[1][id][i]) + (rows[2][id][i] + rows[3][id][i]);
            wrong += all[id][i] != 0.25f * sum && std::abs(sum) > 1e-30f;
        }
        EXPECT_EQ(wrong, 0) << trainer->parameters().tensors()[id].name << " of " << all[id].size();
    }
}

TEST_P(CudaTraining, AnObjectiveEqualsCrossEntropy) {
    const TrainedShape& s = GetParam();
    const TrainBatch batch = random_batch(6, s.seq, s.vocab, 8);
    double weight = 0;
    for (size_t i = 0; i < batch.labels.size(); ++i)
        if (batch.labels[i] >= 0) weight += double{batch.weights[i]};
    const RowObjective cross_entropy = [&](int64_t row, std::span<const float> log_probs, std::span<float> slopes,
                                           double& loss) -> Status {
        for (size_t i = 0; i < log_probs.size(); ++i) {
            const size_t at = static_cast<size_t>(row * s.seq) + i;
            if (batch.labels[at] < 0) continue;
            slopes[i] = static_cast<float>(-double{batch.weights[at]} / weight);
            loss -= double{batch.weights[at]} * double{log_probs[i]} / weight;
        }
        return Ok{};
    };
    const auto one = device_trainer(s, {.micro_batch = 4}, pool_), other = device_trainer(s, {.micro_batch = 4}, pool_);
    ASSERT_TRUE(one && other);
    const auto a = one->step({&batch, 1}, 1e-3), b = other->step({&batch, 1}, cross_entropy, 1e-3);
    ASSERT_TRUE(a.ok()) << a.error().message();
    ASSERT_TRUE(b.ok()) << b.error().message();
    EXPECT_NEAR(a->loss, b->loss, 1e-9);
    EXPECT_TRUE(state_bytes(*one) == state_bytes(*other));
}

TEST_P(CudaTraining, AStepThatIsNotFiniteChangesNothing) {
    const TrainedShape& s = GetParam();
    const auto trainer = device_trainer(s, {}, pool_);
    ASSERT_TRUE(trainer);
    const std::vector<std::byte> before = state_bytes(*trainer);
    const TrainBatch batch = random_batch(6, s.seq, s.vocab, 8);
    const RowObjective broken = [&](int64_t row, std::span<const float>, std::span<float> slopes, double&) -> Status {
        if (row == 2) slopes[1] = std::numeric_limits<float>::infinity();
        return Ok{};
    };
    TrainBatch labelled = batch;
    labelled.labels[static_cast<size_t>(2 * s.seq + 1)] = 3;
    const auto step = trainer->step({&labelled, 1}, broken, 1e-3);
    ASSERT_FALSE(step.ok());
    EXPECT_THAT(step.error().message(), HasSubstr("nothing was changed"));
    EXPECT_TRUE(before == state_bytes(*trainer));
}

INSTANTIATE_TEST_SUITE_P(
    All, CudaTraining,
    testing::Values(
        TrainedShape{.name = "llama"}, TrainedShape{.name = "tied", .heads = 6, .kv_heads = 2, .tied = true},
        TrainedShape{.name = "wide_heads", .head_dim = 128, .heads = 4, .kv_heads = 1, .seq = 333},
        TrainedShape{.name = "heads_of_96", .head_dim = 96},
        TrainedShape{.name = "heads_of_192", .head_dim = 192, .heads = 3, .kv_heads = 1, .seq = 150},
        TrainedShape{.name = "biases", .more = {{"attention_bias", true}, {"mlp_bias", true}}},
        TrainedShape{.name = "mistral", .family = "mistral", .more = {{"sliding_window", 8}}},
        TrainedShape{.name = "qwen2", .family = "qwen2"},
        TrainedShape{.name = "qwen3", .family = "qwen3", .head_dim = 128, .heads = 2, .kv_heads = 2},
        TrainedShape{.name = "gemma3", .family = "gemma3_text", .head_dim = 256, .heads = 2, .kv_heads = 1},
        TrainedShape{.name = "mixtral", .family = "mixtral"},
        TrainedShape{.name = "qwen3_moe", .family = "qwen3_moe", .head_dim = 128, .heads = 2, .kv_heads = 2},
        TrainedShape{.name = "nemotron_h", .family = "nemotron_h"},
        TrainedShape{.name = "mamba", .family = "nemotron_h", .more = {{"hybrid_override_pattern", "M*EM"}}},
        TrainedShape{.name = "small_mamba",
                     .family = "nemotron_h",
                     .seq = 200,
                     .more = {{"hybrid_override_pattern", "M*-M"},
                              {"mamba_head_dim", 24},
                              {"n_groups", 4},
                              {"ssm_state_size", 20},
                              {"conv_kernel", 3}}},
        TrainedShape{.name = "latent_experts",
                     .family = "nemotron_h",
                     .more = {{"moe_latent_size", 128}, {"attention_bias", true}, {"mlp_bias", true}}},
        TrainedShape{.name = "deepseek_v3", .family = "deepseek_v3", .heads = 2},
        TrainedShape{.name = "latent_keys",
                     .family = "deepseek_v3",
                     .more = {{"q_lora_rank", nullptr},
                              {"qk_nope_head_dim", 32},
                              {"qk_rope_head_dim", 32},
                              {"v_head_dim", 64},
                              {"rope_interleave", false}}}),
    [](const auto& info) { return std::string(info.param.name); });

// Tests linears of every mixer under recipes. Micro-batches are single rows, so that a tensor's scale equals the CPU's.
TEST(CudaTrainingRecipes, OtherFamiliesAgreeWithTheCpu) {
    ThreadPool pool;
    for (const TrainedShape& s :
         {TrainedShape{.name = "biases", .more = {{"attention_bias", true}, {"mlp_bias", true}}},
          TrainedShape{.name = "gemma3", .family = "gemma3_text", .head_dim = 256, .heads = 2, .kv_heads = 1},
          TrainedShape{.name = "latent", .family = "deepseek_v3", .heads = 2, .more = {{"first_k_dense_replace", 2}}},
          TrainedShape{.name = "mamba", .family = "nemotron_h", .more = {{"hybrid_override_pattern", "M*-M"}}}})
        for (const TrainRecipe recipe : {TrainRecipe::mxfp8, TrainRecipe::nvfp4}) {
            const std::string what = fmt::format("{} {}", s.name, train_recipe_name(recipe));
            const TrainBatch batch = random_batch(4, s.seq, s.vocab, 3);
            // Mamba-2's in_proj has 1,544 rows here, which is not a multiple of 16.
            const TrainPrecision precision{.recipe = recipe, .square = s.name != std::string_view("mamba")};
            const auto gpu = DeviceTrainer::create(start_of(s, pool),
                                                   {.train = {.precision = precision},
                                                    .device = tested_device(),
                                                    .rows = 4,
                                                    .seq = s.seq,
                                                    .micro_batch = 1},
                                                   pool);
            ASSERT_TRUE(gpu.ok()) << what << ": " << gpu.error().message();
            const auto cpu = Trainer::create(start_of(s, pool), {.precision = precision}, pool);
            ASSERT_TRUE(cpu.ok()) << what << ": " << cpu.error().message();
            std::vector<std::vector<float>> gradients;
            const auto got = (*gpu)->backward({&batch, 1}, gradients);
            const auto want = (*cpu)->backward({&batch, 1});
            ASSERT_TRUE(got.ok()) << what << ": " << got.error().message();
            ASSERT_TRUE(want.ok()) << what << ": " << want.error().message();
            EXPECT_NEAR(got->loss, want->loss, 4e-3 * want->loss) << what;
            EXPECT_NEAR(got->gradient_norm, want->gradient_norm, 0.03 * want->gradient_norm) << what;
            const auto check = check_forward(**gpu, batch);
            ASSERT_TRUE(check.ok()) << what << ": " << check.error().message();
            EXPECT_EQ(check->promised, recipe == TrainRecipe::mxfp8) << what;
            EXPECT_EQ(check->promised ? check->mismatches() : 0, 0) << what;
        }
}

TEST(CudaTrainingMemory, RefusesWhatDoesNotFit) {
    ThreadPool pool;
    // The activations would need 156 GiB.
    const TrainedShape s{.name = "llama", .head_dim = 128, .heads = 64, .layers = 80, .seq = 8192};
    const auto made = DeviceTrainer::create(
        start_of(s, pool),
        {.device = tested_device(), .rows = 7, .seq = s.seq, .micro_batch = 7, .recompute = Recompute::none}, pool);
    ASSERT_FALSE(made.ok());
    for (const char* part : {"micro-batches of 7 rows does not fit", "activations", "are free"})
        EXPECT_THAT(made.error().message(), HasSubstr(part));
}

TEST(CudaTrainingMemory, RefusesUnsupportedOptions) {
    ThreadPool pool;
    const auto refused = [&](const Json& config, const TrainPrecision& precision) {
        const auto parameters = random_start(config, DType::bf16, 7, pool);
        EXPECT_TRUE(parameters.ok()) << parameters.error().message();
        const auto made = DeviceTrainer::create(
            *parameters, {.train = {.precision = precision}, .device = tested_device(), .rows = 2, .seq = 64}, pool);
        return made.ok() ? std::string() : made.error().message();
    };
    const TrainedShape s{.name = "llama"};
    EXPECT_THAT(refused(config_of(s), {.recipe = TrainRecipe::fp32}),
                HasSubstr("does not train in fp32; use bf16, or --device cpu"));
    const TrainedShape blind{.name = "mamba", .family = "nemotron_h", .more = {{"hybrid_override_pattern", "MEM-"}}};
    EXPECT_THAT(refused(config_of(blind), {}), HasSubstr("does not train models without attention yet"));
    const TrainPrecision late{.recipe = TrainRecipe::nvfp4, .weights_only = true, .late_forward = TrainRecipe::bf16};
    EXPECT_THAT(refused(config_of(s), late), HasSubstr("weights_only with late_forward is not supported"));
    TrainPrecision stored = *train_precision_from_name("nvfp4_w4a4");
    stored.late_forward = TrainRecipe::bf16;
    EXPECT_THAT(refused(config_of(s), stored), HasSubstr("stored_inputs with late_forward is not supported"));
    const auto made = DeviceTrainer::create(
        start_of(s, pool), {.device = tested_device(), .rows = 100, .seq = 1024, .micro_batch = 64}, pool);
    ASSERT_FALSE(made.ok());
    EXPECT_THAT(made.error().message(), HasSubstr("micro_batch: 64 rows of 1024 tokens"));
}

}  // namespace
}  // namespace nibble::test
