#include "quant/resolve.h"

#include "quant/models.h"
#include "support/files.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

using test::tensor;

// A dense layer, a mixture of experts with a shared one, and the other tensors of a model.
test::TensorList small_model() {
    test::TensorList m;
    m.config = {{"tie_word_embeddings", false}, {"num_hidden_layers", 2}};
    auto& t = m.tensors;
    t.push_back(tensor("model.embed_tokens.weight", {64, 128}));
    for (const char* p : {"q", "k", "v", "o"})
        t.push_back(tensor(fmt::format("model.layers.0.self_attn.{}_proj.weight", p), {128, 128}));
    t.push_back(tensor("model.layers.0.self_attn.q_proj.bias", {128}));
    for (const char* p : {"gate", "up", "down"})
        t.push_back(tensor(fmt::format("model.layers.0.mlp.{}_proj.weight", p), {128, 128}));
    t.push_back(tensor("model.layers.0.input_layernorm.weight", {128}));
    t.push_back(tensor("model.layers.0.post_attention_layernorm.weight", {128}));
    for (int e = 0; e < 2; ++e)
        for (const char* p : {"gate", "up", "down"})
            t.push_back(tensor(fmt::format("model.layers.1.mlp.experts.{}.{}_proj.weight", e, p), {128, 128}));
    t.push_back(tensor("model.layers.1.mlp.gate.weight", {2, 128}));
    t.push_back(tensor("model.layers.1.mlp.gate.e_score_correction_bias", {2}, DType::f32));
    for (const char* p : {"gate", "up", "down"})
        t.push_back(tensor(fmt::format("model.layers.1.mlp.shared_experts.{}_proj.weight", p), {128, 128}));
    t.push_back(tensor("lm_head.weight", {64, 128}));
    return m;
}

constexpr std::string_view nvfp4 = "{num_bits: e2m1, block_sizes: {-1: 16, type: dynamic, scale_bits: e4m3}}";
constexpr std::string_view nvfp4_static = "{num_bits: e2m1, block_sizes: {-1: 16, type: static, scale_bits: e4m3}}";
constexpr std::string_view fp8 = "{num_bits: e4m3}";

// Resolves a preset that disables everything, then applies these rules (one per line).
Result<Plan> plan_of(const std::vector<std::string>& rules, const ResolveOptions& options = {},
                     std::string_view algorithm = "max", const test::TensorList& model = small_model()) {
    std::string text =
        fmt::format("algorithm: {}\nquant_cfg:\n  - {{quantizer_name: '*', enable: false}}\n", algorithm);
    for (const std::string& rule : rules) text += "  - " + rule + "\n";
    NIBBLE_TRY(const Recipe recipe, parse_recipe(text, "r.yaml"));
    return resolve(recipe, model.tensors, model.config, options);
}

std::string on(std::string_view pattern, std::string_view cfg) {
    return fmt::format("{{quantizer_name: '{}', cfg: {}}}", pattern, cfg);
}
std::string off(std::string_view pattern) { return fmt::format("{{quantizer_name: '{}', enable: false}}", pattern); }

std::string error_of(const std::vector<std::string>& rules, const ResolveOptions& options = {},
                     std::string_view algorithm = "max") {
    const auto plan = plan_of(rules, options, algorithm);
    return plan.ok() ? "no error" : plan.error().message();
}

const PlanEntry& entry(const Plan& plan, std::string_view module) {
    for (const PlanEntry& e : plan.entries)
        if (e.module == module && e.tensor.ends_with(".weight")) return e;
    throw std::runtime_error("no entry " + std::string(module));
}

TEST(Resolve, TheLastMatchingRuleWinsAndACfgReplacesEverything) {
    const auto plan = plan_of({on("*weight_quantizer", nvfp4), on("*q_proj.*", fp8), off("*k_proj*"),
                               on("*v_proj.weight*", nvfp4_static), off("*q_proj*"), on("*q_proj.w*", nvfp4),
                               on("*k_proj.w*", nvfp4), on("*v_proj.w*", nvfp4)});
    ASSERT_TRUE(plan.ok()) << plan.error().message();
    EXPECT_EQ(entry(*plan, "model.layers.0.self_attn.q_proj").spec.format, Format::nvfp4);
    EXPECT_FALSE(entry(*plan, "model.layers.0.self_attn.v_proj").spec.static_scales)
        << "nothing is left of the earlier cfg";
    EXPECT_EQ(entry(*plan, "model.layers.0.self_attn.q_proj").reason, "rule 7 '*q_proj.w*' (r.yaml:9)");
}

TEST(Resolve, EnableWithoutCfgKeepsTheAttributes) {
    const auto plan = plan_of({on("*mlp*weight_quantizer", nvfp4), off("*down_proj*"),
                               "{quantizer_name: '*layers.0.mlp.down_proj.weight_quantizer', enable: true}"});
    ASSERT_TRUE(plan.ok()) << plan.error().message();
    EXPECT_EQ(entry(*plan, "model.layers.0.mlp.down_proj").spec.format, Format::nvfp4);
    EXPECT_EQ(entry(*plan, "model.layers.0.mlp.down_proj").reason,
              "rule 4 '*layers.0.mlp.down_proj.weight_quantizer' (r.yaml:6)");
    EXPECT_EQ(entry(*plan, "model.layers.1.mlp.shared_experts.down_proj").spec.format, Format::none);
    EXPECT_EQ(error_of({"{quantizer_name: '*o_proj.weight*', enable: true}"}),
              "rule 2 '*o_proj.weight*' (r.yaml:4) enables 'model.layers.0.self_attn.o_proj.weight_quantizer' without "
              "a cfg: the default, INT8, is not supported");
}

