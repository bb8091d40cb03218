// Recipes that quantize every weight, applied to tensors that are not linears; recipes that would split a matrix that
// engines fuse.
#include "quant/models.h"
#include "quant/resolve.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace nibble {
namespace {

constexpr std::string_view everything =
    "quant_cfg:\n  - {quantizer_name: '*', enable: false}\n  - {quantizer_name: '*weight_quantizer', cfg: {num_bits: "
    "e2m1, block_sizes: {-1: 16, type: dynamic, scale_bits: e4m3}}}\n";

Result<Plan> plan_with(std::vector<CheckpointTensor> tensors, std::string_view rules, bool strict = false) {
    NIBBLE_TRY(const Recipe recipe, parse_recipe(std::string(rules), "r.yaml"));
    Json config;
    config["tie_word_embeddings"] = false;
    return resolve(recipe, tensors, config, {.strict = strict});
}

std::string without(std::string_view module) {
    return fmt::format("{}  - {{quantizer_name: '{}.*', enable: false}}\n", everything, module);
}

// ---- Tensors that are not linears ----------------------------------------------------------------------------------

enum class Fate { quantized, convolution, matrix, stack, silent };

struct Stranger {
    std::string name;
    std::vector<int64_t> shape;
    Fate fate;
};

void PrintTo(const Stranger& s, std::ostream* out) { *out << s.name; }

class NoLinears : public testing::TestWithParam<Stranger> {};

TEST_P(NoLinears, OtherMatricesAreKeptOrRefusedByKind) {
    const Stranger& s = GetParam();
    std::vector<CheckpointTensor> tensors;
    for (const char* layer : {"0", "1", "12"}) {
        std::string name = s.name;
        name.replace(name.find('#'), 1, layer);
        tensors.push_back(test::tensor(name, s.shape));
    }
    tensors.push_back(test::tensor("model.layers.0.mlp.down_proj.weight", {64, 64}));
    const auto plan = plan_with(tensors, everything, true);
    std::string kind = s.name.substr(0, s.name.find(".weight"));
    kind.replace(kind.find('#'), 1, "*");
    if (s.fate == Fate::stack) {
        ASSERT_FALSE(plan.ok());
        EXPECT_EQ(plan.error().message(),
                  fmt::format("rule 2 '*weight_quantizer' (r.yaml:3) quantizes what cannot be quantized: '{}' (3): "
                              "experts in one tensor. To keep it unquantized, add --ignore '{}'",
                              kind, kind));
        const auto left = plan_with(tensors, without(kind));
        ASSERT_TRUE(left.ok()) << left.error().message();
        EXPECT_TRUE(left->entries[0].listed_module);
        return;
    }
    ASSERT_TRUE(plan.ok()) << plan.error().message();
    for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(plan->entries[i].spec.format != Format::none, s.fate == Fate::quantized);
        EXPECT_EQ(plan->entries[i].listed_module, s.fate == Fate::matrix)
            << "a convolution whose quantizer is on is in no list, as in Model Optimizer";
    }
    std::vector<std::string> lines;
    if (s.fate == Fate::convolution)
        lines = {fmt::format("3 convolutions '{}' stay unquantized, as in Model Optimizer", kind)};
    if (s.fate == Fate::matrix)
        lines = {fmt::format(
            "1 kind of matrix is not known as a linear layer and stays BF16 (--linear quantizes it): '{}' (3)", kind)};
    EXPECT_EQ(plan->warnings, lines);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, NoLinears,
    testing::Values(
        // Names of convolutions in architectures of 2024 to 2026.
        Stranger{"model.layers.#.conv.conv.weight", {64, 1, 3}, Fate::convolution},             // LFM2
        Stranger{"model.layers.#.mamba.conv1d.weight", {128, 1, 4}, Fate::convolution},         // Jamba, Granite 4 H
        Stranger{"model.layers.#.self_attn.k_conv1d.weight", {64, 1, 4}, Fate::convolution},    // Kimi-Linear
        Stranger{"model.layers.#.linear_attn.conv1d.weight", {64, 1, 4}, Fate::convolution},    // Qwen3-Next
        Stranger{"model.layers.#.mixer.short_filter.weight", {64, 1, 128}, Fate::convolution},  // depth-wise, wide
        Stranger{"audio_tower.layers.#.subsample.weight", {64, 80, 3}, Fate::convolution},      // few taps
        Stranger{"audio_tower.layers.#.pos_conv_embed.conv.weight", {64, 4, 128}, Fate::convolution},
        Stranger{"visual.stages.#.patch_embed.proj.weight", {64, 3, 14, 14}, Fate::convolution},
        Stranger{"visual.stages.#.patch_embed.proj.weight", {64, 3, 2, 14, 14}, Fate::convolution},
        // Matrices of all experts in one tensor.
        Stranger{"model.layers.#.mlp.experts_w1.weight", {4, 96, 64}, Fate::stack},
        Stranger{"model.layers.#.moe.gate_proj.weight", {4, 96, 64}, Fate::stack},  // Step
        Stranger{"model.layers.#.moe.down_proj.weight", {4, 64, 16}, Fate::stack},
        Stranger{"model.layers.#.block_sparse_moe.input_linear.weight", {4, 96, 64}, Fate::stack},  // Granite
        Stranger{"model.layers.#.ffn.w_stack.weight", {4, 96, 64}, Fate::stack},
        Stranger{"model.layers.#.mlp.experts.gate_up_proj", {4, 96, 64}, Fate::stack},
        Stranger{"model.layers.#.mlp.experts_w13", {4, 96, 64}, Fate::stack},
        // Matrices with unusual names.
        Stranger{"model.layers.#.attn.W_q.weight", {64, 64}, Fate::matrix},
        Stranger{"model.layers.#.altup.coefs.weight", {4, 64}, Fate::matrix},
        Stranger{"model.layers.#.hc.mix.weight", {8, 60}, Fate::matrix},
        // Tensors that need no message.
        // DeepSeek V4: a product in groups
        Stranger{"model.layers.#.attn.wo_a.weight", {64, 64}, Fate::silent},
        Stranger{"model.layers.#.mixer.A_log", {64}, Fate::silent},
        Stranger{"model.layers.#.input_layernorm.weight", {64}, Fate::silent},
        Stranger{"model.layers.#.attn.bias_table", {64, 64}, Fate::silent},
        // Linears of Gemma 4 E, MiniMax-01 and DeepSeek V4.
        Stranger{"model.layers.#.per_layer_input_gate.weight", {64, 64}, Fate::quantized},
        Stranger{"model.layers.#.self_attn.output_gate.weight", {64, 64}, Fate::quantized},
        Stranger{"model.layers.#.attn.compressor.wgate.weight", {64, 64}, Fate::quantized}));

