#include "quant/recipe_guide.h"

#include <gtest/gtest.h>

#include <algorithm>

using namespace nibble;

TEST(RecipeGuide, ListsEveryPresetOnce) {
    const auto guides = recipe_guide();
    ASSERT_TRUE(guides.ok()) << guides.error().message();
    std::vector<std::string> names;
    for (const RecipeGuide& guide : *guides) names.push_back(guide.name);
    std::ranges::sort(names);
    std::vector<std::string> presets = preset_names();
    std::ranges::sort(presets);
    EXPECT_EQ(names, presets);
}

TEST(RecipeGuide, DerivesFormatsAndNeedsFromTheRecipe) {
    const auto guides = recipe_guide();
    ASSERT_TRUE(guides.ok());
    const auto guide = [&](std::string_view name) { return *std::ranges::find(*guides, name, &RecipeGuide::name); };
    EXPECT_EQ(guide("nvfp4").weights, Format::nvfp4);
    EXPECT_EQ(guide("nvfp4").inputs, ActivationFormat::nvfp4);
    EXPECT_NEAR(guide("nvfp4").bits, 4.5, 1e-5);
    EXPECT_TRUE(guide("nvfp4").needs_text);
    EXPECT_FALSE(guide("nvfp4").learns) << "--weights-only works";
    EXPECT_TRUE(guide("nvfp4_gptq").learns);
    EXPECT_TRUE(guide("nvfp4_awq_lite").learns);
    EXPECT_TRUE(guide("w4a16_nvfp4_nibble_best").learns);
    EXPECT_FALSE(guide("w4a16_nvfp4").needs_text);
    EXPECT_EQ(guide("w4a16_nvfp4").inputs, ActivationFormat::none);
    EXPECT_FALSE(guide("fp8_per_channel_per_token").needs_text) << "scales of tokens are made while it runs";
    EXPECT_TRUE(guide("fp8").needs_text);
    EXPECT_EQ(guide("mamba_moe_fp8_aggressive").weights, Format::fp8);
    EXPECT_NEAR(guide("mxfp8").bits, 8.25, 1e-5);
}

TEST(RecipeNames, AreAcceptedInModelOptimizersSpellings) {
    EXPECT_EQ(preset_of_spelling("NVFP4_DEFAULT_CFG"), "nvfp4");
    EXPECT_EQ(preset_of_spelling("nvfp4_default_cfg"), "nvfp4");
    EXPECT_EQ(preset_of_spelling("Nvfp4"), "nvfp4");
    EXPECT_EQ(preset_of_spelling("MXFP8_DEFAULT_CFG"), "mxfp8");
    EXPECT_EQ(preset_of_spelling("FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG"), "fp8_2d_blockwise_weight_only");
    EXPECT_EQ(preset_of_spelling("MAMBA_MOE_NVFP4_CONSERVATIVE_CFG"), "mamba_moe_nvfp4_conservative");
    EXPECT_EQ(preset_of_spelling("INT8_SMOOTHQUANT_CFG"), "INT8_SMOOTHQUANT_CFG");
    const auto recipe = load_recipe("NVFP4_DEFAULT_CFG"), preset = load_recipe("nvfp4");
    ASSERT_TRUE(recipe.ok() && preset.ok());
    EXPECT_EQ(recipe->rules.size(), preset->rules.size());
}

TEST(RecipeNames, MisspelledOnesNameTheNearest) {
    const auto message = [](std::string_view name) { return check_recipe_name(name).error().message(); };
    EXPECT_EQ(message("nvfp5"), "no recipe 'nvfp5'; did you mean 'nvfp4'? (`nibble recipes` lists them)");
    EXPECT_EQ(message("frobnicate"), "no recipe 'frobnicate' (`nibble recipes` lists them)");
    EXPECT_EQ(message("./nowhere.yaml"), "no recipe './nowhere.yaml': neither a file nor a built-in recipe");
    EXPECT_TRUE(check_recipe_name("general/ptq/nvfp4_default-kv_fp8").ok());
    EXPECT_TRUE(check_recipe_name("w4a16_NVFP4").ok());
}
