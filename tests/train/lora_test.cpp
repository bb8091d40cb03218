// Tests low-rank adapters: the forward pass by hand, gradients against finite differences, frozen weights in every
// stored form, and exports.
#include "train/small_trainer.h"

#include "checkpoint/convert.h"
#include "io/safetensors.h"
#include "model/loss.h"
#include "run/checkpoints.h"
#include "support/files.h"
#include "train/check_forward.h"
#include "train/lora.h"
#include "train/lora_export.h"
#include "train/trained_codes.h"

#include <gmock/gmock.h>

#include <cmath>

namespace nibble::test {
namespace {

using testing::HasSubstr;

Json lora_llama() {
    Json config = small_llama();
    config["hidden_size"] = 128;
    config["intermediate_size"] = 256;
    config["num_hidden_layers"] = 2;
    config["head_dim"] = 64;
    return config;
}

TrainerOptions lora_options(TrainRecipe recipe = TrainRecipe::bf16) {
    TrainerOptions options{.precision = {.recipe = recipe}, .lora = {.rank = 4, .alpha = 8}};
    options.optimizer.weight_decay = 0;
    return options;
}

std::unique_ptr<Trainer> adapters_over(std::shared_ptr<const Checkpoint> base, const TrainerOptions& options,
                                       ThreadPool& pool) {
    auto made = Trainer::create_adapters(std::move(base), options, pool);
    EXPECT_TRUE(made.ok()) << made.error().message();
    return made.ok() ? *std::move(made) : nullptr;
}

// Adds random numbers, because B is zero at the start and hides errors in A.
void stir(Trainer& trainer) {
    std::mt19937 random(4);
    for (size_t id = 0; id < trainer.parameters().count(); ++id)
        for (float& w : trainer.parameters().master(id)) w += 0.02f * (static_cast<float>(random() % 201) / 100 - 1);
    ASSERT_TRUE(trainer.renew().ok());
}

void train_steps(Trainer& trainer, uint32_t first, uint32_t last) {
    for (uint32_t i = first; i < last; ++i) {
        const TrainBatch batch = random_batch(2, 24, 48, i);
        const auto step = trainer.step({&batch, 1}, 1e-2);
        ASSERT_TRUE(step.ok()) << step.error().message();
    }
}

// Writes a checkpoint whose linears are stored in the format that `recipe` trains.
std::shared_ptr<const Checkpoint> stored_base(const std::string& recipe, const std::filesystem::path& out,
                                              ThreadPool& pool) {
    auto parameters = small_parameters(pool, DType::bf16, lora_llama());
    const auto trainer = Trainer::create(parameters, {.precision = *train_precision_from_name(recipe)}, pool);
    EXPECT_TRUE(trainer.ok()) << trainer.error().message();
    const auto codes = (*trainer)->trained_codes(1);
    EXPECT_TRUE(codes.ok()) << codes.error().message();
    const auto report = convert(**codes, {.to = (*codes)->target(), .out = out}, pool, {});
    EXPECT_TRUE(report.ok()) << report.error().message();
    auto read = Checkpoint::open(out);
    EXPECT_TRUE(read.ok()) << read.error().message();
    return read.ok() ? *std::move(read) : nullptr;
}

TEST(Lora, AtTheStartTheModelIsItsBase) {
    ThreadPool pool(2);
    const auto base = small_checkpoint(lora_llama());
    const auto trainer = adapters_over(base, lora_options(), pool);
    const auto plain = Model::load(base, {}, pool);
    ASSERT_TRUE(plain.ok());
    const TrainBatch batch = random_batch(3, 40, 48, 2);
    const auto check = check_forward(*trainer, batch, *plain);
    ASSERT_TRUE(check.ok()) << check.error().message();
    EXPECT_EQ(check->mismatches(), 0);
    stir(*trainer);
    const auto own = check_forward(*trainer, batch);
    ASSERT_TRUE(own.ok()) << own.error().message();
    EXPECT_TRUE(own->promised);
    EXPECT_EQ(own->mismatches(), 0);
    EXPECT_GT(check_forward(*trainer, batch, *plain)->mismatches(), 50);
}

// y = x W^T + (alpha / rank) x A^T B^T equals the product with W + (alpha / rank) B A.
TEST(Lora, TheForwardIsThatOfTheMergedWeights) {
    ThreadPool pool(2);
    const auto base = small_checkpoint(lora_llama());
    const auto trainer = adapters_over(base, lora_options(TrainRecipe::fp32), pool);
    stir(*trainer);
    auto merged = small_parameters(pool, DType::f32, lora_llama());
    for (size_t id = 0; id < merged->count(); ++id) {
        const std::string& name = merged->tensors()[id].name;
        const auto a = trainer->parameters().id(name.substr(0, name.rfind('.')) + ".lora_A.weight");
        if (!a.ok()) continue;
        const auto b = *trainer->parameters().id(name.substr(0, name.rfind('.')) + ".lora_B.weight");
        const auto left = trainer->parameters().master(b), right = trainer->parameters().master(*a);
        const auto w = merged->master(id);
        const size_t cols = right.size() / 4;
        for (size_t i = 0; i < w.size(); ++i) {
            double sum = 0;
            for (size_t r = 0; r < 4; ++r) sum += double{left[i / cols * 4 + r]} * right[r * cols + i % cols];
            w[i] = static_cast<float>(w[i] + 2 * sum);
        }
    }
    merged->publish(pool);
    const auto whole = Trainer::create(merged, {.precision = {.recipe = TrainRecipe::fp32}}, pool);
    ASSERT_TRUE(whole.ok());
    const TrainBatch batch = random_batch(2, 30, 48, 5);
    std::vector<float> got(60), want(60);
    ASSERT_TRUE(trainer->log_probs(batch, got).ok());
    ASSERT_TRUE((*whole)->log_probs(batch, want).ok());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-4) << i;
}

TEST(Lora, GradientsAreFiniteDifferences) {
    ThreadPool pool(2);
    const auto trainer = adapters_over(small_checkpoint(lora_llama()), lora_options(TrainRecipe::fp32), pool);
    stir(*trainer);
    const TrainBatch batch = random_batch(2, 17, 48, 3);
    ASSERT_TRUE(trainer->backward({&batch, 1}).ok());
    Parameters& parameters = trainer->parameters();
    EXPECT_EQ(parameters.count(), 2u * 2 * 7);
    for (size_t id = 0; id < parameters.count(); ++id) {
        const auto gradient = trainer->gradients().gradient(id);
        const std::vector<float> direction(gradient.begin(), gradient.end());
        const std::vector<float> before(parameters.master(id).begin(), parameters.master(id).end());
        double norm = 0;
        for (const float g : direction) norm += double{g} * g;
        norm = std::sqrt(norm);
        ASSERT_GT(norm, 0) << parameters.tensors()[id].name;
        const double move = 2e-3;
        double sides[2];
        for (const int side : {0, 1}) {
            for (size_t i = 0; i < before.size(); ++i)
                parameters.master(id)[i] = before[i] + static_cast<float>((side ? -1 : 1) * move * direction[i] / norm);
            ASSERT_TRUE(trainer->renew().ok());
            sides[side] = *trainer->evaluate({&batch, 1});
        }
        std::ranges::copy(before, parameters.master(id).begin());
        ASSERT_TRUE(trainer->renew().ok());
        EXPECT_NEAR((sides[0] - sides[1]) / (2 * move), norm, 0.02 * norm + 1e-4) << parameters.tensors()[id].name;
    }
}

// Covers all kinds of base weights: unquantized, and codes of three formats, two of which quantize inputs.
TEST(Lora, TrainsOverWeightsAsTheyAreStored) {
    ThreadPool pool(2);
    TempDir dir;
    for (const char* recipe : {"bf16", "nvfp4", "mxfp8", "fp8_block"}) {
        std::shared_ptr<const Checkpoint> base;
        if (std::string(recipe) == "bf16")
            base = small_checkpoint(lora_llama());
        else
            base = stored_base(recipe, dir / recipe, pool);
        ASSERT_TRUE(base) << recipe;
        const bool on_disk = std::string(recipe) != "bf16";
        const auto bytes = [&] { return on_disk ? read_file(dir / recipe / "model.safetensors") : std::string(); };
        const std::string before = bytes();
        const auto trainer = adapters_over(base, lora_options(), pool);
        ASSERT_TRUE(trainer) << recipe;
        const TrainBatch batch = random_batch(2, 24, 48, 9);
        const double start = *trainer->evaluate({&batch, 1});
        for (int i = 0; i < 12; ++i) ASSERT_TRUE(trainer->step({&batch, 1}, 1e-2).ok());
        const double end = *trainer->evaluate({&batch, 1});
        EXPECT_LT(end, start - 0.5) << recipe;
        EXPECT_EQ(bytes(), before) << recipe;
        const auto check = check_forward(*trainer, batch);
        ASSERT_TRUE(check.ok()) << check.error().message();
        EXPECT_EQ(check->mismatches(), 0) << recipe;

        // The export is BF16 and has nearly the same loss.
        const auto merged = trainer->trained();
        ASSERT_TRUE(merged.ok());
        const auto out = dir / (std::string(recipe) + "-merged");
        const auto report = convert(**merged, {.out = out}, pool, {});
        ASSERT_TRUE(report.ok()) << report.error().message();
        auto read = Checkpoint::open(out);
        ASSERT_TRUE(read.ok()) << read.error().message();
        for (const CheckpointTensor& t : (*read)->tensors()) EXPECT_FALSE(t.quantized()) << t.name;
        auto parameters = Parameters::copy(**read, DType::bf16, pool);
        ASSERT_TRUE(parameters.ok()) << parameters.error().message();
        const auto as_exported = Trainer::create(*parameters, {}, pool);
        ASSERT_TRUE(as_exported.ok());
        const double exported = *(*as_exported)->evaluate({&batch, 1});
        // A reader of the export does not round inputs, although the base does.
        EXPECT_NEAR(exported, end, 0.1 + 0.05 * (start - end)) << recipe;
    }
}

TEST(Lora, ResumingGivesTheSameBits) {
    ThreadPool pool(2);
    TempDir dir;
    const auto base = stored_base("nvfp4", dir / "base", pool);
    const auto whole = adapters_over(base, lora_options(), pool), resumed = adapters_over(base, lora_options(), pool);
    train_steps(*whole, 0, 3);
    ASSERT_TRUE(write_state(dir / "a.safetensors", *copy_state(*whole, {.step = 3})).ok());
    const auto read = read_state(dir / "a.safetensors", {""}, *resumed);
    ASSERT_TRUE(read.ok()) << read.error().message();
    train_steps(*whole, 3, 6);
    train_steps(*resumed, 3, 6);
    EXPECT_EQ(all_masters(whole->parameters()), all_masters(resumed->parameters()));
}

TEST(Lora, WritesWhatPeftReads) {
    ThreadPool pool(2);
    TempDir dir;
    TrainerOptions options = lora_options();
    options.lora.targets = {"q_proj", "v_proj"};
    const auto trainer = adapters_over(small_checkpoint(lora_llama()), options, pool);
    train_steps(*trainer, 0, 2);
    ASSERT_TRUE(write_peft_adapter(dir / "adapter", trainer->parameters(), options.lora, "some/base").ok());
    const Json config = *parse_json(read_file(dir / "adapter" / "adapter_config.json"));
    EXPECT_EQ(config.at("peft_type"), "LORA");
    EXPECT_EQ(config.at("r"), 4);
    EXPECT_EQ(config.at("lora_alpha"), 8.0);
    EXPECT_EQ(config.at("target_modules"), Json({"q_proj", "v_proj"}));
    EXPECT_EQ(config.at("base_model_name_or_path"), "some/base");
    const auto file = SafetensorsFile::open(dir / "adapter" / "adapter_model.safetensors");
    ASSERT_TRUE(file.ok()) << file.error().message();
    EXPECT_EQ(file->tensors().size(), 2u * 2 * 2);
    const std::string name = "base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight";
    const auto found = std::ranges::find(file->tensors(), name, &TensorRecord::name);
    ASSERT_NE(found, file->tensors().end());
    EXPECT_EQ(found->dtype, DType::f32);
    EXPECT_EQ(found->shape[1], 4);
}

TEST(Lora, RefusesImpossibleConfigs) {
    ThreadPool pool(1);
    const auto refusal = [&](TrainLora lora) {
        const auto made = Trainer::create_adapters(small_checkpoint(lora_llama()), {.lora = std::move(lora)}, pool);
        return made.ok() ? std::string() : made.error().message();
    };
    EXPECT_THAT(refusal({.rank = 4, .alpha = 4, .targets = {"q_proj", "nothing"}}), HasSubstr("named 'nothing'"));
    EXPECT_THAT(refusal({.rank = 1000, .alpha = 4}), HasSubstr("lora.rank: 1000 is larger than"));
    const auto config = [](const std::string& more) {
        const auto made = parse_train_config("model: m\ndata: {synthetic: true}\n" + more, "c.yaml");
        if (!made.ok()) return made.error().message();
        const Status together = check(*made, "c.yaml");
        return together.ok() ? std::string("taken") : together.error().message();
    };
    EXPECT_EQ(config("lora: {rank: 8}"), "taken");
    EXPECT_THAT(config("lora: {rank: 8}\nprecision: nvfp4"), HasSubstr("cannot train adapters; use bf16 or fp32"));
    EXPECT_THAT(config("lora: {rank: 8}\nexport: {format: nvfp4}\noutput: o"),
                HasSubstr("adapters have no codes of training"));
    EXPECT_THAT(config("lora: {rank: 0}"), HasSubstr("rank"));
    EXPECT_THAT(config("lora: {rang: 8}"), HasSubstr("rang"));
    EXPECT_THAT(config("lora: {rank: 8}\nrandom_start: true"), HasSubstr("need a 'model' with weights"));
}

}  // namespace
}  // namespace nibble::test