TEST(LeftAlone, EverythingThatCannotBeQuantizedIsInOneMessage) {
    std::vector<CheckpointTensor> tensors;
    for (int layer = 0; layer < 36; ++layer) {
        for (const char* p : {"gate", "up", "down"})
            tensors.push_back(test::tensor(fmt::format("model.layers.{}.moe.{}_proj.weight", layer, p), {4, 64, 64}));
        tensors.push_back(test::tensor(fmt::format("model.layers.{}.share_expert.down_proj.weight", layer), {64, 72}));
        tensors.push_back(test::tensor(fmt::format("model.layers.{}.self_attn.o_proj.weight", layer), {64, 64}));
    }
    const auto plan = plan_with(tensors, everything);
    ASSERT_FALSE(plan.ok());
    const std::string message = plan.error().message();
    std::string rules(everything);
    size_t kinds = 0;
    for (size_t at = message.find("--ignore '"); at != message.npos; at = message.find("--ignore '", at + 1), ++kinds)
        rules += fmt::format("  - {{quantizer_name: '{}.*', enable: false}}\n",
                             message.substr(at + 10, message.find('\'', at + 10) - at - 10));
    EXPECT_EQ(kinds, 4u);
    const auto followed = plan_with(tensors, rules);
    ASSERT_TRUE(followed.ok()) << followed.error().message();
    for (const PlanEntry& e : followed->entries)
        EXPECT_EQ(e.spec.format == Format::nvfp4, e.tensor.ends_with("o_proj.weight")) << e.tensor;
}