TEST(Resolve, ARecipeMustBeginByDisablingEverything) {
    const auto model = small_model();
    const auto recipe = parse_recipe("quant_cfg:\n  - " + on("*mlp*weight_quantizer", nvfp4), "r.yaml");
    const auto plan = resolve(*recipe, model.tensors, model.config);
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(plan.error().message(),
              "no rule matches 'model.embed_tokens.weight_quantizer', which Model Optimizer would quantize to INT8: "
              "begin the recipe with {quantizer_name: '*', enable: false}");
}

TEST(Resolve, ParentClassRestrictsARule) {
    const auto plan =
        plan_of({fmt::format("{{quantizer_name: '*weight_quantizer', parent_class: nn.Embedding, cfg: {}}}", nvfp4)});
    ASSERT_TRUE(plan.ok()) << plan.error().message();
    for (const PlanEntry& e : plan->entries)
        EXPECT_EQ(e.spec.format != Format::none, e.module == "model.embed_tokens") << e.tensor;
    EXPECT_TRUE(entry(*plan, "lm_head").listed_module);
    EXPECT_FALSE(entry(*plan, "model.embed_tokens").listed_module);
}

TEST(Resolve, RulesThatMatchNothingAreWarningsAndStrictErrors) {
    const std::vector<std::string> rules = {on("*o_proj.weight_quantizer", nvfp4), off("*o_porj*"),
                                            on("*mixer*weight_quantizer", nvfp4)};
    const auto plan = plan_of(rules);
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(plan->warnings, (std::vector<std::string>{
                                  "rule 3 '*o_porj*' (r.yaml:5) matches nothing in this checkpoint",
                                  "rule 4 '*mixer*weight_quantizer' (r.yaml:6) matches nothing in this checkpoint"}));
    EXPECT_EQ(error_of(rules, {.strict = true}),
              "rule 3 '*o_porj*' (r.yaml:5) matches nothing in this checkpoint (--strict)");
    EXPECT_TRUE(resolve(*load_recipe("nvfp4"), small_model().tensors, small_model().config, {.strict = true}).ok())
        << "the imported list of what to leave alone is for every architecture";
}

// Dense models, mixtures, latent attention, hybrids.
class PresetsOnPlainModels : public ::testing::TestWithParam<const char*> {};

TEST_P(PresetsOnPlainModels, GiveNoWarningsAndPassStrict) {
    const auto model = test::read_model(test::test_data("golden/models") / GetParam());
    for (const std::string& preset : preset_names())
        for (const char* kv : {"", "fp8", "nvfp4_cast", "none"}) {
            const auto plan = resolve(*load_recipe(preset), model.tensors, model.config, {.strict = true, .kv = kv});
            // Rows of these tiny models are shorter than groups of 128, or no multiple of them.
            if (!plan.ok() &&
                plan.error().message().find("do not divide into blocks of 128 (int4)") != std::string::npos)
                continue;
            ASSERT_TRUE(plan.ok()) << preset << ": " << plan.error().message();
            EXPECT_TRUE(plan->warnings.empty()) << preset << " " << kv << ": " << plan->warnings.front();
        }
}

INSTANTIATE_TEST_SUITE_P(Golden, PresetsOnPlainModels,
                         ::testing::Values("llama", "qwen2", "qwen3", "mixtral", "qwen3_moe", "deepseek_v3",
                                           "nemotron_h"));

// Rules of built-in files are exempt wherever they are imported; other rules are not.
TEST(Resolve, AUsersRuleThatMatchesNothingWarnsAlsoWithImportedUnits) {
    test::TempDir dir;
    test::write_file(dir / "r.yaml",
                     "imports: {off: configs/ptq/units/base_disable_all, experts: configs/ptq/units/experts_nvfp4, "
                     "more: more}\nquant_cfg:\n  - $import: off\n  - $import: experts\n  - $import: more\n"
                     "  - {quantizer_name: '*mlp_proj*', enable: false}\n");
    test::write_file(dir / "more.yaml",
                     "# modelopt-schema: list\n- {quantizer_name: '*o_porj*', cfg: {num_bits: e4m3}}\n");
    const auto recipe = load_recipe((dir / "r.yaml").string());
    ASSERT_TRUE(recipe.ok()) << recipe.error().message();
    test::TensorList dense = small_model();
    std::erase_if(dense.tensors, [](const CheckpointTensor& t) { return t.name.find("layers.1.") != t.name.npos; });
    const auto plan = resolve(*recipe, dense.tensors, dense.config);
    ASSERT_TRUE(plan.ok()) << plan.error().message();
    ASSERT_EQ(plan->warnings.size(), 2u) << plan->warnings.front();
    EXPECT_NE(plan->warnings[0].find("'*o_porj*'"), std::string::npos);
    EXPECT_NE(plan->warnings[1].find("'*mlp_proj*'"), std::string::npos);
}

