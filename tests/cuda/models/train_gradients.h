// Gradients of a whole model on a GPU beside the CPU trainer's. Single products of equal inputs are compared by
// train_product_test.cpp; in a model inputs differ by the order of sums and by gradients of activations in BF16, and a
// number that crosses the border of two codes of four bits moves by a tenth of itself. How far that goes the CPU's
// trainer shows itself, where the embedding moves by half a unit in the last place of BF16.
#pragma once

#include "base/philox.h"
#include "cuda/models/train_recipes.h"
#include "run/state.h"
#include "train/small_trainer.h"

#include <cmath>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

namespace nibble::test {

struct Apart {
    double relative = 0, cosine = 1;
};
inline Apart apart(std::span<const float> got, std::span<const float> want) {
    double d = 0, ww = 0, gg = 0, gw = 0;
    for (size_t i = 0; i < want.size(); ++i) {
        const double a = got[i], b = want[i];
        d += (a - b) * (a - b), ww += b * b, gg += a * a, gw += a * b;
    }
    return {std::sqrt(d / ww), gw / std::sqrt(gg * ww)};
}

// Two steps of `cpu`, so that scales and directions have a history; then all three begin the third one, `gpu` where
// `cpu` is, `moved` with the other embedding.
inline void begin_third_step(Trainer& cpu, TrainEngine& gpu, TrainEngine& moved, const TrainBatch& batch,
                             double learning_rate, const std::string& name) {
    for (uint32_t i = 0; i < 2; ++i) {
        cpu.begin(i, 100);
        ASSERT_TRUE(cpu.step({&batch, 1}, learning_rate).ok());
    }
    const auto file = std::filesystem::path(testing::TempDir()) / ("nibble-" + name + ".safetensors");
    auto state = copy_state(cpu, {.step = 2});
    ASSERT_TRUE(state.ok());
    const auto hand_over = [&](TrainEngine& engine) {
        ASSERT_TRUE(write_state(file, *state).ok());
        const auto read = read_state(file, {""}, engine);
        std::filesystem::remove(file);
        ASSERT_TRUE(read.ok()) << read.error().message();
        engine.begin(2, 100);
    };
    hand_over(gpu);
    const auto embedding = cpu.parameters().id("model.embed_tokens.weight");
    ASSERT_TRUE(embedding.ok());
    uint64_t at = 0;
    for (float& v : state->masters[*embedding])
        v *= 1 + (PhiloxStream{1, 4}.block(at++).word[0] & 1 ? 0x1p-9f : -0x1p-9f);
    hand_over(moved);
    cpu.begin(2, 100);
}

}  // namespace nibble::test