TEST(LeftAlone, UnknownMatricesOfManyKindsTakeOneLine) {
    std::vector<CheckpointTensor> tensors;
    for (const char* name : {"W_q", "W_k", "ff.0"})
        for (int layer = 0; layer < 2; ++layer)
            tensors.push_back(test::tensor(fmt::format("model.layers.{}.{}.weight", layer, name), {64, 64}));
    const auto plan = plan_with(tensors, everything);
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(plan->warnings,
              std::vector<std::string>{
                  "3 kinds of matrices are not known as linear layers and stay BF16 (--linear quantizes them): "
                  "'model.layers.*.W_k' (2), 'model.layers.*.W_q' (2), 'model.layers.*.ff.*' (2)"});
}

// ---- Modules that the user names -----------------------------------------------------------------------------------

struct Named {
    std::vector<std::string> linear;
    std::vector<std::string> quantized;  // besides o_proj
    std::string note;                    // or the error
};

TEST(NamedModules, LinearMakesMatricesLinearLayers) {
    std::vector<CheckpointTensor> tensors;
    for (const char* layer : {"0", "1"})
        for (const char* name : {"W_q", "W_k", "ff.0", "o_proj"})
            tensors.push_back(test::tensor(fmt::format("model.layers.{}.{}.weight", layer, name), {64, 64}));
    tensors.push_back(test::tensor("model.norm.weight", {64}));
    const std::string note = "--linear makes these matrices linear layers: ";
    for (const Named& c :
         {Named{{"*.W_q"}, {"W_q"}, note + "'model.layers.*.W_q' (2)"},
          Named{{"re:.*W_[qk]"}, {"W_q", "W_k"}, note + "'model.layers.*.W_k' (2), 'model.layers.*.W_q' (2)"},
          Named{
              {"*.W_q", "re:model.*ff"}, {"W_q", "ff.0"}, note + "'model.layers.*.W_q' (2), 'model.layers.*.ff.*' (2)"},
          Named{{"*.o_proj"}, {}, ""},
          Named{{"*.W_v"}, {}, "--linear *.W_v: matches no matrix that could be a linear layer"},
          Named{{"model.norm"}, {}, "--linear model.norm: matches no matrix that could be a linear layer"},
          Named{{"re:("}, {}, "--linear re:(: "}}) {
        SCOPED_TRACE(c.linear[0]);
        const auto recipe = parse_recipe(std::string(everything), "r.yaml");
        const Json config{{"tie_word_embeddings", false}};
        const auto plan = resolve(*recipe, tensors, config, {.linear = c.linear});
        if (!plan.ok()) {
            EXPECT_TRUE(c.quantized.empty() && plan.error().message().starts_with(c.note)) << plan.error().message();
            continue;
        }
        ASSERT_TRUE(c.note.empty() || c.note.starts_with(note));
        EXPECT_EQ(std::ranges::count(plan->warnings, c.note), c.note.empty() ? 0 : 1);
        for (const PlanEntry& e : plan->entries) {
            const bool wanted = std::ranges::any_of(
                c.quantized, [&](const std::string& name) { return e.module.ends_with("." + name); });
            EXPECT_EQ(e.spec.format == Format::nvfp4, wanted || e.module.ends_with("o_proj")) << e.module;
        }
    }
}