TEST(Resolve, WeightsOnlyNvfp4IsW4a16Nvfp4) {
    const auto model = small_model();
    const auto a = resolve(*load_recipe("nvfp4"), model.tensors, model.config,
                           {.weights_only = true, .strict = true, .kv = "fp8"});
    const auto b = resolve(*load_recipe("w4a16_nvfp4"), model.tensors, model.config);
    ASSERT_TRUE(a.ok() && b.ok());
    for (size_t i = 0; i < a->entries.size(); ++i) {
        const PlanEntry &x = a->entries[i], &y = b->entries[i];
        EXPECT_EQ(x.spec, y.spec);
        EXPECT_EQ(x.activation, y.activation);
        EXPECT_EQ(x.scale_group, y.scale_group);
        EXPECT_EQ(x.listed_module, y.listed_module);
    }
    EXPECT_TRUE(a->needs_activations.empty() && b->needs_activations.empty());
    EXPECT_EQ(a->kv, KvFormat::none);
    EXPECT_EQ(a->warnings,
              std::vector<std::string>{
                  "weights only: the KV cache stays BF16 instead of fp8 (--kv fp8_cast needs no calibration)"});
}

TEST(Resolve, MissingActivationsAreListedUntilScalesAreGiven) {
    const auto model = small_model();
    auto plan = resolve(*load_recipe("nvfp4_experts_only"), model.tensors, model.config, {.kv = "fp8"});
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(plan->needs_activations,
              (std::vector<std::string>{
                  "input_scale of 6 linears (first: model.layers.1.mlp.experts.0.gate_proj): calibrate "
                  "(--calib FILE), give known scales (--input-scales FILE.json or another export) or a constant one "
                  "(--input-scales 1), or --weights-only",
                  "k_scale and v_scale of 1 layers (first: model.layers.0.self_attn): calibrate "
                  "(--calib FILE), give known scales (--input-scales FILE.json or another export), or --kv fp8_cast or "
                  "none"}));
    std::map<std::string, float, std::less<>> scales;
    for (const PlanEntry& e : plan->entries)
        if (stores_input_scale(e.activation)) scales[e.module + ".input_scale"] = 1;
    scales["model.layers.0.self_attn.k_proj.k_scale"] = scales["model.layers.0.self_attn.v_proj.v_scale"] = 1;
    plan = resolve(*load_recipe("nvfp4_experts_only"), model.tensors, model.config, {.kv = "fp8", .scales = &scales});
    EXPECT_TRUE(plan->needs_activations.empty());
    EXPECT_EQ(plan->kv_layers, std::vector<std::string>{"model.layers.0.self_attn"});
    plan =
        resolve(*load_recipe("general/ptq/nvfp4_experts_only_input_scale1-kv_fp8_cast"), model.tensors, model.config);
    EXPECT_TRUE(plan->needs_activations.empty()) << "constant maxima need no data";
    EXPECT_EQ(entry(*plan, "model.layers.1.mlp.experts.0.up_proj").constant_input_amax, 2688.0f);
    EXPECT_EQ(plan->kv, KvFormat::fp8_cast);
}

TEST(Resolve, AlgorithmsThatNeedActivationsAreListedAndOthersRefused) {
    for (const char* method : {"gptq", "local_hessian", "nibble_best"}) {
        const auto plan = plan_of({on("*o_proj.weight*", nvfp4_static)}, {}, method);
        ASSERT_TRUE(plan.ok());
        ASSERT_EQ(plan->needs_activations.size(), 1u);
        EXPECT_EQ(plan->needs_activations[0],
                  fmt::format("statistics for {} of 1 linears (first: model.layers.0.self_attn.o_proj): calibrate "
                              "(--calib FILE)",
                              method));
        const auto ready = plan_of({on("*o_proj.weight*", nvfp4_static)}, {.statistics = true}, method);
        EXPECT_TRUE(ready->needs_activations.empty());
    }
    EXPECT_EQ(plan_of({on("*o_proj.weight*", nvfp4_static)}, {}, "nvfp4_act_headroom")->needs_activations,
              std::vector<std::string>{"algorithm nvfp4_act_headroom (r.yaml:1): needs activations, which this version "
                                       "does not compute"});
    for (const char* method : {"awq_clip", "awq_full", "smoothquant", "svdquant", "lsq"})
        EXPECT_EQ(error_of({on("*o_proj.weight*", nvfp4)}, {}, method),
                  fmt::format("r.yaml:1: algorithm '{}' is not supported", method));
    EXPECT_EQ(error_of({}, {}, "{method: max, sync_expert_weight_amax: true}"),
              "r.yaml:1: algorithm 'max' with sync_expert_weight_amax is not supported");
}

