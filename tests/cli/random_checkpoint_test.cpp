// Random checkpoints are whole models: every tensor that the config asks for, and no other.
#include "cli/random_checkpoint.h"

#include "model/model.h"

#include <gtest/gtest.h>

namespace nibble::test {
namespace {

TEST(RandomCheckpoint, EveryShapeIsAModel) {
    ThreadPool pool(1);
    for (const char* shape : {"smollm2-135m", "llama-8b", "qwen3-30b-a3b", "nemotron-3-nano"})
        for (const char* format : {"bf16", "nvfp4"}) {
            const auto checkpoint = random_checkpoint(shape, format, true, 0);
            ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
            const auto config = model_config(**checkpoint);
            ASSERT_TRUE(config.ok()) << shape << ": " << config.error().message();
            const auto parts = load_parts(*config, **checkpoint, {}, pool, WeightSource::Mode::check);
            EXPECT_TRUE(parts.ok()) << shape << " " << format << ": " << parts.error().message();
        }
}

TEST(RandomCheckpoint, AModelOfAFewLayersRuns) {
    ThreadPool pool(2);
    std::vector<float> last;
    for (const char* format : {"bf16", "nvfp4", "mxfp8"}) {
        auto checkpoint = random_checkpoint("smollm2-135m", format, true, 2);
        ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
        const auto model = Model::load(*std::move(checkpoint), {}, pool);
        ASSERT_TRUE(model.ok()) << model.error().message();
        const std::vector<int32_t> text{1, 40000, 7, 7};
        std::vector<float> logits(static_cast<size_t>(model->config().vocab));
        const Status status = model->forward(Batch({{nullptr, text, 3}}), logits);
        ASSERT_TRUE(status.ok()) << status.error().message();
        EXPECT_NE(logits, last);
        last = logits;
    }
}

TEST(RandomCheckpoint, WhatIsUnknownIsAnError) {
    const auto shape = random_checkpoint("gpt-5", "bf16", true, 0);
    ASSERT_FALSE(shape.ok());
    const auto format = random_checkpoint("llama-8b", "int3", true, 0);
    ASSERT_FALSE(format.ok());
    EXPECT_EQ(format.error().message(), "--format: unknown format 'int3'");
}

}  // namespace
}  // namespace nibble::test
