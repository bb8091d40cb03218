// Checks of every recipe on a GPU, for any model: the engine's bits if they are guaranteed, and equal bits after a
// checkpoint.
#pragma once

#include "cuda/models/train_recipes.h"
#include "run/state.h"
#include "train/check_forward.h"
#include "train/device/device_trainer.h"
#include "train/small_trainer.h"

#include <filesystem>
#include <string>
#include <vector>

namespace nibble::test {

inline std::vector<std::byte> all_state(TrainEngine& trainer) {
    const auto state = trainer.state();
    EXPECT_TRUE(state.ok());
    std::vector<std::byte> all;
    const auto add = [&](Bytes bytes) { all.insert(all.end(), bytes.begin(), bytes.end()); };
    for (const auto& values : state->masters) add(std::as_bytes(std::span(values)));
    for (const auto* part : {&state->m, &state->v})
        for (const StateNumbers& values : *part) add(bytes_of(values));
    add(std::as_bytes(std::span(state->recipe)));
    return all;
}

// Checks before and after a step.
inline void expect_the_engines_log_probs(DeviceTrainer& gpu, bool promised) {
    EXPECT_EQ(gpu.recipe().sees_neighbours(), !promised);
    for (uint32_t i = 0; i < 2; ++i) {
        const TrainBatch batch = random_batch(4, recipe_seq, recipe_vocab, 50 + i);
        const auto check = check_forward(gpu, batch);
        ASSERT_TRUE(check.ok()) << check.error().message();
        EXPECT_EQ(check->promised, promised);
        for (const ForwardWay& way : check->ways) {
            EXPECT_GT(way.labels, 0);
            if (promised) {
                EXPECT_EQ(way.mismatches, 0) << way.name << ", up to " << way.apart;
            }
        }
        ASSERT_TRUE(gpu.step({&batch, 1}, 1e-2).ok());
    }
}

// Runs five steps of `whole`, and repeats the last two with `resumed`, which has run another step before.
inline void expect_a_checkpoint_goes_on(DeviceTrainer& whole, DeviceTrainer& resumed, const std::string& name) {
    const auto file = std::filesystem::path(testing::TempDir()) / ("nibble-" + name + ".safetensors");
    const auto step = [&](TrainEngine& engine, uint32_t number) {
        const TrainBatch batch = random_batch(4, recipe_seq, recipe_vocab, number);
        engine.begin(number, 5);
        const auto made = engine.step({&batch, 1}, 1e-3);
        EXPECT_TRUE(made.ok()) << made.error().message();
        return made.ok() ? made->loss : 0;
    };
    for (uint32_t i = 0; i < 3; ++i) step(whole, i);
    auto state = copy_state(whole, {.step = 3});
    ASSERT_TRUE(state.ok()) << state.error().message();
    ASSERT_TRUE(write_state(file, *state).ok());
    step(resumed, 4);
    const auto read = read_state(file, {""}, resumed);
    std::filesystem::remove(file);
    ASSERT_TRUE(read.ok()) << read.error().message();
    for (uint32_t i = 3; i < 5; ++i) EXPECT_EQ(step(whole, i), step(resumed, i));
    EXPECT_TRUE(all_state(whole) == all_state(resumed));
}

}  // namespace nibble::test
