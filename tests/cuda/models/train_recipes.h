// The recipes and the model of GPU training tests.
#pragma once

#include "base/json.h"
#include "tensor/device.h"
#include "train/train_precision.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

namespace nibble::test {

inline constexpr int64_t recipe_seq = 96, recipe_vocab = 1000;

inline Json recipe_model() {
    return {{"architectures", {"LlamaForCausalLM"}},
            {"model_type", "llama"},
            {"hidden_size", 256},
            {"num_hidden_layers", 2},
            {"num_attention_heads", 4},
            {"num_key_value_heads", 2},
            {"head_dim", 64},
            {"intermediate_size", 384},
            {"vocab_size", recipe_vocab},
            {"rms_norm_eps", 1e-5},
            {"rope_theta", 10000.0},
            {"tie_word_embeddings", false},
            {"max_position_embeddings", 8192},
            {"hidden_act", "silu"}};
}

inline DeviceChoice recipe_device() {
    const char* name = std::getenv("NIBBLE_DEVICE");
    const auto choice = parse_device(name ? name : "cuda");
    return choice.ok() && choice->cuda ? *choice : DeviceChoice{.cuda = true};
}

struct Trained {
    const char* name;
    TrainPrecision precision;
    bool promised = false;  // served bits are guaranteed
};
inline void PrintTo(const Trained& t, std::ostream* out) { *out << t.name; }

inline TrainPrecision recipe_of(TrainRecipe recipe) { return {.recipe = recipe}; }
inline TrainPrecision named(const char* name) {
    const auto precision = train_precision_from_name(name);
    EXPECT_TRUE(precision.ok()) << name;
    return precision.ok() ? *precision : TrainPrecision{};
}
inline TrainPrecision nv_switched(bool rotate, bool stochastic, bool square, bool four_over_six, bool row_scaled) {
    return {.recipe = TrainRecipe::nvfp4,
            .rotate = rotate,
            .stochastic = stochastic,
            .square = square,
            .four_over_six = four_over_six,
            .row_scaled = row_scaled};
}

inline std::vector<Trained> trained_recipes() {
    return {
        Trained{"nvfp4", recipe_of(TrainRecipe::nvfp4)},
        Trained{"nvfp4_no_rht", nv_switched(false, true, true, false, false)},
        Trained{"nvfp4_nearest", nv_switched(true, false, true, false, false)},
        Trained{"nvfp4_four_over_six", nv_switched(true, true, false, true, false)},
        Trained{"nvfp4_row_scaled", nv_switched(true, true, true, false, true), true},
        Trained{"nvfp4_mlp", {.recipe = TrainRecipe::nvfp4, .scope = TrainScope::mlp, .last_bf16 = 1}},
        Trained{"nvfp4_w4a16", named("nvfp4_w4a16"), true},
        Trained{"nvfp4_w4a16_rows",
                {.recipe = TrainRecipe::nvfp4, .square = false, .four_over_six = true, .weights_only = true},
                true},
        Trained{"nvfp4_w4a4", named("nvfp4_w4a4"), true},
        Trained{"nvfp4_w4a4_of_3", {.recipe = TrainRecipe::nvfp4, .stored_inputs = true, .amax_history = 3}, true},
        Trained{"mxfp8", recipe_of(TrainRecipe::mxfp8), true},
        Trained{"fp8", recipe_of(TrainRecipe::fp8)},
        Trained{"fp8_delayed", recipe_of(TrainRecipe::fp8_delayed), true},
        Trained{"fp8_delayed_of_3", {.recipe = TrainRecipe::fp8_delayed, .amax_history = 3}, true},
        Trained{"fp8_late_fp8_block", {.recipe = TrainRecipe::fp8, .late_forward = TrainRecipe::fp8_block}},
        Trained{"fp8_emulated", {.recipe = TrainRecipe::fp8, .emulate = true}},
        Trained{"fp8_delayed_emulated", {.recipe = TrainRecipe::fp8_delayed, .emulate = true}, true},
        Trained{"fp8_block_emulated", {.recipe = TrainRecipe::fp8_block, .emulate = true}, true},
        Trained{"fp8_block", recipe_of(TrainRecipe::fp8_block), true},
        Trained{"fp8_block_2n", {.recipe = TrainRecipe::fp8_block, .power_of_two = true}, true},
        Trained{"nvfp4_late_fp8_block", {.recipe = TrainRecipe::nvfp4, .late_forward = TrainRecipe::fp8_block}},
        Trained{"nibble_nvfp4", named("nibble_nvfp4")},
        Trained{"nibble_nvfp4_late", named("nibble_nvfp4_late")},
        Trained{"nibble_nvfp4_row_scaled", {.recipe = TrainRecipe::nibble_nvfp4, .row_scaled = true, .rank = 5}, true},
        Trained{"nibble_nvfp4_no_rank", {.recipe = TrainRecipe::nibble_nvfp4, .rank = 0}},
        Trained{"nibble_nvfp4_no_eden", {.recipe = TrainRecipe::nibble_nvfp4, .eden = false, .attention_fp8 = false}},
        Trained{"nvfp4_forward", {.recipe = TrainRecipe::nvfp4, .passes = TrainPasses::forward}},
        Trained{"nvfp4_backward", {.recipe = TrainRecipe::nvfp4, .passes = TrainPasses::backward}, true},
        Trained{"fp8_block_forward", {.recipe = TrainRecipe::fp8_block, .passes = TrainPasses::forward}, true},
        Trained{"fp8_backward", {.recipe = TrainRecipe::fp8, .passes = TrainPasses::backward}, true},
        Trained{"nibble_nvfp4_forward", {.recipe = TrainRecipe::nibble_nvfp4, .passes = TrainPasses::forward}},
        Trained{"nibble_nvfp4_backward", {.recipe = TrainRecipe::nibble_nvfp4, .passes = TrainPasses::backward}, true},
        Trained{"fp8_late_bf16", {.recipe = TrainRecipe::fp8, .late_forward = TrainRecipe::bf16}}};
}

}  // namespace nibble::test
