// Tests adapters over frozen weights on a GPU: gradients and losses against the CPU trainer, the engine's bits,
// settings that must not change bits, and the merged model. Bases are checkpoints on disk in their serving format.
#include "cuda/models/lora_bases.h"
#include "cuda/models/train_gradients.h"
#include "cuda/models/train_same_bits.h"
#include "kernels/lora_cuda.h"
#include "train/lora_export.h"

#include <gmock/gmock.h>

#include <cmath>
#include <random>

namespace nibble::test {
namespace {

using testing::HasSubstr;

constexpr int64_t lora_rows = 4;

struct LoraExtra {
    int64_t micro_batch = 0;
    Recompute recompute = Recompute::automatic;
};
std::unique_ptr<DeviceTrainer> adapters_on_gpu(std::shared_ptr<const Checkpoint> base, const TrainerOptions& options,
                                               const LoraExtra& extra, ThreadPool& pool) {
    auto made = DeviceTrainer::create_adapters(std::move(base),
                                               {.train = options,
                                                .device = recipe_device(),
                                                .rows = lora_rows,
                                                .seq = recipe_seq,
                                                .micro_batch = extra.micro_batch,
                                                .recompute = extra.recompute},
                                               pool);
    EXPECT_TRUE(made.ok()) << made.error().message();
    return made.ok() ? *std::move(made) : nullptr;
}
std::unique_ptr<Trainer> adapters_on_cpu(std::shared_ptr<const Checkpoint> base, const TrainerOptions& options,
                                         ThreadPool& pool) {
    auto made = Trainer::create_adapters(std::move(base), options, pool);
    EXPECT_TRUE(made.ok()) << made.error().message();
    return made.ok() ? *std::move(made) : nullptr;
}

// Adds the same random numbers to all three, because B is zero at the start and hides errors in A.
void stir_all(Trainer& cpu, std::span<TrainEngine* const> others, const std::filesystem::path& file) {
    std::mt19937 random(4);
    for (size_t id = 0; id < cpu.parameters().count(); ++id)
        for (float& w : cpu.parameters().master(id)) w += 0.02f * (static_cast<float>(random() % 201) / 100 - 1);
    ASSERT_TRUE(cpu.renew().ok());
    auto state = copy_state(cpu, {.step = 0});
    ASSERT_TRUE(state.ok() && write_state(file, *state).ok());
    for (TrainEngine* engine : others) {
        const auto read = read_state(file, {""}, *engine);
        ASSERT_TRUE(read.ok()) << read.error().message();
    }
}

class CudaLora : public testing::TestWithParam<LoraBase> {
protected:
    CudaLora() : folder_(GetParam().name) {}
    void SetUp() override {
        base_ = stored_base(GetParam(), folder_.path / "base", false, pool_);
        ASSERT_TRUE(base_);
    }
    std::unique_ptr<DeviceTrainer> on_gpu(const LoraExtra& extra = {}) {
        return adapters_on_gpu(base_, lora_of(), extra, pool_);
    }
    ThreadPool pool_;
    LoraFolder folder_;
    std::shared_ptr<const Checkpoint> base_;
};

// Without rounded inputs the tolerances are those of BF16 training (train_test.cpp). With rounded inputs a number that
// crosses the boundary between two codes changes by up to a sixteenth, as in train_recipe_test.cpp. The tolerance is
// then the difference between two CPU trainers whose embeddings differ by half a unit in the last place, plus a margin.
TEST_P(CudaLora, GradientsAgreeWithTheCpu) {
    const auto moved_base = stored_base(GetParam(), folder_.path / "moved", true, pool_);
    ASSERT_TRUE(moved_base);
    const auto gpu = on_gpu();
    const auto cpu = adapters_on_cpu(base_, lora_of(), pool_), moved = adapters_on_cpu(moved_base, lora_of(), pool_);
    ASSERT_TRUE(gpu && cpu && moved);
    const std::array<TrainEngine*, 2> others{gpu.get(), moved.get()};
    stir_all(*cpu, others, folder_.path / "state.safetensors");
    const TrainBatch batch = random_batch(lora_rows, recipe_seq, recipe_vocab, 3);
    std::vector<std::vector<float>> got;
    const auto step = gpu->backward({&batch, 1}, got);
    ASSERT_TRUE(step.ok()) << step.error().message();
    const auto want = cpu->backward({&batch, 1}), other = moved->backward({&batch, 1});
    ASSERT_TRUE(want.ok() && other.ok());
    EXPECT_NEAR(step->loss, want->loss, 2e-3 * want->loss);
    EXPECT_NEAR(step->gradient_norm, want->gradient_norm, (GetParam().rounds ? 2e-2 : 5e-3) * want->gradient_norm);
    ASSERT_EQ(got.size(), cpu->parameters().count());
    double worst = 0, worst_of_own = 0;
    for (size_t id = 0; id < got.size(); ++id) {
        const auto w = cpu->gradients().gradient(id);
        const std::string& name = gpu->parameters().tensors()[id].name;
        ASSERT_EQ(name, cpu->parameters().tensors()[id].name);
        if (w.empty()) {  // an expert that no token has chosen
            EXPECT_TRUE(std::ranges::all_of(got[id], [](float x) { return x == 0; })) << name;
            continue;
        }
        ASSERT_EQ(w.size(), got[id].size());
        const Apart here = apart(got[id], w), own = apart(moved->gradients().gradient(id), w);
        EXPECT_LT(here.relative, GetParam().rounds ? 1.2 * own.relative + 0.02 : 2e-2) << name;
        EXPECT_GT(here.cosine, GetParam().rounds ? 1 - 1.44 * (1 - own.cosine) - 1e-3 : 0.9995) << name;
        worst = std::max(worst, here.relative);
        worst_of_own = std::max(worst_of_own, own.relative);
    }
    RecordProperty("worst_relative_error", std::to_string(worst));
    RecordProperty("worst_of_the_moved_cpu", std::to_string(worst_of_own));
}

TEST_P(CudaLora, LossesAgreeWithTheCpuAndFall) {
    const auto gpu = on_gpu();
    const auto cpu = adapters_on_cpu(base_, lora_of(), pool_);
    ASSERT_TRUE(gpu && cpu);
    double first = 0, last = 0;
    for (uint32_t i = 0; i < 12; ++i) {
        const TrainBatch batch = random_batch(lora_rows, recipe_seq, recipe_vocab, 6);
        const auto a = gpu->step({&batch, 1}, 2e-3), b = cpu->step({&batch, 1}, 2e-3);
        ASSERT_TRUE(a.ok()) << a.error().message();
        ASSERT_TRUE(b.ok()) << b.error().message();
        EXPECT_NEAR(a->loss, b->loss, 0.015 * b->loss) << i;
        EXPECT_NEAR(a->gradient_norm, b->gradient_norm, 0.1 * b->gradient_norm) << i;
        if (i == 0) first = a->loss;
        last = a->loss;
    }
    EXPECT_LT(last, first - 0.2);
}

TEST_P(CudaLora, LogProbabilitiesEqualThoseOfTheEngine) {
    const auto gpu = on_gpu();
    ASSERT_TRUE(gpu);
    const auto plain = DeviceModel::load(base_, {}, recipe_device(), pool_);
    ASSERT_TRUE(plain.ok()) << plain.error().message();
    // At the start the model equals its base.
    const TrainBatch batch = random_batch(lora_rows, recipe_seq, recipe_vocab, 50);
    const auto before = check_forward(*gpu, batch, **plain);
    ASSERT_TRUE(before.ok()) << before.error().message();
    for (const ForwardWay& way : before->ways)
        EXPECT_EQ(way.mismatches, 0) << way.name << ", up to " << way.apart << " of " << way.labels;
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(gpu->step({&batch, 1}, 1e-2).ok());
    expect_the_engines_log_probs(*gpu, true);
    const auto stale = check_forward(*gpu, batch, **plain);
    ASSERT_TRUE(stale.ok());
    EXPECT_GT(stale->mismatches(), 100);
}

TEST_P(CudaLora, RecomputationChangesNoBit) {
    std::vector<std::byte> first;
    for (const Recompute level : {Recompute::none, Recompute::none, Recompute::block}) {
        const auto gpu = on_gpu({.micro_batch = 2, .recompute = level});
        ASSERT_TRUE(gpu);
        for (uint32_t i = 0; i < 3; ++i) {
            const TrainBatch batch = random_batch(lora_rows, recipe_seq, recipe_vocab, i);
            const auto step = gpu->step({&batch, 1}, 1e-2);
            ASSERT_TRUE(step.ok()) << step.error().message();
        }
        const std::vector<std::byte> now = all_state(*gpu);
        if (first.empty()) first = now;
        EXPECT_TRUE(first == now) << (level == Recompute::none ? "a second run" : "blocks computed again");
    }
}

TEST_P(CudaLora, ResumingFromACheckpointGivesTheSameBits) {
    const auto whole = on_gpu({.micro_batch = 2}), resumed = on_gpu({.micro_batch = 2});
    ASSERT_TRUE(whole && resumed);
    expect_a_checkpoint_goes_on(*whole, *resumed, fmt::format("lora-{}", GetParam().name));
}

TEST_P(CudaLora, TheMergedModelHasLearnedTheSame) {
    const auto gpu = on_gpu();
    ASSERT_TRUE(gpu);
    const TrainBatch batch = random_batch(lora_rows, recipe_seq, recipe_vocab, 9);
    const auto start = gpu->evaluate({&batch, 1});
    ASSERT_TRUE(start.ok()) << start.error().message();
    for (int i = 0; i < 12; ++i) ASSERT_TRUE(gpu->step({&batch, 1}, 3e-3).ok());
    const auto end = gpu->evaluate({&batch, 1});
    ASSERT_TRUE(end.ok());
    EXPECT_LT(*end, *start - 0.2);
    const auto merged = gpu->trained();
    ASSERT_TRUE(merged.ok()) << merged.error().message();
    const auto state = gpu->state();
    ASSERT_TRUE(state.ok());
    for (size_t id = 0; id < gpu->parameters().count(); ++id)
        EXPECT_TRUE(std::ranges::equal(gpu->parameters().master(id), state->masters[id]));
    const auto report = convert(**merged, {.out = folder_.path / "merged"}, pool_, {});
    ASSERT_TRUE(report.ok()) << report.error().message();
    auto read = Checkpoint::open(folder_.path / "merged");
    ASSERT_TRUE(read.ok()) << read.error().message();
    for (const CheckpointTensor& t : (*read)->tensors()) EXPECT_FALSE(t.quantized()) << t.name;
    auto parameters = Parameters::copy(**read, DType::bf16, pool_);
    ASSERT_TRUE(parameters.ok()) << parameters.error().message();
    const auto as_exported = Trainer::create(*parameters, {}, pool_);
    ASSERT_TRUE(as_exported.ok());
    const auto exported = (*as_exported)->evaluate({&batch, 1});
    ASSERT_TRUE(exported.ok());
    // A reader of the export does not round inputs, although the base does.
    EXPECT_NEAR(*exported, *end, 0.1 + 0.05 * (*start - *end));
    ASSERT_TRUE(write_peft_adapter(folder_.path / "adapter", gpu->parameters(), lora_of().lora, "some/base").ok());
}

TEST_P(CudaLora, OnlyAdaptersHaveStates) {
    const auto gpu = on_gpu();
    ASSERT_TRUE(gpu);
    const int64_t elements = gpu->parameters().elements();
    int64_t weights = 0;
    for (const CheckpointTensor& t : base_->tensors()) weights += t.rows() * t.cols();
    EXPECT_LT(10 * elements, weights);
    for (const TrainMemoryPlan::Item& item : gpu->plan().items) {
        const int64_t most = item.name == "masters"            ? 5 * elements
                             : item.name == "states"           ? 10 * elements
                             : item.name.starts_with("frozen") ? 2 * weights + 64 * elements + (1 << 20)
                                                               : int64_t{1} << 40;
        EXPECT_LT(item.bytes, most) << item.name;
    }
    for (const UnitLine& line : gpu->recipe().table()) {
        const bool router = line.name.ends_with(".gate");
        EXPECT_THAT(line.forward, HasSubstr(router ? ", frozen" : "frozen + rank 8")) << line.name;
        EXPECT_THAT(line.weight_gradient, HasSubstr(router ? "none" : "rank 8 in BF16")) << line.name;
    }
    EXPECT_EQ(gpu->recipe().table().size(), adapters_on_cpu(base_, lora_of(), pool_)->recipe().table().size());
}

INSTANTIATE_TEST_SUITE_P(
    Bases, CudaLora,
    testing::Values(
        LoraBase{"bf16", "bf16"}, LoraBase{"nvfp4", "nvfp4_w4a16"}, LoraBase{"fp8_block", "fp8_block", "llama", true},
        LoraBase{"mxfp8", "mxfp8", "llama", true}, LoraBase{"qwen2", "bf16", "qwen2"},
        LoraBase{"qwen2_nvfp4", "nvfp4_w4a16", "qwen2"}, LoraBase{"qwen3_nvfp4", "nvfp4_w4a16", "qwen3"},
        LoraBase{"gemma3_nvfp4", "nvfp4_w4a16", "gemma3_text"}, LoraBase{"mixtral", "bf16", "mixtral"},
        LoraBase{"mixtral_nvfp4", "nvfp4_w4a16", "mixtral"},
        LoraBase{"mixtral_fp8_block", "fp8_block", "mixtral", true}, LoraBase{"qwen3_moe", "bf16", "qwen3_moe"},
        LoraBase{"qwen3_moe_nvfp4", "nvfp4_w4a16", "qwen3_moe"}, LoraBase{"deepseek", "bf16", "deepseek_v3"},
        LoraBase{"deepseek_nvfp4", "nvfp4_w4a16", "deepseek_v3"}, LoraBase{"nemotron", "bf16", "nemotron_h"},
        LoraBase{"nemotron_nvfp4", "nvfp4_w4a16", "nemotron_h"}),
    [](const auto& info) { return std::string(info.param.name); });

// Targets are some linears of a unit, with or without its last one, and none of another unit.
void expect_others_stay(const LoraBase& b, const std::vector<std::vector<std::string>>& targets_of, int64_t linears) {
    ThreadPool pool;
    const LoraFolder folder(fmt::format("targets-{}", b.name));
    const auto base = stored_base(b, folder.path / "base", false, pool);
    ASSERT_TRUE(base);
    for (const std::vector<std::string>& targets : targets_of) {
        const auto gpu = adapters_on_gpu(base, lora_of(targets), {}, pool);
        const auto cpu = adapters_on_cpu(base, lora_of(targets), pool);
        ASSERT_TRUE(gpu && cpu);
        TrainEngine* const other = gpu.get();
        stir_all(*cpu, {&other, 1}, folder.path / "state.safetensors");
        const TrainBatch batch = random_batch(lora_rows, recipe_seq, recipe_vocab, 3);
        std::vector<std::vector<float>> got;
        const auto step = gpu->backward({&batch, 1}, got);
        ASSERT_TRUE(step.ok()) << step.error().message();
        const auto want = cpu->backward({&batch, 1});
        ASSERT_TRUE(want.ok());
        EXPECT_NEAR(step->loss, want->loss, 2e-3 * want->loss);
        ASSERT_EQ(std::ssize(got), 2 * 2 * linears * std::ssize(targets));
        for (size_t id = 0; id < got.size(); ++id) {
            const auto w = cpu->gradients().gradient(id);
            if (w.empty()) continue;
            EXPECT_LT(apart(got[id], w).relative, 2e-2) << gpu->parameters().tensors()[id].name;
        }
        const auto check = check_forward(*gpu, batch);
        ASSERT_TRUE(check.ok()) << check.error().message();
        EXPECT_EQ(check->mismatches(), 0);
    }
}

TEST(CudaLoraTargets, OthersStayAsTheyAre) {
    expect_others_stay({"nvfp4", "nvfp4_w4a16"}, {{"q_proj", "v_proj"}, {"k_proj", "up_proj", "o_proj"}}, 1);
}

// Targets are one of two linears that read an expert's rows, linears after them, or no linear of experts.
TEST(CudaLoraTargets, OthersOfExpertsStayAsTheyAre) {
    const LoraBase base{"qwen3_moe_nvfp4", "nvfp4_w4a16", "qwen3_moe"};
    expect_others_stay(base, {{"up_proj"}, {"down_proj"}, {"up_proj", "down_proj"}}, 16);
    expect_others_stay(base, {{"q_proj", "o_proj"}}, 1);
}

TEST(CudaLoraTeacher, DistillsTheModelThatWasRounded) {
    ThreadPool pool;
    const LoraFolder folder("teacher");
    const auto teacher = stored_base({"bf16", "bf16"}, folder.path / "teacher", false, pool);
    const auto base = stored_base({"nvfp4", "nvfp4_w4a16"}, folder.path / "base", false, pool);
    ASSERT_TRUE(teacher && base);
    const auto made = DeviceTrainer::create_adapters(
        base, {.train = lora_of(), .device = recipe_device(), .rows = lora_rows, .seq = recipe_seq, .teacher = teacher},
        pool);
    ASSERT_TRUE(made.ok()) << made.error().message();
    const TrainBatch batch = random_batch(lora_rows, recipe_seq, recipe_vocab, 4);
    double first = 0, last = 0;
    for (int i = 0; i < 30; ++i) {
        const auto step = (*made)->step({&batch, 1}, 2e-3);
        ASSERT_TRUE(step.ok()) << step.error().message();
        if (i == 0) first = step->loss;
        last = step->loss;
    }
    EXPECT_GT(first, 0);
    EXPECT_LT(last, 0.8 * first);
}

// Compares the kernel with the formula, for rows with a stride.
TEST(CudaLoraTerm, RoundsLikeTheCpu) {
    const auto device = open_device(recipe_device());
    ASSERT_TRUE(device.ok()) << device.error().message();
    const auto stream = Stream::create(device->index);
    ASSERT_TRUE(stream.ok());
    constexpr int64_t n = 37, cols = 24, stride = 56;
    constexpr float scale = 2.3f;
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::vector<float> y(n * stride), more(n * cols);
    for (float& v : y) v = normal(random);
    for (float& v : more) v = normal(random);
    std::vector<float> want = y;
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < cols; ++j) {
            float& to = want[static_cast<size_t>(i * stride + j)];
            const float term = round_to_bf16(more[static_cast<size_t>(i * cols + j)]);
            to = round_to_bf16(round_to_bf16(to) + round_to_bf16(scale * term));
        }
    auto arena = DeviceArena::create(device->index, 1 << 20);
    ASSERT_TRUE(arena.ok());
    const auto put = [&](const std::vector<float>& v) {
        const auto at = arena->allocate_array<float>(std::ssize(v));
        EXPECT_TRUE(at.ok());
        EXPECT_TRUE(copy_to_device(reinterpret_cast<std::byte*>(*at), reinterpret_cast<const std::byte*>(v.data()),
                                   4 * std::ssize(v), *stream)
                        .ok());
        return *at;
    };
    float* const to = put(y);
    const float* const from = put(more);
    ASSERT_TRUE(cuda::add_scaled_rows(to, stride, from, scale, n, cols, *stream).ok());
    ASSERT_TRUE(copy_to_host(reinterpret_cast<std::byte*>(y.data()), reinterpret_cast<const std::byte*>(to),
                             4 * std::ssize(y), *stream)
                    .ok());
    ASSERT_TRUE(stream->synchronize().ok());
    EXPECT_TRUE(y == want);
}

// B of units in which some parts have adapters: converted from narrow to wide and back.
TEST(CudaLoraTerm, BlocksLieOnTheDiagonal) {
    const auto device = open_device(recipe_device());
    ASSERT_TRUE(device.ok()) << device.error().message();
    const auto stream = Stream::create(device->index);
    ASSERT_TRUE(stream.ok());
    auto arena = DeviceArena::create(device->index, 1 << 22);
    ASSERT_TRUE(arena.ok());
    for (const int64_t experts : {1, 5}) {
        const cuda::AdapterBlocks b{
            .experts = experts, .rows = 100, .rank = 8, .parts = 3, .part = {{0, 24}, {40, 8}, {60, 40}}};
        std::vector<uint16_t> narrow(static_cast<size_t>(experts * b.narrow_rows() * b.rank));
        for (size_t i = 0; i < narrow.size(); ++i) narrow[i] = bf16_from_float(static_cast<float>(i % 255 + 1));
        std::vector<float> wide(static_cast<size_t>(experts * b.rows * b.width())), back(narrow.size());
        size_t next = 0;
        for (int64_t e = 0; e < experts; ++e)
            for (int p = 0; p < b.parts; ++p)
                for (int64_t row = 0; row < b.part[p].rows; ++row)
                    for (int64_t r = 0; r < b.rank; ++r)
                        wide[static_cast<size_t>((e * b.rows + b.part[p].first + row) * b.width() + p * b.rank + r)] =
                            bf16_to_float(narrow[next++]);
        arena->release(0);
        const auto from = arena->allocate(2 * std::ssize(narrow)), spread = arena->allocate(2 * std::ssize(wide)),
                   sums = arena->allocate(4 * std::ssize(wide)), to = arena->allocate(4 * std::ssize(back));
        ASSERT_TRUE(from.ok() && spread.ok() && sums.ok() && to.ok());
        const auto bytes = [](auto& v) { return reinterpret_cast<std::byte*>(v.data()); };
        std::vector<uint16_t> got(wide.size());
        ASSERT_TRUE(copy_to_device(*from, bytes(narrow), 2 * std::ssize(narrow), *stream).ok());
        ASSERT_TRUE(fill_device(*spread, 0xFF, 2 * std::ssize(wide), *stream).ok());
        ASSERT_TRUE(cuda::spread_blocks(b, *from, *spread, *stream).ok());
        ASSERT_TRUE(copy_to_host(bytes(got), *spread, 2 * std::ssize(got), *stream).ok());
        ASSERT_TRUE(copy_to_device(*sums, bytes(wide), 4 * std::ssize(wide), *stream).ok());
        ASSERT_TRUE(
            cuda::gather_blocks(b, reinterpret_cast<const float*>(*sums), 0.5f, reinterpret_cast<float*>(*to), *stream)
                .ok());
        ASSERT_TRUE(copy_to_host(bytes(back), *to, 4 * std::ssize(back), *stream).ok());
        ASSERT_TRUE(stream->synchronize().ok());
        for (size_t i = 0; i < wide.size(); ++i) ASSERT_EQ(bf16_to_float(got[i]), wide[i]) << i;
        for (size_t i = 0; i < back.size(); ++i) ASSERT_EQ(back[i], 0.5f * bf16_to_float(narrow[i])) << i;
    }
}

TEST(CudaLoraRefusals, NameUnsupportedOptions) {
    ThreadPool pool;
    const auto refused = [&](const Json& config, TrainerOptions options) {
        const auto parameters = random_start(config, DType::bf16, 7, pool);
        EXPECT_TRUE(parameters.ok()) << parameters.error().message();
        const auto made = DeviceTrainer::create_adapters(
            *parameters, {.train = std::move(options), .device = recipe_device(), .rows = 2, .seq = recipe_seq}, pool);
        return made.ok() ? std::string() : made.error().message();
    };
    TrainerOptions narrow = lora_of();
    narrow.lora.rank = 4;
    EXPECT_THAT(refused(recipe_model(), narrow), HasSubstr("lora.rank: 4; --device cuda needs a multiple of 8"));
    EXPECT_THAT(refused(recipe_model(), lora_of({"q_proj", "nothing"})), HasSubstr("named 'nothing'"));
    TrainerOptions exact = lora_of();
    exact.precision = recipe_of(TrainRecipe::fp32);
    EXPECT_THAT(refused(recipe_model(), exact), HasSubstr("does not train in fp32"));
    const auto parameters = random_start(recipe_model(), DType::bf16, 7, pool);
    ASSERT_TRUE(parameters.ok());
    const auto shared = DeviceTrainer::create_adapters(
        *parameters,
        {.train = lora_of(), .device = recipe_device(), .rows = 2, .seq = recipe_seq, .sharding = Sharding::all}, pool);
    ASSERT_FALSE(shared.ok());
    EXPECT_THAT(shared.error().message(), HasSubstr("every GPU has all frozen weights of an adapter run"));
}

}  // namespace
}  // namespace nibble::test
