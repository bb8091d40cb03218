// Compares the log-probabilities of a served export in training's own codes with the training forward pass.
#pragma once

#include "checkpoint/convert.h"
#include "cuda/models/train_recipes.h"
#include "train/check_forward.h"
#include "train/device/device_trainer.h"
#include "train/small_trainer.h"
#include "train/trained_codes.h"

#include <unistd.h>

#include <filesystem>

namespace nibble::test {

// A temporary folder.
struct ExportFolder {
    std::filesystem::path path =
        std::filesystem::path(testing::TempDir()) / fmt::format("nibble-export-{}", ::getpid());
    ExportFolder() {
        std::filesystem::remove_all(path);
        std::filesystem::create_directories(path);
    }
    ~ExportFolder() { std::filesystem::remove_all(path); }
    std::filesystem::path operator/(const char* name) const { return path / name; }
};

// Checks an export after three steps. same_bits: no log-probability may differ.
inline void expect_the_export_is_served(DeviceTrainer& trainer, bool same_bits) {
    ThreadPool pool;
    const ExportFolder folder;
    const TrainBatch batch = random_batch(4, recipe_seq, recipe_vocab, 6);
    for (int64_t s = 0; s < 3; ++s) {
        trainer.begin(s, 3);
        const auto step = trainer.step({&batch, 1}, 0.01);
        ASSERT_TRUE(step.ok()) << step.error().message();
    }
    const auto codes = trainer.trained_codes(3);
    ASSERT_TRUE(codes.ok()) << codes.error().message();
    const auto report = convert(**codes, {.to = (*codes)->target(), .out = folder / "out"}, pool, {});
    ASSERT_TRUE(report.ok()) << report.error().message();
    auto read = Checkpoint::open(folder / "out");
    ASSERT_TRUE(read.ok()) << read.error().message();
    const auto engine = DeviceModel::load(*std::move(read), {}, recipe_device(), pool);
    ASSERT_TRUE(engine.ok()) << engine.error().message();
    const TrainBatch other = random_batch(4, recipe_seq, recipe_vocab, 2);
    const auto check = check_forward(trainer, other, **engine);
    ASSERT_TRUE(check.ok()) << check.error().message();
    for (const ForwardWay& way : check->ways) {
        EXPECT_GT(way.labels, 100);
        if (same_bits) {
            EXPECT_EQ(way.mismatches, 0) << way.name << ", up to " << way.apart;
        }
        EXPECT_LT(way.apart, 1.0) << way.name;
    }
    // The parameters rounded to BF16 are another model.
    const auto plain = trainer.trained();
    ASSERT_TRUE(plain.ok());
    const auto unrounded = DeviceModel::load(*plain, {}, recipe_device(), pool);
    ASSERT_TRUE(unrounded.ok()) << unrounded.error().message();
    const auto apart = check_forward(trainer, other, **unrounded);
    ASSERT_TRUE(apart.ok());
    EXPECT_GT(apart->mismatches(), 100);
}

}  // namespace nibble::test
