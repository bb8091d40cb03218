// Random checkpoints are complete models: they have exactly the tensors of the config.
#include "checkpoint/random_checkpoint.h"

#include "model/cpu/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace nibble::test {
namespace {

TEST(RandomCheckpoint, EveryShapeIsAModel) {
    ThreadPool pool(1);
    for (const char* shape :
         {"smollm2-135m", "llama-8b", "qwen3-8b", "qwen3-30b-a3b", "qwen3.5-35b-a3b", "qwen3.6-27b", "nemotron-3-nano"})
        for (const char* format : {"bf16", "nvfp4"}) {
            const auto checkpoint = random_checkpoint({.shape = shape, .format = format, .head = true});
            ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
            const auto config = model_config(**checkpoint);
            ASSERT_TRUE(config.ok()) << shape << ": " << config.error().message();
            const auto parts = load_parts(*config, **checkpoint, {}, pool, WeightSource::Mode::check);
            EXPECT_TRUE(parts.ok()) << shape << " " << format << ": " << parts.error().message();
        }
}

// A CPU reads whole matrices and a GPU's loader reads panels; both must get the same values.
TEST(RandomCheckpoint, RowsAreTheSameInAnyPiece) {
    for (const char* format : {"bf16", "nvfp4", "fp8_block128", "mxfp8"}) {
        const auto opened = random_checkpoint({.shape = "llama-8b", .format = format, .layers = 1});
        ASSERT_TRUE(opened.ok()) << opened.error().message();
        const Checkpoint& checkpoint = **opened;
        for (size_t index = 0; index < checkpoint.tensors().size(); ++index) {
            const CheckpointTensor& t = checkpoint.tensors()[index];
            if (t.shape.size() != 2 || t.rows() > 20000) continue;
            const int64_t first = t.rows() - 384, half = 128;  // a multiple of every block of rows
            SCOPED_TRACE(t.name + " " + format);
            if (t.quantized()) {
                QuantMatrix a, b;
                ASSERT_TRUE(checkpoint.read_quant(index, first, 384, a).ok());
                ASSERT_TRUE(checkpoint.read_quant(index, first + half, 256, b).ok());
                ASSERT_TRUE(std::ranges::equal(std::span(a.codes).last(b.codes.size()), b.codes));
                ASSERT_TRUE(std::ranges::equal(std::span(a.block_scales).last(b.block_scales.size()), b.block_scales));
                EXPECT_FALSE(std::ranges::equal(std::span(a.codes).first(b.codes.size()), b.codes));
            } else {
                Matrix a, b;
                const auto whole = checkpoint.read_plain(index, 0, t.rows(), a);
                const auto piece = checkpoint.read_plain(index, first, 384, b);
                ASSERT_TRUE(whole.ok() && piece.ok());
                const auto bytes = static_cast<size_t>(384 * t.cols() * 2);
                EXPECT_EQ(std::memcmp(whole->data + first * t.cols() * 2, piece->data, bytes), 0);
            }
        }
    }
}

TEST(RandomCheckpoint, AModelOfAFewLayersRuns) {
    ThreadPool pool(2);
    std::vector<float> last;
    for (const char* format : {"bf16", "nvfp4", "mxfp8"}) {
        auto checkpoint = random_checkpoint({.shape = "smollm2-135m", .format = format, .layers = 2, .vocab = 41000});
        ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
        const auto model = Model::load(*std::move(checkpoint), {}, pool);
        ASSERT_TRUE(model.ok()) << model.error().message();
        EXPECT_EQ(model->config().vocab, 41000);
        const std::vector<int32_t> text{1, 40000, 7, 7};
        std::vector<float> logits(static_cast<size_t>(model->config().vocab));
        const Status status = model->forward(Batch({{nullptr, text, 3}}), logits);
        ASSERT_TRUE(status.ok()) << status.error().message();
        EXPECT_NE(logits, last);
        last = logits;
    }
}

TEST(RandomCheckpoint, AHybridNeedsTheKeysOfItsOwnLayers) {
    Json config = {{"model_type", "nemotron_h"},
                   {"vocab_size", 100},
                   {"hidden_size", 64},
                   {"num_hidden_layers", 2},
                   {"layer_norm_epsilon", 1e-5},
                   {"max_position_embeddings", 512},
                   {"mlp_hidden_act", "relu2"},
                   {"intermediate_size", 96},
                   {"hybrid_override_pattern", "M-"},
                   {"mamba_num_heads", 4},
                   {"mamba_head_dim", 16},
                   {"n_groups", 2},
                   {"ssm_state_size", 16},
                   {"conv_kernel", 4}};
    const auto checkpoint = random_checkpoint(config);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
    const auto read = model_config(**checkpoint);
    ASSERT_TRUE(read.ok()) << read.error().message();
    ASSERT_EQ(read->blocks.size(), 2u);
    for (const char* key : {"moe_intermediate_size", "mamba_num_heads", "intermediate_size"}) {
        Json lacking = config;
        lacking[key] = nullptr;
        const auto lacks = random_checkpoint(lacking);
        ASSERT_FALSE(lacks.ok());
        EXPECT_NE(lacks.error().message().find(std::string("'") + key + "'"), std::string::npos);
    }
}

TEST(RandomCheckpoint, UnknownShapesAndFormatsAreErrors) {
    const auto shape = random_checkpoint(RandomModel{.shape = "gpt-5"});
    ASSERT_FALSE(shape.ok());
    const auto format = random_checkpoint({.shape = "llama-8b", .format = "int3"});
    ASSERT_FALSE(format.ok());
    EXPECT_EQ(format.error().message(), "--format: unknown format 'int3'");
}

}  // namespace
}  // namespace nibble::test
