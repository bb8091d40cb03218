// Tests memory that updates and rollouts share on one GPU: activations of updates use the memory of the rollouts' KV
// cache.
#include "cuda/models/rl_loop.h"

namespace nibble::test {
namespace {

// With Mamba-2 states the pool has more than pages.
Json memory_model(bool hybrid) {
    if (!hybrid) return rl_llama();
    Json config = rl_hybrid();
    config["hybrid_override_pattern"] = "M*-M";
    return config;
}

struct MemoryLoop {
    ThreadPool pool;
    TokenTask task{share_of_even_tokens};
    std::unique_ptr<DeviceTrainer> trainer;
    std::unique_ptr<PolicyTrainer> policy;

    Status open(const RlConfig& config, bool hybrid, const std::optional<double>& time_shared_part) {
        NIBBLE_TRY(auto parameters, random_start(memory_model(hybrid), DType::bf16, 7, pool));
        const int64_t row_tokens = 1024;
        NIBBLE_TRY(trainer,
                   DeviceTrainer::create(
                       std::move(parameters),
                       {.train = {.optimizer = config.optimizer, .cache = config.generation.cache},
                        .device = rl_device(),
                        .rows = most_rollout_rows(config.prompts * config.generations, config.length, row_tokens),
                        .seq = row_tokens,
                        .micro_batch = 1,
                        .reference = config.loss.kl_penalty > 0,
                        .generation = config.generation.precision,
                        .time_shared_part = time_shared_part},
                       pool));
        PolicyTrainerOptions options{.end_tokens = {3}, .memory_share = 0.1, .row_tokens = row_tokens};
        if (config.loss.kl_penalty > 0) options.reference = std::make_shared<DeviceReference>(*trainer);
        if (config.generation.precision) {
            NIBBLE_TRY(options.generator, trainer->generating());
            options.renew_generator = [this] { return trainer->renew_generation(); };
        }
        NIBBLE_TRY(policy, PolicyTrainer::create(config, *trainer, task, std::move(options)));
        return Ok{};
    }
    std::vector<float> masters() const {
        std::vector<float> all;
        const auto state = trainer->state();
        EXPECT_TRUE(state.ok());
        for (const auto& values : state->masters) all.insert(all.end(), values.begin(), values.end());
        return all;
    }
};

RlConfig memory_config() {
    RlConfig c{.prompts = 8, .generations = 8, .steps = 30, .length = 128};
    c.optimizer.learning_rate = 3e-3;
    c.optimizer.weight_decay = 0;
    c.loss.kl_penalty = 0;
    c.generation.most_tokens = 75;  // more than a page of 64 positions
    c.validation_prompts = 8;
    return c;
}

// Several updates, a reference and validation; one run with shared memory, one without.
TEST(CudaTimeSharedMemory, RunsEqualThoseWithSeparateMemory) {
    RlConfig usual = memory_config(), cached = memory_config(), compared = memory_config(), other = memory_config();
    cached.generation.cache.format = KvFormat::fp8;
    compared.loss.kl_penalty = 0.1, compared.train_batch = 32;
    other.generation.precision = TrainPrecision{.recipe = TrainRecipe::fp8_block};
    other.loss.importance_sampling_correction = true;
    struct Case {
        const char* name;
        RlConfig config;
        bool hybrid = false, exact = true;
    };
    const Case cases[] = {{"BF16", usual},
                          {"Mamba-2", usual, true},
                          {"FP8 cache", cached},
                          {"reference", compared},
                          {"FP8 rollouts", other, false, false}};
    for (const Case& c : cases) {
        SCOPED_TRACE(c.name);
        MemoryLoop own, time_shared;
        for (const Status& opened :
             {own.open(c.config, c.hybrid, std::nullopt), time_shared.open(c.config, c.hybrid, 0.1)})
            ASSERT_TRUE(opened.ok()) << opened.error().message();
        EXPECT_EQ(own.trainer->time_shared_bytes(), 0);
        EXPECT_GT(time_shared.trainer->time_shared_bytes(), 0);
        for (int s = 0; s < 4; ++s) {
            const auto a = own.policy->step(s), b = time_shared.policy->step(s);
            ASSERT_TRUE(a.ok()) << a.error().message();
            ASSERT_TRUE(b.ok()) << b.error().message();
            EXPECT_GT(b->longest, 64);
            EXPECT_GT(b->update.gradient_norm, 0);
            EXPECT_EQ(b->metrics.mismatch_tokens > 0, !c.exact);
            EXPECT_EQ(a->metrics.mismatch_tokens, b->metrics.mismatch_tokens);
            EXPECT_EQ(a->metrics.loss, b->metrics.loss);
            EXPECT_EQ(a->reward, b->reward);
            const auto v = own.policy->validate(), w = time_shared.policy->validate();
            ASSERT_TRUE(v.ok() && w.ok());
            EXPECT_EQ(v->reward, w->reward);
        }
        EXPECT_EQ(own.masters(), time_shared.masters());
    }
}

TEST(CudaTimeSharedMemory, ComputingWithoutTheMemoryIsAnError) {
    MemoryLoop loop;
    const Status opened = loop.open(memory_config(), false, 0.1);
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    TrainBatch row{.rows = 1, .seq = 96};
    for (int32_t t = 0; t < 96; ++t) row.tokens.push_back(t), row.labels.push_back(t + 1);
    row.documents = {0};
    std::vector<float> out(96);
    const auto says = [](const Status& s, std::string_view text) {
        return !s.ok() && s.error().message().find(text) != std::string::npos;
    };
    EXPECT_TRUE(says(loop.trainer->log_probs(row, out), "updates must not compute while it is the turn of rollouts"));
    ASSERT_TRUE(loop.trainer->take_memory_back().ok());
    EXPECT_TRUE(loop.trainer->log_probs(row, out).ok());
    const auto step = loop.policy->validate();
    ASSERT_FALSE(step.ok());
    EXPECT_NE(step.error().message().find("rollouts must not compute while it is the turn of updates"),
              std::string::npos)
        << step.error().message();
    // A second pool over the same pages.
    ASSERT_TRUE(loop.trainer->give_memory_to_rollouts().ok());
    const auto second = loop.trainer->serving();
    ASSERT_TRUE(second.ok());
    EXPECT_FALSE((*second)->make_pool(64, 1).ok());
}

// The plan respects a process's memory limit, and allocations beyond it fail.
TEST(CudaTimeSharedMemory, AProcessRespectsItsMemoryLimit) {
    const DeviceChoice device = rl_device();
    const auto whole = device_memory(device.index);
    ASSERT_TRUE(whole.ok()) << whole.error().message();
    ASSERT_TRUE(limit_device_memory(device.index, 0.01).ok());
    const auto share = device_memory(device.index);
    ASSERT_TRUE(share.ok());
    EXPECT_EQ(share->total, whole->total);
    EXPECT_LE(share->free, whole->total / 100 + 1);
    const auto beyond = DeviceArena::create(device.index, whole->total / 50);
    ASSERT_FALSE(beyond.ok());
    EXPECT_NE(beyond.error().message().find("share of its memory"), std::string::npos) << beyond.error().message();
    {
        const auto within = DeviceArena::create(device.index, whole->total / 200);
        ASSERT_TRUE(within.ok()) << within.error().message();
        const auto left = device_memory(device.index);
        ASSERT_TRUE(left.ok());
        EXPECT_LE(left->free, share->free - whole->total / 200);
    }
    const auto again = device_memory(device.index);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->free, share->free);
    EXPECT_FALSE(limit_device_memory(device.index, 0).ok());
    EXPECT_TRUE(limit_device_memory(device.index, 1).ok());
}

}  // namespace
}  // namespace nibble::test