TEST(Resolve, AMultiplierSearchCoversFp8AndDynamicWeightsASweepStaticOnesOnly) {
    const std::vector<std::string> rules = {
        on("*o_proj.weight*", fp8), on("*down_proj.weight*", nvfp4), on("*self_attn.[qkv]_proj.weight*", nvfp4_static),
        on("*shared_experts.*weight*", "{num_bits: e2m1, block_sizes: {-1: 32, type: dynamic, scale_bits: e8m0}}")};
    const auto searched =
        plan_of(rules, {}, "{method: mse, start_multiplier: 1, stop_multiplier: 1.5, step_size: 0.5}");
    ASSERT_TRUE(searched.ok()) << searched.error().message();
    const Search both{Search::Kind::multipliers, 1.0f, 1.5f, 0.5f};
    EXPECT_EQ(entry(*searched, "model.layers.0.self_attn.o_proj").spec.search, both);
    EXPECT_EQ(entry(*searched, "model.layers.0.mlp.down_proj").spec.search, both);
    EXPECT_EQ(entry(*searched, "model.layers.0.self_attn.q_proj").spec.search, both);
    EXPECT_EQ(entry(*searched, "model.layers.1.mlp.shared_experts.up_proj").spec.search, Search{});
    const auto swept = plan_of(rules, {}, "{method: mse, fp8_scale_sweep: true}");
    ASSERT_TRUE(swept.ok());
    EXPECT_EQ(entry(*swept, "model.layers.0.self_attn.o_proj").spec.search, Search{});
    EXPECT_EQ(entry(*swept, "model.layers.0.mlp.down_proj").spec.search, Search{});
    EXPECT_EQ(entry(*swept, "model.layers.0.self_attn.q_proj").spec.search.kind, Search::Kind::sweep);
    const auto last = plan_of(rules, {}, "[{method: mse, fp8_scale_sweep: true}, max]");
    EXPECT_EQ(entry(*last, "model.layers.0.self_attn.q_proj").spec.search, Search{})
        << "each method starts with the defaults";
}

TEST(Resolve, FourOverSixNeedsItsSearch) {
    const std::string cfg =
        "{num_bits: e2m1, block_sizes: {-1: 16, type: static, scale_bits: e4m3, four_over_six: true}}";
    const auto plan = plan_of({on("*_proj.weight*", cfg)});
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(plan->warnings, std::vector<std::string>{"rule 2 '*_proj.weight*' (r.yaml:4): four_over_six without a "
                                                       "search over 1.0 and 1.5 only lowers precision"});
    EXPECT_EQ(error_of({on("*_proj.weight*", cfg)}, {}, "{method: mse, fp8_scale_sweep: true}"),
              "rule 2 '*_proj.weight*' (r.yaml:4): four_over_six does not go with fp8_scale_sweep; give "
              "start_multiplier 1.0, stop 1.5, step 0.5");
}

// The format of precision: nibble_nvfp4 of `nibble train`, without its term of rank r.
TEST(Resolve, NibbleNvfp4HasTheFormatsOfItsTrainingRecipe) {
    auto model = small_model();
    for (const char* p : {"up", "down", "in", "out"})
        model.tensors.push_back(tensor(fmt::format("backbone.layers.1.mixer.{}_proj.weight", p), {128, 128}));
    const auto plan =
        resolve(*load_recipe("general/ptq/nibble_nvfp4"), model.tensors, model.config, {.weights_only = true});
    ASSERT_TRUE(plan.ok()) << plan.error().message();
    for (const PlanEntry& e : plan->entries) {
        const auto in = [&](std::string_view part) { return e.module.find(part) != std::string::npos; };
        const bool mlp = in("mlp.") || in("mixer.up") || in("mixer.down");
        const bool kept = !e.tensor.ends_with("proj.weight");
        EXPECT_EQ(e.spec.format, kept ? Format::none : mlp ? Format::nvfp4 : Format::fp8) << e.tensor;
        if (e.spec.format == Format::nvfp4) {
            EXPECT_EQ(e.spec.normalization, 256) << e.tensor;
        }
    }
}

TEST(Resolve, GroupsAreThoseOfEnginesAndOfModelOptimizer) {
    const auto model = small_model();
    const auto group = [&](const char* recipe, std::string PlanEntry::*key, std::string_view module) {
        return entry(*resolve(*load_recipe(recipe), model.tensors, model.config), module).*key;
    };
    const std::string attention = "model.layers.0.self_attn.";
    for (const char* p : {"q_proj", "k_proj", "v_proj"}) {
        EXPECT_EQ(group("nvfp4", &PlanEntry::scale_group, attention + p), attention + "{q,kv}");
        EXPECT_EQ(group("nvfp4_four_over_six", &PlanEntry::search_group, attention + p), attention + "{q,k,v}");
        EXPECT_EQ(group("fp8", &PlanEntry::scale_group, attention + p), "") << "FP8 weights keep their own scale";
        EXPECT_EQ(group("fp8", &PlanEntry::input_group, attention + p), attention + "{q,kv}");
        EXPECT_EQ(group("mxfp8", &PlanEntry::input_group, attention + p), "") << "nothing is stored";
    }
    EXPECT_EQ(group("nvfp4", &PlanEntry::scale_group, attention + "o_proj"), "");
    EXPECT_EQ(group("nvfp4", &PlanEntry::input_group, attention + "o_proj"), "");
    const std::string expert = "model.layers.1.mlp.experts.";
    EXPECT_EQ(group("nvfp4", &PlanEntry::scale_group, expert + "1.up_proj"), expert + "1.{gate,up}");
    EXPECT_EQ(group("fp8", &PlanEntry::scale_group, expert + "1.up_proj"), expert + "1.{gate,up}")
        << "one matrix inside Model Optimizer";
    EXPECT_EQ(group("fp8", &PlanEntry::scale_group, "model.layers.1.mlp.shared_experts.up_proj"), "");
    EXPECT_EQ(group("nvfp4", &PlanEntry::input_group, expert + "0.gate_proj"),
              "model.layers.1.mlp.experts.*.{gate,up}");
    EXPECT_EQ(group("nvfp4", &PlanEntry::input_group, expert + "0.down_proj"),
              "model.layers.1.mlp.experts.*.{down_proj}");
}