TEST(NamedModules, ARegularExpressionOfIgnoreMatchesModules) {
    std::vector<CheckpointTensor> tensors;
    for (const char* name : {"self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"})
        tensors.push_back(test::tensor(fmt::format("model.layers.0.{}.weight", name), {64, 64}));
    for (const auto& [pattern, kept] : {std::pair("re:.*mlp", 2), {"re:.*up_proj$", 1}, {"re:mlp", 0}}) {
        const auto plan =
            plan_with(tensors, fmt::format("{}  - {{quantizer_name: '{}', enable: false}}\n", everything, pattern));
        ASSERT_TRUE(plan.ok()) << plan.error().message();
        EXPECT_EQ(std::ranges::count(plan->entries, Format::none, [](const PlanEntry& e) { return e.spec.format; }),
                  kept)
            << pattern;
    }
    EXPECT_FALSE(plan_with(tensors, std::string(everything) + "  - {quantizer_name: 're:(', enable: false}\n").ok());
}

TEST(NamedModules, AConstantInputScaleNeedsNoCalibration) {
    const auto recipe = load_recipe("nvfp4");
    const std::vector<CheckpointTensor> tensors{test::tensor("model.layers.0.self_attn.o_proj.weight", {64, 64})};
    const Json config{{"tie_word_embeddings", false}};
    const auto plan = resolve(*recipe, tensors, config, {.input_scale = 0.5f});
    ASSERT_TRUE(plan.ok()) << plan.error().message();
    EXPECT_TRUE(plan->needs_activations.empty());
    EXPECT_EQ(plan->entries[0].constant_input_amax, 1344.0f);
}

TEST(LeftAlone, UnknownMatricesAreCountedOnlyIfTheRecipeMatchesThem) {
    const std::vector<CheckpointTensor> tensors = {test::tensor("model.layers.0.attn.W_q.weight", {64, 64}),
                                                   test::tensor("model.layers.0.conv.conv.weight", {64, 1, 3}),
                                                   test::tensor("model.layers.0.mlp.down_proj.weight", {64, 64})};
    const auto plan = resolve(*load_recipe("nvfp4_mlp_only"), tensors, Json::object(), {.weights_only = true});
    ASSERT_TRUE(plan.ok()) << plan.error().message();
    for (const std::string& line : plan->warnings) EXPECT_EQ(line.find("stay"), line.npos) << line;
    EXPECT_TRUE(plan->entries[1].listed_module) << "its quantizer is off: Model Optimizer lists it";
}

// ---- Matrices that engines fuse ------------------------------------------------------------------------------------

struct Fusion {
    std::vector<std::string> members;  // members of one fused matrix, or of two separate ones
    bool together;
};

void PrintTo(const Fusion& f, std::ostream* out) { *out << f.members[0] << " and " << f.members.back(); }

class Fusions : public testing::TestWithParam<Fusion> {
protected:
    std::vector<CheckpointTensor> tensors() const {
        std::vector<CheckpointTensor> list;
        for (const std::string& m : GetParam().members)
            list.push_back(test::tensor(fmt::format("model.layers.3.{}.weight", m), {64, 64}));
        return list;
    }
};

TEST_P(Fusions, NeedOneFormatInThePlan) {
    for (const std::string& odd : GetParam().members) {
        const auto plan = plan_with(tensors(), without("*." + odd));
        EXPECT_EQ(plan.ok(), !GetParam().together) << odd;
        if (!plan.ok())
            EXPECT_NE(plan.error().message().find("run as one matrix and need one format"), std::string::npos)
                << plan.error().message();
    }
    EXPECT_TRUE(plan_with(tensors(), everything).ok());
}

