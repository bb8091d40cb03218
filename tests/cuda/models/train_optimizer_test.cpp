// Compares optimizers on a GPU with the CPU's: one update from the same masters, states and gradient, losses of some
// steps, and checkpoints that both can read.
#include "cuda/models/train_recipes.h"
#include "run/state.h"
#include "train/device/device_trainer.h"
#include "train/small_trainer.h"
#include "train/train_shapes.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

namespace nibble::test {
namespace {

struct Optimized {
    const char* name;
    TrainOptimizer optimizer;
    bool biases = false, tied = false;
};
void PrintTo(const Optimized& o, std::ostream* out) { *out << o.name; }

class CudaOptimizer : public testing::TestWithParam<Optimized> {
protected:
    std::shared_ptr<Parameters> start() {
        Json config = recipe_model();
        config["attention_bias"] = config["mlp_bias"] = GetParam().biases;
        config["tie_word_embeddings"] = GetParam().tied;
        auto made = random_start(config, DType::bf16, 7, pool_);
        EXPECT_TRUE(made.ok()) << made.error().message();
        return *made;
    }
    // The optimizer's seed keys random bits.
    TrainerOptions options() const { return {.optimizer = GetParam().optimizer, .seed = 0x1234'5678'9ABCu}; }
    std::unique_ptr<DeviceTrainer> on_gpu() {
        auto made = DeviceTrainer::create(
            start(), {.train = options(), .device = recipe_device(), .rows = 4, .seq = recipe_seq, .micro_batch = 2},
            pool_);
        EXPECT_TRUE(made.ok()) << made.error().message();
        return made.ok() ? *std::move(made) : nullptr;
    }
    std::unique_ptr<Trainer> on_cpu() {
        auto made = Trainer::create(start(), options(), pool_);
        EXPECT_TRUE(made.ok()) << made.error().message();
        return made.ok() ? *std::move(made) : nullptr;
    }
    ThreadPool pool_;
};

// Three updates come first, so that states are not zero and the step count matters. The host's optimizer then uses the
// GPU's masters, states and gradient. AdamW gives equal bits, including stochastically rounded BF16 states. Muon gives
// equal momentum, and a direction that differs by the order of FP32 sums.
TEST_P(CudaOptimizer, AnUpdateEqualsThatOfTheCpu) {
    const auto gpu = on_gpu();
    const auto cpu = on_cpu();
    ASSERT_TRUE(gpu && cpu);
    for (uint32_t i = 0; i < 3; ++i) {
        const TrainBatch batch = random_batch(4, recipe_seq, recipe_vocab, i);
        ASSERT_TRUE(gpu->step({&batch, 1}, 1e-3).ok());
    }
    const auto before = gpu->state();
    ASSERT_TRUE(before.ok()) << before.error().message();
    const TrainBatch batch = random_batch(4, recipe_seq, recipe_vocab, 9);
    std::vector<std::vector<float>> gradient;
    ASSERT_TRUE(gpu->backward({&batch, 1}, gradient).ok());
    const auto step = gpu->step({&batch, 1}, 2e-3);
    ASSERT_TRUE(step.ok()) << step.error().message();
    const auto after = gpu->state();
    ASSERT_TRUE(after.ok());

    Parameters& parameters = cpu->parameters();
    GradientTree tree(parameters, cpu->config().head, false, pool_);
    tree.begin_step();
    for (size_t id = 0; id < parameters.count(); ++id) {
        const CheckpointTensor& t = parameters.tensors()[id];
        std::ranges::copy(before->masters[id], parameters.master(id).begin());
        const auto copy = [&](const StateNumbers& from, StateNumbers& to) {
            ASSERT_EQ(bytes_of(from).size(), bytes_of(to).size()) << t.name;
            ASSERT_EQ(dtype_of(from), dtype_of(to)) << t.name;
            std::ranges::copy(bytes_of(from), bytes_of(to).begin());
        };
        copy(before->m[id], cpu->optimizer().m(id));
        copy(before->v[id], cpu->optimizer().v(id));
        ASSERT_TRUE(tree.add(t.name, gradient[id].data(), t.rows(), t.cols()).ok()) << t.name;
    }
    tree.end_row();
    ASSERT_TRUE(tree.end_step().ok());
    cpu->optimizer().set_steps(before->optimizer_steps);
    cpu->optimizer().update(parameters, tree, 2e-3, step->clip, pool_);
    int64_t matrices = 0;
    double worst = 0;
    for (size_t id = 0; id < parameters.count(); ++id) {
        const std::string& name = parameters.tensors()[id].name;
        EXPECT_TRUE(std::ranges::equal(bytes_of(after->m[id]), bytes_of(std::as_const(cpu->optimizer()).m(id))))
            << name;
        EXPECT_TRUE(std::ranges::equal(bytes_of(after->v[id]), bytes_of(std::as_const(cpu->optimizer()).v(id))))
            << name;
        EXPECT_FALSE(std::ranges::equal(bytes_of(after->m[id]), bytes_of(before->m[id]))) << name;
        const std::span<const float> want = std::as_const(parameters).master(id);
        ASSERT_EQ(want.size(), after->masters[id].size());
        if (cpu->state_layout(id).second) {
            EXPECT_TRUE(std::ranges::equal(want, after->masters[id])) << name;
            continue;
        }
        ++matrices;
        double apart = 0, moved = 0;
        for (size_t i = 0; i < want.size(); ++i) {
            const double d = double{after->masters[id][i]} - double{want[i]};
            const double m = double{want[i]} - double{before->masters[id][i]};
            apart += d * d, moved += m * m;
        }
        ASSERT_GT(moved, 0) << name;
        EXPECT_LT(std::sqrt(apart / moved), 1e-3) << name;
        worst = std::max(worst, std::sqrt(apart / moved));
    }
    // Two blocks of seven linears.
    EXPECT_EQ(matrices, GetParam().optimizer.kind == OptimizerKind::muon ? 14 : 0);
    RecordProperty("worst_of_a_direction", std::to_string(worst));
}

TEST_P(CudaOptimizer, LossesAgreeWithTheCpu) {
    const auto gpu = on_gpu();
    const auto cpu = on_cpu();
    ASSERT_TRUE(gpu && cpu);
    double first = 0, last = 0;
    for (uint32_t i = 0; i < 10; ++i) {
        const TrainBatch batch = random_batch(4, recipe_seq, recipe_vocab, i % 2);
        const auto a = gpu->step({&batch, 1}, 2e-3), b = cpu->step({&batch, 1}, 2e-3);
        ASSERT_TRUE(a.ok()) << a.error().message();
        ASSERT_TRUE(b.ok()) << b.error().message();
        EXPECT_NEAR(a->loss, b->loss, 5e-3 * b->loss) << i;
        (i == 0 ? first : last) = a->loss;
    }
    EXPECT_LT(last, first - 0.1);
}

TEST_P(CudaOptimizer, ResumingFromACheckpointGivesTheSameBits) {
    const auto file =
        std::filesystem::path(testing::TempDir()) / fmt::format("nibble-optimizer-{}.safetensors", GetParam().name);
    const auto step = [&](TrainEngine& engine, uint32_t number) {
        const TrainBatch batch = random_batch(4, recipe_seq, recipe_vocab, number);
        const auto made = engine.step({&batch, 1}, 1e-3);
        EXPECT_TRUE(made.ok()) << made.error().message();
        return made.ok() ? made->loss : 0;
    };
    const auto whole = on_gpu(), resumed = on_gpu();
    const auto cpu = on_cpu();
    ASSERT_TRUE(whole && resumed && cpu);
    for (uint32_t i = 0; i < 3; ++i) step(*whole, i);
    auto state = copy_state(*whole, {.step = 3});
    ASSERT_TRUE(state.ok()) << state.error().message();
    ASSERT_TRUE(write_state(file, *state).ok());
    step(*resumed, 4);  // another step first
    const auto read = read_state(file, {""}, *resumed);
    ASSERT_TRUE(read.ok()) << read.error().message();
    const auto by_cpu = read_state(file, {""}, *cpu);
    EXPECT_TRUE(by_cpu.ok()) << by_cpu.error().message();
    std::filesystem::remove(file);
    for (uint32_t i = 3; i < 5; ++i) EXPECT_EQ(step(*whole, i), step(*resumed, i));
    const auto a = whole->state(), b = resumed->state();
    ASSERT_TRUE(a.ok() && b.ok());
    for (size_t id = 0; id < a->masters.size(); ++id) {
        EXPECT_EQ(a->masters[id], b->masters[id]);
        EXPECT_EQ(a->m[id], b->m[id]);
        EXPECT_EQ(a->v[id], b->v[id]);
    }
}

// States in BF16 take half the memory, and the plan shows it.
TEST_P(CudaOptimizer, ThePlanHasItsStates) {
    const auto gpu = on_gpu();
    ASSERT_TRUE(gpu);
    int64_t masters = 0, states = 0;
    for (const TrainMemoryPlan::Item& item : gpu->plan().items) {
        if (item.name == "masters") masters = item.bytes;
        if (item.name == "states") states = item.bytes;
    }
    ASSERT_GT(masters, 0);
    EXPECT_EQ(states, GetParam().optimizer.bf16_states ? masters : 2 * masters);
}

TEST_P(CudaOptimizer, AStepThatIsNotFiniteChangesNothing) {
    const auto gpu = on_gpu();
    ASSERT_TRUE(gpu);
    const auto before = gpu->state();
    const TrainBatch batch = random_batch(4, recipe_seq, recipe_vocab, 1);
    const RowObjective objective = [](int64_t row, std::span<const float>, std::span<float> slopes, double& loss) {
        for (float& s : slopes) s = row == 2 ? INFINITY : 1e-3f;
        loss = 1;
        return Status(Ok{});
    };
    const auto step = gpu->step({&batch, 1}, objective, 1e-3);
    ASSERT_FALSE(step.ok());
    EXPECT_THAT(step.error().message(), testing::HasSubstr("not finite; nothing was changed"));
    const auto after = gpu->state();
    ASSERT_TRUE(before.ok() && after.ok());
    EXPECT_EQ(before->masters, after->masters);
    EXPECT_EQ(before->m, after->m);
    EXPECT_EQ(before->v, after->v);
}

INSTANTIATE_TEST_SUITE_P(
    All, CudaOptimizer,
    testing::Values(Optimized{"adamw", {}}, Optimized{"adamw_bf16", {.bf16_states = true}},
                    Optimized{"adamw_bf16_biases", {.bf16_states = true, .beta2 = 0.999}, true, true},
                    Optimized{"muon", {.kind = OptimizerKind::muon}},
                    Optimized{"muon_tied", {.kind = OptimizerKind::muon, .momentum = 0.9}, true, true},
                    Optimized{"muon_bf16", {.kind = OptimizerKind::muon, .bf16_states = true}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace nibble::test
