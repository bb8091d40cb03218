// Tests exports in training's own codes from a GPU trainer, and steps that are skipped as outliers.
#include "cuda/models/train_served_export.h"
#include "run/state.h"
#include "train/device/device_trainer.h"
#include "train/small_trainer.h"
#include "train/train_shapes.h"

#include <gmock/gmock.h>

namespace nibble::test {
namespace {

using testing::HasSubstr;

std::unique_ptr<DeviceTrainer> export_trainer(const TrainerOptions& options, ThreadPool& pool) {
    const auto parameters = random_start(recipe_model(), DType::bf16, 7, pool);
    EXPECT_TRUE(parameters.ok());
    auto made = DeviceTrainer::create(
        *parameters, {.train = options, .device = recipe_device(), .rows = 4, .seq = recipe_seq, .micro_batch = 2},
        pool);
    EXPECT_TRUE(made.ok()) << made.error().message();
    return made.ok() ? *std::move(made) : nullptr;
}

// A recipe, and whether the engine gives the bits of training with its export.
struct Exported {
    const char* recipe;
    Format format;
    bool same_bits = true;
};
void PrintTo(const Exported& e, std::ostream* out) { *out << e.recipe; }

class CudaExport : public testing::TestWithParam<Exported> {};

TEST_P(CudaExport, TheEngineServesTheBitsOfTheTrainingForward) {
    ThreadPool pool;
    const auto trainer = export_trainer({.precision = named(GetParam().recipe)}, pool);
    ASSERT_TRUE(trainer);
    expect_the_export_is_served(*trainer, GetParam().same_bits);
    const auto format = trainer->codes_format(3);
    ASSERT_TRUE(format.ok()) << format.error().message();
    EXPECT_EQ(*format, GetParam().format);
}

INSTANTIATE_TEST_SUITE_P(Recipes, CudaExport,
                         testing::Values(Exported{"fp8_block", Format::fp8_block128},
                                         Exported{"nibble_nvfp4_late", Format::fp8_block128},
                                         Exported{"mxfp8", Format::mxfp8},
                                         // Training multiplies BF16 values of the codes, the engine multiplies codes:
                                         // the orders of sums differ.
                                         Exported{"nvfp4_w4a16", Format::nvfp4, false},
                                         Exported{"nvfp4_w4a4", Format::nvfp4},
                                         Exported{"nvfp4", Format::nvfp4, false}),
                         [](const auto& info) { return std::string(info.param.recipe); });

TEST(CudaExportRefusals, NameWhatNoCheckpointCanStore) {
    ThreadPool pool;
    const auto refusal = [&](const char* recipe) {
        const auto trainer = export_trainer({.precision = named(recipe)}, pool);
        if (!trainer) return std::string();
        const auto format = trainer->codes_format(3);
        return format.ok() ? std::string() : format.error().message();
    };
    EXPECT_THAT(refusal("bf16"), HasSubstr("quantize nothing"));
    EXPECT_THAT(refusal("fp8"), HasSubstr("is E4M3 tensor in the forward product"));
    EXPECT_THAT(refusal("nibble_nvfp4"), HasSubstr("has a BF16 term of rank 16"));
}

TEST(CudaOutliers, ChangeNothingAndGoIntoCheckpoints) {
    ThreadPool pool;
    const ExportFolder folder;
    TrainerOptions options;
    options.optimizer.skip_above = 20;
    options.optimizer.skip_window = 3;
    const auto trainer = export_trainer(options, pool), resumed = export_trainer(options, pool);
    ASSERT_TRUE(trainer && resumed);
    trainer->begin(0, 8);
    const TrainBatch batch = random_batch(4, recipe_seq, recipe_vocab, 1);
    const auto scaled = [&](double by) {
        return [by](int64_t, std::span<const float> log_probs, std::span<float> slopes, double& loss) -> Status {
            for (size_t i = 0; i < slopes.size(); ++i)
                if (log_probs[i] != 0) slopes[i] = float(-by), loss -= by * double{log_probs[i]};
            return Ok{};
        };
    };
    const auto masters = [](DeviceTrainer& t) {
        auto state = t.state();
        EXPECT_TRUE(state.ok());
        return state.ok() ? state->masters : std::vector<std::vector<float>>();
    };
    for (int i = 0; i < 3; ++i) {
        const auto step = trainer->step({&batch, 1}, scaled(1e-3), 1e-3);
        ASSERT_TRUE(step.ok()) << step.error().message();
        EXPECT_FALSE(step->skipped);
    }
    const auto before = masters(*trainer);
    const auto outlier = trainer->step({&batch, 1}, scaled(0.1), 1e-3);
    ASSERT_TRUE(outlier.ok()) << outlier.error().message();
    EXPECT_TRUE(outlier->skipped && outlier->outlier);
    EXPECT_TRUE(masters(*trainer) == before);
    EXPECT_EQ(trainer->state()->optimizer_steps, 3);
    EXPECT_EQ(trainer->state()->norms.size(), 3u);
    const auto file = folder / "state.safetensors";
    auto state = copy_state(*trainer, {.step = 4});
    ASSERT_TRUE(state.ok() && write_state(file, *state).ok());
    const auto read = read_state(file, {""}, *resumed);
    ASSERT_TRUE(read.ok()) << read.error().message();
    trainer->begin(4, 8);
    resumed->begin(4, 8);
    for (const double by : {1e-3, 0.1}) {
        const auto a = trainer->step({&batch, 1}, scaled(by), 1e-3), b = resumed->step({&batch, 1}, scaled(by), 1e-3);
        ASSERT_TRUE(a.ok() && b.ok());
        EXPECT_EQ(a->outlier, by > 0.01);
        EXPECT_EQ(a->outlier, b->outlier);
    }
    EXPECT_FALSE(masters(*trainer) == before);
    EXPECT_TRUE(masters(*trainer) == masters(*resumed));
    EXPECT_EQ(trainer->state()->norms, resumed->state()->norms);
}

}  // namespace
}  // namespace nibble::test