// A list for all architectures cannot exclude one member of a fused group.
TEST_P(Fusions, AreNotSplitByAnImportedList) {
    for (const std::string& odd : GetParam().members) {
        auto recipe = *parse_recipe(std::string(everything), "r.yaml");
        Rule rule;
        rule.pattern = "*." + odd + ".*";
        rule.enable = false;
        rule.imported = true;
        rule.where = "list.yaml:1";
        recipe.rules.push_back(rule);
        const auto plan = resolve(recipe, tensors(), Json::object());
        ASSERT_TRUE(plan.ok()) << plan.error().message();
        for (const PlanEntry& e : plan->entries)
            EXPECT_EQ(e.spec.format == Format::nvfp4, GetParam().together || !e.module.ends_with("." + odd))
                << e.tensor << " " << odd;
        EXPECT_EQ(plan->warnings.size(), GetParam().together ? 1u : 0u);
    }
}

INSTANTIATE_TEST_SUITE_P(Groups, Fusions,
                         testing::Values(Fusion{{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, true},
                                         Fusion{{"mlp.gate_proj", "mlp.up_proj"}, true},
                                         Fusion{{"block_sparse_moe.gate_proj", "block_sparse_moe.up_proj"}, true},
                                         Fusion{{"mlp.experts.0.w1", "mlp.experts.0.w3"}, true},
                                         Fusion{{"self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"}, true},
                                         Fusion{{"linear_attn.in_proj_qkv", "linear_attn.in_proj_z"}, true},
                                         Fusion{{"linear_attn.in_proj_b", "linear_attn.in_proj_a"}, true},
                                         // Not fused: engines have a matrix for each.
                                         Fusion{{"linear_attn.in_proj_z", "linear_attn.in_proj_b"}, false},
                                         Fusion{{"linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba"}, false},
                                         Fusion{{"self_attn.q_proj", "self_attn.kv_a_proj_with_mqa"}, false},
                                         Fusion{{"self_attn.v_proj", "self_attn.o_proj"}, false},
                                         Fusion{{"mlp.up_proj", "mlp.down_proj"}, false}));

// Two rules of the built-in list together match a whole group, which stays unquantized.
TEST(LeftAlone, GatesOfGatedDeltaNetsStayUnquantizedAsInModelOptimizer) {
    std::vector<CheckpointTensor> tensors;
    for (const char* p : {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"})
        tensors.push_back(test::tensor(fmt::format("model.layers.0.linear_attn.{}.weight", p), {64, 64}));
    for (const char* preset : {"w4a16_nvfp4", "nvfp4", "fp8", "mxfp8", "mxfp4", "fp8_2d_blockwise_weight_only"}) {
        SCOPED_TRACE(preset);
        const auto plan = resolve(*load_recipe(preset), tensors, Json::object(), {.weights_only = true});
        ASSERT_TRUE(plan.ok()) << plan.error().message();
        for (const PlanEntry& e : plan->entries) {
            const bool gate = e.module.ends_with("_a") || e.module.ends_with("_b");
            EXPECT_EQ(e.spec.format == Format::none, gate) << e.tensor;
            EXPECT_EQ(e.listed_module, gate) << e.tensor;
        }
    }
}

TEST(LeftAlone, AKvCacheOfSomeLayersIsRefusedInThePlan) {
    std::vector<CheckpointTensor> tensors;
    for (int layer = 0; layer < 2; ++layer)
        for (const char* p : {"q", "k", "v"})
            tensors.push_back(
                test::tensor(fmt::format("model.layers.{}.self_attn.{}_proj.weight", layer, p), {64, 64}));
    const auto plan =
        plan_with(tensors, std::string(everything) +
                               "  - {quantizer_name: '*layers.0.*[kv]_bmm_quantizer', cfg: {num_bits: e4m3}}\n");
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(plan.error().message(),
              "the KV cache of 'model.layers.0.self_attn' is fp8 (rule 3 '*layers.0.*[kv]_bmm_quantizer' (r.yaml:4)), "
              "that of 'model.layers.1.self_attn' is not quantized: all layers need the same format");
}

}  // namespace
}  // namespace nibble
