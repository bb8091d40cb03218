// Compares gradients of a whole model on a GPU with the CPU trainer. recipe_product_test.cpp compares single products
// with equal inputs. In a model inputs differ by the order of sums and by BF16 gradients of activations. A number that
// crosses the boundary between two 4-bit codes changes by a tenth. The tolerance is measured on the CPU: two trainers
// whose embeddings differ by half a unit in the last place of BF16.
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

// Runs two steps of `cpu`, so that scales and directions have a history. Then all three trainers are ready for the
// third step: `gpu` with the state of `cpu`, `moved` with the changed embedding.
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