TEST(Resolve, LatentAttentionIsFusedForTheExportButNotSearchedTogether) {
    test::TensorList model;
    for (const char* p : {"q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "kv_b_proj", "o_proj"})
        model.tensors.push_back(tensor(fmt::format("model.layers.0.self_attn.{}.weight", p), {128, 128}));
    const auto plan = resolve(*load_recipe("nvfp4_four_over_six"), model.tensors, Json());
    ASSERT_TRUE(plan.ok()) << plan.error().message();
    for (const char* p : {"q_a_proj", "kv_a_proj_with_mqa"}) {
        EXPECT_EQ(entry(*plan, fmt::format("model.layers.0.self_attn.{}", p)).scale_group,
                  "model.layers.0.self_attn.{q,kv}");
        EXPECT_EQ(entry(*plan, fmt::format("model.layers.0.self_attn.{}", p)).search_group, "");
    }
    EXPECT_EQ(entry(*plan, "model.layers.0.self_attn.q_b_proj").scale_group, "");
}

TEST(Resolve, FormatsThatNoEngineRunsAreRefusedByName) {
    EXPECT_EQ(error_of({on("*o_proj.weight*", nvfp4), on("*o_proj.input*", fp8)}),
              "'model.layers.0.self_attn.o_proj.weight': weights in nvfp4 with inputs in fp8 (rule 3 '*o_proj.input*' "
              "(r.yaml:5)) is not supported");
    EXPECT_EQ(error_of({on("*q_proj.weight*", nvfp4), on("*k_proj.weight*", fp8)}),
              "'model.layers.0.self_attn.q_proj.weight' (nvfp4; rule 2 '*q_proj.weight*' (r.yaml:4)) and "
              "'model.layers.0.self_attn.k_proj.weight' (fp8; rule 3 "
              "'*k_proj.weight*' (r.yaml:5)) run as one matrix and need one format: a rule or --ignore that names one "
              "of them must name all");
    EXPECT_EQ(error_of({on("*o_proj.output*", fp8)}),
              "rule 2 '*o_proj.output*' (r.yaml:4) enables 'model.layers.0.self_attn.o_proj.output_quantizer': "
              "quantized outputs are not supported");
    EXPECT_EQ(error_of({on("*q_bmm*", fp8)}),
              "rule 2 '*q_bmm*' (r.yaml:4) enables 'model.layers.0.self_attn.q_bmm_quantizer': only keys and values of "
              "attention can be quantized");
    EXPECT_EQ(error_of({on("*k_bmm*", fp8)}),
              "'model.layers.0.self_attn.k_bmm_quantizer' and 'model.layers.0.self_attn.v_bmm_quantizer' must be both "
              "on or both off");
    EXPECT_EQ(error_of({on("*k_bmm*", fp8), on("*v_bmm*", nvfp4)}),
              "the KV cache has one format: 'model.layers.0.self_attn.k_bmm_quantizer' and "
              "'model.layers.0.self_attn.v_bmm_quantizer' differ");
    EXPECT_EQ(error_of({on("*o_proj.weight*", "{num_bits: 4, block_sizes: {-1: 64}}")}),
              "rule 2 '*o_proj.weight*' (r.yaml:4), 'model.layers.0.self_attn.o_proj.weight_quantizer': weights in "
              "int4 block -1:64 static are not supported");
    EXPECT_EQ(error_of({on("*o_proj.weight*", "{num_bits: e4m3, rotate: true, unsigned: true}")}),
              "rule 2 '*o_proj.weight*' (r.yaml:4), 'model.layers.0.self_attn.o_proj.weight_quantizer': not supported: "
              "rotate, unsigned");
    EXPECT_EQ(error_of({on("*o_proj.weight*", "[{num_bits: 4}, {num_bits: e4m3}]")}),
              "rule 2 '*o_proj.weight*' (r.yaml:4), 'model.layers.0.self_attn.o_proj.weight_quantizer': quantizers in "
              "sequence are not supported");
    EXPECT_EQ(error_of({on("*nowhere*", "{num_bits: 4, rotate: true}")}), "no error")
        << "a rule that matches nothing is not an error";
}

TEST(Resolve, WidthsThatDoNotFitNameTheRuleThatWouldHelp) {
    auto model = small_model();
    model.tensors.push_back(tensor("model.layers.1.self_attn.o_proj.weight", {128, 100}));
    const auto plan = plan_of({on("*weight_quantizer", nvfp4)}, {}, "max", model);
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(plan.error().message(),
              "rule 2 '*weight_quantizer' (r.yaml:4) quantizes what cannot be quantized: "
              "'model.layers.*.self_attn.o_proj' (1): 100 inputs do not divide into blocks of 16 (nvfp4). To keep it "
              "unquantized, add --ignore 'model.layers.*.self_attn.o_proj'");
    EXPECT_TRUE(
        plan_of({on("*weight_quantizer", nvfp4), off("model.layers.1.self_attn.o_proj.*")}, {}, "max", model).ok());
}

TEST(Resolve, RoutersCopiedLayersAndUnknownMatricesStayUnquantizedWithAReason) {
    auto model = small_model();
    model.config["num_nextn_predict_layers"] = 1;
    model.tensors.push_back(tensor("model.layers.2.mlp.up_proj.weight", {128, 128}));
    model.tensors.push_back(tensor("mtp.0.mlp.up_proj.weight", {128, 128}));
    model.tensors.push_back(tensor("model.layers.0.strange.thing.weight", {128, 128}));
    model.tensors.push_back(tensor("model.layers.0.mlp.lut.weight", {128, 128}, DType::i32));
    const auto plan = plan_of({on("*weight_quantizer", nvfp4)}, {}, "max", model);
    ASSERT_TRUE(plan.ok()) << plan.error().message();
    const auto why = [&](std::string_view module) {
        const PlanEntry& e = entry(*plan, module);
        return fmt::format("{} {} {}", format_name(e.spec.format), e.listed_module, e.reason);
    };
    EXPECT_EQ(why("model.layers.1.mlp.gate"), "none true router");
    EXPECT_EQ(why("model.layers.2.mlp.up_proj"), "none true multi-token prediction layer: copied");
    EXPECT_EQ(why("mtp.0.mlp.up_proj"), "none true multi-token prediction layer: copied");
    EXPECT_EQ(why("model.layers.0.strange.thing"), "none true not known as the weight of a linear");
    EXPECT_EQ(why("model.layers.0.mlp.lut"), "none false I32: not a weight");
    EXPECT_EQ(why("model.layers.0.input_layernorm"), "none false norm");
}

TEST(Resolve, ExpertsInOneTensorAreRefusedWithTheFlagToAdd) {
    auto model = small_model();
    model.tensors.push_back(tensor("model.layers.0.mlp.experts.gate_up_proj", {4, 128, 128}));
    auto plan = plan_of({on("*weight_quantizer", nvfp4)}, {}, "max", model);
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(plan.error().message(),
              "rule 2 '*weight_quantizer' (r.yaml:4) quantizes what cannot be quantized: "
              "'model.layers.*.mlp.experts.gate_up_proj' (1): experts in one tensor. To keep it unquantized, add "
              "--ignore 'model.layers.*.mlp.experts.gate_up_proj'");
    EXPECT_TRUE(
        plan_of({on("*weight_quantizer", nvfp4), off("model.layers.0.mlp.experts.gate_up_proj*")}, {}, "max", model)
            .ok());
}

TEST(Resolve, AnUnsplitStackOfExpertsHasAReasonAndOtherRulesStillApply) {
    auto model = small_model();
    model.tensors.push_back(tensor("model.layers.0.mlp.experts.down_proj", {4, 128, 128}));
    model.tensors.back().whole = "gpt_oss: experts with biases are not supported";
    model.tensors.push_back(tensor("model.layers.0.mlp.experts.down_proj_bias", {4, 128}));
    const auto plan = plan_of({on("*weight_quantizer", nvfp4)}, {}, "max", model);
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(plan.error().message(),
              "rule 2 '*weight_quantizer' (r.yaml:4) quantizes what cannot be quantized: "
              "'model.layers.*.mlp.experts.down_proj' (1): experts in one tensor (gpt_oss: experts with biases are not "
              "supported). To keep it unquantized, add --ignore 'model.layers.*.mlp.experts.down_proj'");
    const auto attention = plan_of({on("*self_attn*weight_quantizer", nvfp4)}, {}, "max", model);
    ASSERT_TRUE(attention.ok()) << attention.error().message();
    EXPECT_EQ(attention->entries[attention->entries.size() - 2].reason, "rule 1 '*' (r.yaml:3)");
    EXPECT_TRUE(attention->entries[attention->entries.size() - 2].listed_module);
    EXPECT_EQ(attention->entries.back().reason, "bias");
}

// A multimodal model with prediction layers, tied embeddings and unusual names: under every preset, each tensor is
// quantized or has a reason why not.
TEST(Resolve, UnusualTensorsStayUnquantizedUnderPresetsWithAReason) {
    test::TensorList model;
    model.config = {{"tie_word_embeddings", true}, {"text_config", {{"num_hidden_layers", 1}}}};
    const std::vector<std::pair<CheckpointTensor, std::string_view>> odd = {
        {tensor("model.language_model.embed_tokens.weight", {64, 128}), "rule"},
        {tensor("model.visual.patch_embed.proj.weight", {64, 3, 2, 16, 16}), "rule"},
        {tensor("model.visual.blocks.0.attn.qkv.weight", {192, 64}), "rule"},
        {tensor("model.visual.pos_embed.weight", {64, 64}), "rule"},
        {tensor("model.visual.blocks.5.norm1.weight", {64}), "norm"},
        {tensor("model.language_model.layers.0.linear_attn.conv1d.weight", {64, 1, 4}), "rule"},
        {tensor("model.language_model.layers.0.mixer.A_log", {64}), "parameter: its name does not end in .weight"},
        {tensor("model.language_model.layers.0.mixer.table", {64, 64}), "parameter: its name does not end in .weight"},
        {tensor("model.language_model.layers.0.mixer.strange.weight", {64, 64}), "not known as the weight of a linear"},
        {tensor("model.language_model.layers.0.mixer.index.weight", {64, 64}, DType::i64), "I64: not a weight"},
        {tensor("model.language_model.layers.0.mixer.scale.weight", {64}), "vector"},
        {tensor("model.language_model.layers.1.mlp.up_proj.weight", {128, 128}),
         "multi-token prediction layer: copied"},
        {tensor("model.language_model.layers.1.eh_proj.weight", {128, 256}), "multi-token prediction layer: copied"},
        {tensor("mtp.layers.0.mlp.experts.gate_up_proj", {4, 256, 128}), "multi-token prediction layer: copied"},
        {tensor("mtp.fc.weight", {128, 256}), "multi-token prediction layer: copied"},
    };
    for (const auto& [t, why] : odd) model.tensors.push_back(t);
    model.tensors.push_back(tensor("model.language_model.layers.0.mlp.up_proj.weight", {128, 128}));
    for (const char* preset : {"w4a16_nvfp4", "nvfp4", "fp8", "mxfp8", "nvfp4_mlp_only"}) {
        SCOPED_TRACE(preset);
        const auto plan = resolve(*load_recipe(preset), model.tensors, model.config);
        ASSERT_TRUE(plan.ok()) << plan.error().message();
        EXPECT_EQ(plan->tied_heads, std::vector<std::string>{"lm_head"});
        EXPECT_NE(to_text(*plan).find("\nlm_head: shares the tensor of the embeddings"), std::string::npos);
        for (size_t i = 0; i < odd.size(); ++i) {
            const PlanEntry& e = plan->entries[i];
            EXPECT_EQ(e.spec.format, Format::none) << e.tensor;
            EXPECT_TRUE(odd[i].second == "rule" ? e.reason.starts_with("rule ") : e.reason == odd[i].second)
                << e.tensor << ": " << e.reason;
        }
        EXPECT_NE(plan->entries.back().spec.format, Format::none);
    }
}

TEST(Resolve, RulesForFusedExpertsReachSingleOnes) {
    const auto plan = plan_of(
        {on("*experts.gate_up_proj_weight_quantizer*", nvfp4), on("*mlp.experts.*.down_proj_weight_quantizer", nvfp4)});
    ASSERT_TRUE(plan.ok()) << plan.error().message();
    EXPECT_TRUE(plan->warnings.empty());
    for (const PlanEntry& e : plan->entries)
        EXPECT_EQ(e.spec.format != Format::none, e.tensor.find(".experts.") != std::string::npos) << e.tensor;
}

TEST(Resolve, EmbeddingsAreQuantizedOnRequestWithAHeadThatIsTiedToThem) {
    auto model = small_model();
    auto plan = resolve(*load_recipe("w4a16_nvfp4"), model.tensors, model.config, {.embeddings = Format::fp8_row});
    ASSERT_TRUE(plan.ok()) << plan.error().message();
    EXPECT_EQ(entry(*plan, "model.embed_tokens").spec.format, Format::fp8_row);
    EXPECT_EQ(entry(*plan, "model.embed_tokens").reason, "--embeddings fp8_row");
    model.tensors.pop_back();
    model.config["tie_word_embeddings"] = true;
    plan = resolve(*load_recipe("w4a16_nvfp4"), model.tensors, model.config, {.embeddings = Format::fp8_row});
    ASSERT_TRUE(plan.ok()) << plan.error().message();
    EXPECT_EQ(entry(*plan, "model.embed_tokens").spec.format, Format::fp8_row);
    EXPECT_EQ(plan->warnings.back(),
              "--embeddings: 'model.embed_tokens.weight' is the output head as well, which is quantized with it (GGUF "
              "files only)");
    plan = resolve(*load_recipe("w4a16_nvfp4"), model.tensors, model.config);
    EXPECT_EQ(plan->tied_heads, std::vector<std::string>{"lm_head"});
}

TEST(Resolve, KvPresetsApplyAfterTheRecipe) {
    const auto model = small_model();
    for (const auto& [preset, format] : {std::pair{"fp8", KvFormat::fp8},
                                         {"fp8_cast", KvFormat::fp8_cast},
                                         {"nvfp4", KvFormat::nvfp4},
                                         {"nvfp4_cast", KvFormat::nvfp4_cast},
                                         {"none", KvFormat::none}}) {
        const auto plan =
            resolve(*load_recipe("general/ptq/nvfp4_default-kv_fp8"), model.tensors, model.config, {.kv = preset});
        ASSERT_TRUE(plan.ok()) << plan.error().message();
        EXPECT_EQ(plan->kv, format);
        EXPECT_EQ(plan->kv_layers.size(), format == KvFormat::none ? 0u : 1u);
    }
}

TEST(PlanText, HasOneLinePerTensorWithFormatAlgorithmGroupAndRule) {
    const auto model = small_model();
    const auto plan = resolve(*load_recipe("nvfp4_four_over_six"), model.tensors, model.config, {.kv = "fp8_cast"});
    ASSERT_TRUE(plan.ok());
    const std::string text = to_text(*plan);
    for (const PlanEntry& e : plan->entries) EXPECT_NE(text.find("\n" + e.tensor + " "), std::string::npos) << e.tensor;
    const size_t at = text.find("model.layers.0.self_attn.q_proj.weight");
    const std::string line = text.substr(at, text.find('\n', at) - at);
    for (const char* part :
         {"128x128", " nvfp4 ", "static/256 x{1,1.5}", "{q,kv}",
          "rule 2 '*weight_quantizer' (recipes/configs/ptq/units/w4a4_nvfp4_nvfp4_four_over_six.yaml:"})
        EXPECT_NE(line.find(part), std::string::npos) << part << " in " << line;
    EXPECT_NE(text.find("KV cache: fp8_cast\n"), std::string::npos);
    EXPECT_NE(text.find("needs activations: input_scale of 16 linears"), std::string::npos) << text;
}

TEST(Resolve, CompatNoneSharesScalesOnlyWhereEnginesNeedIt) {
    std::vector<CheckpointTensor> tensors;
    for (const char* expert : {"0", "1"})
        for (const char* leaf : {"gate_proj", "up_proj", "down_proj"})
            tensors.push_back(tensor(fmt::format("model.layers.0.mlp.experts.{}.{}.weight", expert, leaf), {64, 64}));
    const Json config{{"model_type", "qwen3_moe"}};
    const auto plan = [&](std::string_view preset, bool compat) {
        auto recipe = load_recipe(preset);
        EXPECT_TRUE(recipe.ok());
        auto resolved = resolve(*recipe, tensors, config, {.compat = compat});
        EXPECT_TRUE(resolved.ok());
        return *resolved;
    };
    const Plan fp8 = plan("fp8", true), fp8_none = plan("fp8", false);
    EXPECT_EQ(fp8.entries[0].scale_group, fp8.entries[1].scale_group);
    EXPECT_FALSE(fp8.entries[0].scale_group.empty());
    EXPECT_TRUE(fp8_none.entries[0].scale_group.empty());
    EXPECT_EQ(fp8.entries[0].input_group, fp8.entries[3].input_group);
    EXPECT_NE(fp8_none.entries[0].input_group, fp8_none.entries[3].input_group);
    EXPECT_EQ(fp8_none.entries[0].input_group, fp8_none.entries[1].input_group);

    const Plan tiles = plan("fp8_2d_blockwise_weight_only", true),
               tiles_none = plan("fp8_2d_blockwise_weight_only", false);
    EXPECT_FALSE(tiles.entries[0].scale_group.empty());
    EXPECT_TRUE(tiles_none.entries[0].scale_group.empty());

    const Plan nvfp4 = plan("w4a16_nvfp4", false);  // engines require this rule
    EXPECT_EQ(nvfp4.entries[0].scale_group, nvfp4.entries[1].scale_group);
    EXPECT_FALSE(nvfp4.entries[0].scale_group.empty());
}

TEST(Resolve, LayersBeyondNumHiddenLayersStayUnquantizedAndAreReported) {
    test::TensorList model = small_model();
    const std::vector<std::string> all = {on("*weight_quantizer", nvfp4)};
    const auto whole = plan_of(all, {}, "max", model);
    ASSERT_TRUE(whole.ok());
    for (const std::string& warning : whole->warnings) EXPECT_EQ(warning.find("num_hidden_layers"), warning.npos);
    model.config["num_hidden_layers"] = 1;
    const auto few = plan_of(all, {}, "max", model);
    ASSERT_TRUE(few.ok()) << few.error().message();
    ASSERT_FALSE(few->warnings.empty());
    EXPECT_EQ(
        few->warnings[0],
        "11 tensors (first: model.layers.1.mlp.experts.0.gate_proj.weight) belong to layers beyond num_hidden_layers, "
        "and config.json does not declare them (num_nextn_predict_layers): they stay unquantized");
    EXPECT_EQ(entry(*few, "model.layers.1.mlp.shared_experts.up_proj").spec.format, Format::none);
    EXPECT_EQ(entry(*few, "model.layers.0.mlp.up_proj").spec.format, Format::nvfp4);
    EXPECT_EQ(plan_of(all, {.strict = true}, "max", model).error().message(), few->warnings[0] + " (--strict)");
}

}  // namespace
}  // namespace nibble
