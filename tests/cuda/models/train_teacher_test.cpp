// Tests the distillation loss on a GPU: value and gradient against the CPU trainer, settings that must not change bits,
// and a quantized student that approaches its teacher.
#include "cuda/models/train_recipes.h"
#include "train/device/device_trainer.h"
#include "train/small_trainer.h"
#include "train/train_shapes.h"

#include <gmock/gmock.h>

#include <cmath>

namespace nibble::test {
namespace {

using testing::HasSubstr;

std::shared_ptr<Parameters> start_of_seed(uint64_t seed, ThreadPool& pool, const Json& config = recipe_model()) {
    auto made = random_start(config, DType::bf16, seed, pool);
    EXPECT_TRUE(made.ok());
    return *made;
}

// A model of another size with confident predictions.
std::shared_ptr<const Checkpoint> small_and_sure(ThreadPool& pool) {
    Json config = recipe_model();
    config["hidden_size"] = 128;
    config["num_hidden_layers"] = 1;
    const auto parameters = start_of_seed(11, pool, config);
    for (float& v : parameters->master(*parameters->id("lm_head.weight"))) v *= 8;
    parameters->publish(pool);
    return parameters;
}

Result<std::unique_ptr<DeviceTrainer>> taught(const std::shared_ptr<const Checkpoint>& teacher, float share,
                                              const TrainPrecision& precision, int64_t micro_batch, ThreadPool& pool) {
    TrainerOptions options{.precision = precision, .cross_entropy = share};
    options.optimizer.weight_decay = 0;
    return DeviceTrainer::create(start_of_seed(7, pool),
                                 {.train = options,
                                  .device = recipe_device(),
                                  .rows = 4,
                                  .seq = recipe_seq,
                                  .micro_batch = micro_batch,
                                  .teacher = teacher},
                                 pool);
}

double norm_of_difference(std::span<const float> a, std::span<const float> b) {
    double d = 0, size = 0;
    for (size_t i = 0; i < b.size(); ++i) {
        d += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
        size += double{b[i]} * b[i];
    }
    return std::sqrt(d / size);
}

TEST(CudaDistillation, LossAndGradientAgreeWithTheCpu) {
    ThreadPool pool;
    const auto teacher = small_and_sure(pool);
    auto on_host = Model::load(teacher, {}, pool);
    ASSERT_TRUE(on_host.ok()) << on_host.error().message();
    const auto model = std::make_shared<const Model>(*std::move(on_host));
    const TrainBatch batch = random_batch(4, recipe_seq, recipe_vocab, 3);
    std::vector<double> losses;
    for (const float share : {0.0f, 0.25f, 1.0f}) {
        const auto gpu = taught(teacher, share, {}, 1, pool);
        ASSERT_TRUE(gpu.ok()) << gpu.error().message();
        const auto cpu = Trainer::create(start_of_seed(7, pool), {.teacher = model, .cross_entropy = share}, pool);
        ASSERT_TRUE(cpu.ok()) << cpu.error().message();
        std::vector<std::vector<float>> got;
        const auto step = (*gpu)->backward({&batch, 1}, got);
        ASSERT_TRUE(step.ok()) << step.error().message();
        const auto want = (*cpu)->backward({&batch, 1});
        ASSERT_TRUE(want.ok()) << want.error().message();
        EXPECT_NEAR(step->loss, want->loss, 2e-3 * want->loss) << share;
        EXPECT_NEAR(step->gradient_norm, want->gradient_norm, 5e-3 * want->gradient_norm) << share;
        EXPECT_EQ(step->weight, want->weight);
        for (size_t id = 0; id < got.size(); ++id)
            EXPECT_LT(norm_of_difference(got[id], (*cpu)->gradients().gradient(id)), 2e-2)
                << (*gpu)->parameters().tensors()[id].name << ", share " << share;
        losses.push_back(step->loss);
    }
    EXPECT_NEAR(losses[1], 0.75 * losses[0] + 0.25 * losses[2], 1e-5 * losses[1]);
    EXPECT_GT(std::abs(losses[0] - losses[2]), 0.1);
}

TEST(CudaDistillation, WithOnlyCrossEntropyItIsTheUsualStep) {
    ThreadPool pool;
    const TrainBatch batch = random_batch(4, recipe_seq, recipe_vocab, 8);
    const auto plain = taught(nullptr, 0, {}, 2, pool), with_teacher = taught(small_and_sure(pool), 1, {}, 2, pool);
    ASSERT_TRUE(plain.ok() && with_teacher.ok());
    std::vector<std::vector<float>> a, b;
    const auto x = (*plain)->backward({&batch, 1}, a), y = (*with_teacher)->backward({&batch, 1}, b);
    ASSERT_TRUE(x.ok() && y.ok());
    EXPECT_NEAR(x->loss, y->loss, 1e-6 * x->loss);
    for (size_t id = 0; id < a.size(); ++id) EXPECT_LT(norm_of_difference(b[id], a[id]), 1e-3);
    // Validation and objectives do not use the teacher.
    const auto e = (*plain)->evaluate({&batch, 1}), f = (*with_teacher)->evaluate({&batch, 1});
    ASSERT_TRUE(e.ok() && f.ok());
    EXPECT_EQ(*e, *f);
}

TEST(CudaDistillation, AnotherRunHasTheSameBits) {
    ThreadPool pool;
    const auto teacher = small_and_sure(pool);
    std::vector<std::vector<std::vector<float>>> masters;
    for (int run = 0; run < 2; ++run) {
        const auto trainer = taught(teacher, 0.1f, named("nvfp4"), 2, pool);
        ASSERT_TRUE(trainer.ok()) << trainer.error().message();
        (*trainer)->begin(0, 4);
        for (uint32_t i = 0; i < 4; ++i) {
            const TrainBatch batch = random_batch(4, recipe_seq, recipe_vocab, i);
            ASSERT_TRUE((*trainer)->step({&batch, 1}, 1e-3).ok());
        }
        masters.push_back((*trainer)->state()->masters);
    }
    EXPECT_TRUE(masters[0] == masters[1]);
}

TEST(CudaDistillation, AQuantizedStudentComesNearer) {
    ThreadPool pool;
    // The teacher has the student's own weights, so the remaining loss is the rounding error.
    const auto trainer = taught(start_of_seed(7, pool), 0, named("nvfp4"), 4, pool);
    ASSERT_TRUE(trainer.ok()) << trainer.error().message();
    const TrainBatch batch = random_batch(4, recipe_seq, recipe_vocab, 4);
    (*trainer)->begin(0, 40);
    std::vector<double> losses;
    for (int s = 0; s < 40; ++s) {
        const auto step = (*trainer)->step({&batch, 1}, 2e-3);
        ASSERT_TRUE(step.ok()) << step.error().message();
        losses.push_back(step->loss);
    }
    EXPECT_GT(losses.front(), 0);
    EXPECT_LT(losses.back(), 0.7 * losses.front());
}

TEST(CudaDistillation, AnotherVocabularyIsRefused) {
    ThreadPool pool;
    Json config = recipe_model();
    config["vocab_size"] = 1008;
    const auto made = taught(start_of_seed(5, pool, config), 0, {}, 1, pool);
    ASSERT_FALSE(made.ok());
    EXPECT_THAT(made.error().message(), HasSubstr("the teacher has a vocabulary of 1008, the model has 1000"));
}

}  // namespace
}  // namespace nibble::test
