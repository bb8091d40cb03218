#include "quant/recipe.h"

#include "io/yaml.h"
#include "support/files.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

constexpr std::string_view schema = "# modelopt-schema: modelopt.torch.quantization.config.QuantizerCfgListConfig\n";

// Returns the error of a recipe file "r.yaml" with this text.
std::string error_of(std::string_view text) {
    const auto recipe = parse_recipe(text, "r.yaml");
    return recipe.ok() ? "no error" : recipe.error().message();
}

// Returns the error of a preset with one rule.
std::string error_of_rule(std::string_view rule) { return error_of("quant_cfg:\n  - " + std::string(rule)); }

TEST(Recipe, EveryPresetAndBuiltInRecipeLoads) {
    EXPECT_EQ(preset_names().size(), 29u);
    for (const std::string& name : preset_names()) {
        const auto recipe = load_recipe(name);
        ASSERT_TRUE(recipe.ok()) << recipe.error().message();
        EXPECT_GE(recipe->rules.size(), 3u) << name;
        EXPECT_EQ(recipe->rules[0].pattern, "*") << name;
        EXPECT_FALSE(recipe->rules[0].enable) << name;
    }
    for (const std::string& name : kv_preset_names()) EXPECT_TRUE(load_kv_rules(name).ok()) << name;
    for (const char* name : {"general/ptq/nvfp4_default-kv_fp8_cast", "general/ptq/nvfp4_default-kv_fp8_cast.yaml",
                             "huggingface/models/nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16/ptq/nvfp4-4o6",
                             "models/nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16/ptq/nvfp4-4o6"})
        EXPECT_TRUE(load_recipe(name).ok()) << name;
}

TEST(Recipe, AnUnknownNameIsAnErrorWithTheNearest) {
    const auto recipe = load_recipe("nvpf4");
    ASSERT_FALSE(recipe.ok());
    EXPECT_EQ(recipe.error().message(), "no recipe 'nvpf4'; did you mean 'nvfp4'? (`nibble recipes` lists them)");
    EXPECT_TRUE(load_kv_rules("fp9").error().message().starts_with("no KV cache preset 'fp9'; there are: none, fp8"));
    EXPECT_FALSE(load_kv_rules("../model/nvfp4").ok());
    EXPECT_FALSE(load_recipe("").ok());
}

TEST(Recipe, AttributesAreReadInEverySpelling) {
    const auto recipe = parse_recipe(R"(quant_cfg:
  - quantizer_name: '*weight_quantizer'
    cfg: {num_bits: [2, 1], block_sizes: {"-1": 16, type: static, scale_bits: e4m3, four_over_six: 1}, effective_bits: 4.5}
  - {quantizer_name: '*input_quantizer', cfg: {num_bits: e4m3, axis: , constant_amax: 2.5}, enable: false}
  - {quantizer_name: '*k', cfg: [{num_bits: 4, block_sizes: {-1: 128}}, {num_bits: e4m3, axis: [0, 1]}]}
  - {quantizer_name: '*v', cfg: {num_bits: e4m3, type: dynamic, block_sizes: {-1: }, use_constant_amax: yes}}
  - {quantizer_name: '*q', parent_class: nn.Linear, cfg: {rotate: true, unsigned: true, bias: {-2: , type: static}}}
algorithm: {method: mse, start_multiplier: 1, stop_multiplier: 1.5, step_size: 0.5, layerwise: {enable: false}}
)",
                                     "r.yaml");
    ASSERT_TRUE(recipe.ok()) << recipe.error().message();
    const auto& rules = recipe->rules;
    ASSERT_EQ(rules.size(), 5u);
    const QuantizerConfig& first = rules[0].cfg[0];
    EXPECT_TRUE(first.num_bits.is_float(2, 1) && first.scale_bits->is_float(4, 3) && first.four_over_six &&
                !first.dynamic_blocks);
    EXPECT_EQ(first.block_sizes.at(-1), 16);
    EXPECT_EQ(first.effective_bits, 4.5);
    EXPECT_FALSE(rules[1].enable);
    EXPECT_EQ(rules[1].cfg[0].constant_amax, 2.5f);
    EXPECT_EQ(rules[1].where, "r.yaml:4");
    ASSERT_EQ(rules[2].cfg.size(), 2u);
    EXPECT_EQ(rules[2].cfg[1].axis, (std::vector{0, 1}));
    EXPECT_TRUE(rules[3].cfg[0].dynamic && rules[3].cfg[0].use_constant_amax);
    EXPECT_EQ(rules[3].cfg[0].block_sizes.at(-1), std::nullopt);
    EXPECT_EQ(rules[4].parent_class, "nn.Linear");
    EXPECT_EQ(rules[4].cfg[0].unsupported, (std::vector<std::string>{"rotate", "unsigned", "bias"}));
    ASSERT_EQ(recipe->algorithms.size(), 1u);
    EXPECT_EQ(recipe->algorithms[0].method, Algorithm::Method::mse);
    EXPECT_EQ(recipe->algorithms[0].stop, 1.5f);
}

TEST(Recipe, AlgorithmsComeAsNameMappingListOrNothing) {
    const auto methods = [](std::string_view text) {
        std::string names;
        const auto recipe = parse_recipe(std::string(text) + "\nquant_cfg: []\n", "r.yaml");
        if (!recipe.ok()) return recipe.error().message();
        for (const Algorithm& a : recipe->algorithms) names += std::string(method_name(a.method)) + " ";
        return names;
    };
    EXPECT_EQ(methods(""), "max ");
    EXPECT_EQ(methods("algorithm:"), "none ");
    EXPECT_EQ(methods("algorithm: max"), "max ");
    EXPECT_EQ(methods("algorithm: {method: gptq, perc_damp: 0.01}"), "gptq ");
    EXPECT_EQ(methods("algorithm: {method: nibble_best, damping: 0.1, row_feedback: false}"), "nibble_best ");
    EXPECT_TRUE(methods("algorithm: {method: nibble_best, dampign: 0.1}")
                    .starts_with("r.yaml:1: algorithm 'nibble_best' has no option 'dampign'; it has: damping, "));
    EXPECT_EQ(methods("algorithm: {method: nibble_best, damping: -1}"), "r.yaml:1: damping must be between 0 and 1e6");
    EXPECT_EQ(methods("algorithm: {method: gptq, block_size: 0}"), "r.yaml:1: block_size must be positive");
    EXPECT_EQ(methods("algorithm: [max, {method: mse, fp8_scale_sweep: true}, ~]"), "max mse none ");
    EXPECT_TRUE(
        methods("algorithm: maximum").starts_with("r.yaml:1: algorithm 'maximum' is not known; known: max, mse, "));
    EXPECT_EQ(methods("algorithm: {method: max, step_size: 1}"), "r.yaml:1: algorithm 'max' has no option 'step_size'");
    EXPECT_EQ(methods("algorithm: {step_size: 1}"), "r.yaml:1: algorithm needs 'method'");
    EXPECT_TRUE(methods("algorithm: {method: mse, step_size: 0}")
                    .starts_with("r.yaml:1: mse multipliers from 0.25 to 4 in steps of 0: "));
}

TEST(Recipe, MistakesAreOneLineWithFileAndLine) {
    struct Case {
        std::string text, error;
    };
    const Case cases[] = {
        {"", "r.yaml: is empty"},
        {"[1, 2]", "r.yaml: a recipe is a mapping with 'metadata' and 'quantize'"},
        {"quantize: {quant_cfg: []}", "r.yaml: a recipe needs 'metadata' with 'recipe_type: ptq'"},
        {"metadata: {recipe_type: ptq}", "r.yaml: a recipe needs 'quantize' with 'quant_cfg'"},
        {"metadata: {recipe_type: ptq}\nquantize: {algorithm: max}", "r.yaml:2: no 'quant_cfg'"},
        {"metadata: {description: x}\nquantize: {quant_cfg: []}", "r.yaml:1: metadata needs 'recipe_type: ptq'"},
        {"metadata: {recipe_type: auto_quantize}\nquantize: {quant_cfg: []}",
         "r.yaml:1: recipe_type 'auto_quantize': only ptq recipes quantize a checkpoint"},
        {"metadata: {recipe_type: ptq}\nquantise: {}",
         "r.yaml:2: a recipe has no key 'quantise'; it has: metadata, quantize; did you mean 'quantize'?"},
        {"quant_cfg:\n  '*': {num_bits: 8}", "r.yaml:1: 'quant_cfg' must be a list of rules"},
        {"quant_cfg: []\nquant_cfg: []", "r.yaml:2: key 'quant_cfg' is given twice"},
        {"quant_cfg: [}", "r.yaml:1: not valid YAML: illegal flow end"},
        {"quant_cfg: !!python/object []", "r.yaml:1: tags are not allowed in a recipe"},
        {"quant_cfg: *nothing", "r.yaml:1: not valid YAML: the referenced anchor is not defined"},
        {"{[1]: 2}", "r.yaml:1: a key must be a word or a number"},
        {"a: 1\n---\nb: 1\n---\nc: 1", "r.yaml: 3 YAML documents; at most two (imports, body)"},
        {std::string("quant_cfg: []\0", 14), "r.yaml: holds a zero byte: not a text file"},
        {"imports: {x: no/such}\nquant_cfg: []", "r.yaml:1: no file 'no/such' to import: not built in"},
        {"quant_cfg:\n  - $import: x", "r.yaml:2: '$import: x' is not among the imports of this file (it has none)"},
        {"imports: {fp8: configs/numerics/fp8, all: configs/ptq/units/w8a8_fp8_fp8}\nquant_cfg:\n  - quantizer_name: "
         "a\n    cfg: {$import: all}",
         "r.yaml:4: '$import' inside a mapping needs a mapping; recipes/configs/ptq/units/w8a8_fp8_fp8.yaml:6 is not "
         "one"},
    };
    for (const Case& c : cases) EXPECT_EQ(error_of(c.text), c.error) << c.text;
}

TEST(Recipe, MistakesInRulesAreOneLineWithFileAndLine) {
    struct Case {
        std::string rule, error;
    };
    const Case cases[] = {
        {"5", "r.yaml:2: a rule must be a mapping, not '5'"},
        {"{enable: false}", "r.yaml:2: a rule needs 'quantizer_name'"},
        {"{quantizer_name: a}", "r.yaml:2: rule 'a' needs 'cfg' or 'enable'"},
        {"{quantizer_name: a, cfg: {}}", "r.yaml:2: rule 'a' is enabled, but its cfg is empty"},
        {"{quantizer_name: a, cfg: {enable: true}}", "r.yaml:2: rule 'a' is enabled, but its cfg is empty"},
        {"{quantizer_name: a, cfg: []}", "r.yaml:2: rule 'a' has an empty list as cfg"},
        {"{quantizer_name: a, enabled: false}",
         "r.yaml:2: a rule has no key 'enabled'; it has: quantizer_name, parent_class, cfg, enable; did you mean "
         "'enable'?"},
        {"{quantizer_name: a, enable: 0}", "r.yaml:2: enable must be true or false, not '0'"},
        {"{quantizer_name: a, enable: 'true'}", "r.yaml:2: enable must be true or false, not 'true'"},
        {"{quantizer_name: [a], enable: true}", "r.yaml:2: quantizer_name must be one line of text, not a list"},
        {"{quantizer_name: \"a\\nb\", enable: true}", "r.yaml:2: quantizer_name must be one line of text, not 'a b'"},
        {"{\"a\\nb\": 1}", "r.yaml:2: a key is too long or holds control characters"},
        {"{quantizer_name: a, cfg: {num_bits: fp4}}", "r.yaml:2: num_bits must be a number of bits or eXmY, not 'fp4'"},
        {"{quantizer_name: a, cfg: {num_bits: [4]}}", "r.yaml:2: num_bits as a list is [exponent bits, mantissa bits]"},
        {"{quantizer_name: a, cfg: {num_bits: 0}}", "r.yaml:2: num_bits must be between 1 and 32, not 0"},
        {"{quantizer_name: a, cfg: {block_sizes: {-1: 0}}}", "r.yaml:2: a block size must be positive, not 0"},
        {"{quantizer_name: a, cfg: {block_sizes: {-1: 16, kind: static}}}",
         "r.yaml:2: block_sizes has no key 'kind'; it has: axis numbers, type, scale_bits, scale_block_sizes, "
         "four_over_six"},
        {"{quantizer_name: a, cfg: {block_sizes: {-1: 16, type: both}}}",
         "r.yaml:2: block_sizes.type must be static or dynamic, not 'both'"},
        {"{quantizer_name: a, cfg: {axis: 0, block_sizes: {-1: 16}}}",
         "r.yaml:2: cfg has both 'axis' and 'block_sizes'; a quantizer accepts only one of them"},
        {"{quantizer_name: a, cfg: {use_constant_amax: true, constant_amax: 1}}",
         "r.yaml:2: cfg has both 'use_constant_amax' and 'constant_amax'; a quantizer accepts only one of them"},
        {"{quantizer_name: a, cfg: {constant_amax: -1}}", "r.yaml:2: constant_amax must be positive and finite"},
        {"{quantizer_name: a, cfg: {constant_amax: .inf}}", "r.yaml:2: constant_amax must be a number, not '.inf'"},
    };
    for (const Case& c : cases) EXPECT_EQ(error_of_rule(c.rule), c.error) << c.rule;
}

class Imports : public testing::Test {
protected:
    void put(const std::string& path, std::string_view text) {
        std::filesystem::create_directories((dir_ / path).parent_path());
        test::write_file(dir_ / path, text);
    }
    Result<Recipe> load(const std::string& path) { return load_recipe((dir_ / path).string()); }
    std::string error(const std::string& path) {
        const auto recipe = load(path);
        if (recipe.ok()) return "no error";
        std::string text = recipe.error().message();  // without the temporary folder
        for (size_t at; (at = text.find(dir_.path().string() + "/")) != std::string::npos;)
            text.erase(at, dir_.path().string().size() + 1);
        return text;
    }
    test::TempDir dir_;
};

TEST_F(Imports, MappingsMergeOneLevelAndListsAreSpliced) {
    put("numerics.yaml",
        std::string(schema) + "num_bits: e2m1\nblock_sizes: {-1: 16, type: static, scale_bits: e4m3}\n");
    put("wide.yaml", std::string(schema) + "block_sizes: {-1: 32}\neffective_bits: 4\n");
    put("unit.yaml", std::string(schema) +
                         "imports: {n: numerics}\n---\n- {quantizer_name: a, cfg: {$import: n}}\n- {quantizer_name: b, "
                         "enable: false}\n");
    put("one.yaml", std::string(schema) + "quantizer_name: c\nenable: false\n");
    put("recipes/deep/r.yaml", R"(imports: {n: numerics, wide: wide, unit: unit, one: one}
metadata: {recipe_type: ptq, description: a test}
quantize:
  quant_cfg:
    - $import: [unit, one]
    - {quantizer_name: d, cfg: {$import: [n, wide], num_bits: e4m3}}
    - quantizer_name: e
      cfg: [{$import: n}, $import: wide]
)");
    const auto recipe = load("recipes/deep/r");
    ASSERT_TRUE(recipe.ok()) << recipe.error().message();
    EXPECT_EQ(recipe->description, "a test");
    std::string names;
    for (const Rule& rule : recipe->rules) names += rule.pattern + (rule.imported ? "+" : "") + " ";
    EXPECT_EQ(names, "a+ b+ c+ d e ");
    const QuantizerConfig& d = recipe->rules[3].cfg[0];
    EXPECT_TRUE(d.num_bits.is_float(4, 3)) << "inline keys win";
    EXPECT_EQ(d.block_sizes.at(-1), 32) << "later aliases win";
    EXPECT_FALSE(d.scale_bits) << "a merged block_sizes is replaced whole";
    EXPECT_EQ(d.effective_bits, 4);
    EXPECT_EQ(recipe->rules[4].cfg.size(), 2u);
}

TEST_F(Imports, BuiltInFilesHavePriorityOverFilesOfTheRecipesFolder) {
    put("configs/numerics/fp8.yaml", std::string(schema) + "num_bits: e5m2\n");
    put("r.yaml", "imports: {fp8: configs/numerics/fp8}\nquant_cfg:\n  - {quantizer_name: a, cfg: {$import: fp8}}\n");
    const auto recipe = load("r.yaml");
    ASSERT_TRUE(recipe.ok()) << recipe.error().message();
    EXPECT_TRUE(recipe->rules[0].cfg[0].num_bits.is_float(4, 3));
}

TEST_F(Imports, ACycleIsNamed) {
    put("a.yaml", std::string(schema) + "imports: {b: b}\nquant_cfg: [{$import: b}]\n");
    put("b.yaml", std::string(schema) + "imports: {c: c}\n---\n- $import: c\n");
    put("c.yaml", std::string(schema) + "imports: {b: b}\n---\n- $import: b\n");
    EXPECT_EQ(error("a"), "import cycle: a.yaml -> b.yaml -> c.yaml -> b.yaml");
    put("self.yaml", std::string(schema) + "imports: {me: self}\nquant_cfg: [{$import: me}]\n");
    EXPECT_EQ(error("self.yaml"), "import cycle: self.yaml -> self.yaml");
}

TEST_F(Imports, FilesWithoutTheSchemaCommentAreRefused) {
    put("unit.yaml", "- {quantizer_name: a, enable: false}\n");
    put("r.yaml", "imports: {unit: unit}\nquant_cfg: [{$import: unit}]\n");
    EXPECT_EQ(error("r"), "unit.yaml: an imported file needs a comment '# modelopt-schema: TYPE'");
}

TEST_F(Imports, ChainsThatDoubleStopAtALimit) {
    put("f0.yaml", std::string(schema) + "- {quantizer_name: a, enable: false}\n");
    for (int i = 1; i <= 14; ++i)
        put(fmt::format("f{}.yaml", i),
            fmt::format("{}imports: {{x: f{}}}\n---\n- $import: [x, x, x, x]\n", schema, i - 1));
    put("r.yaml", "imports: {x: f14}\nquant_cfg: [{$import: x}]\n");
    EXPECT_EQ(error("r"), "f9.yaml:4: imports expand to too many values");
}

TEST_F(Imports, LongChainsAndLargeFilesStopAtALimit) {
    put("f0.yaml", std::string(schema) + "[]");
    for (int i = 1; i <= 20; ++i)
        put(fmt::format("f{}.yaml", i), fmt::format("{}imports: {{x: f{}}}\n---\n[]\n", schema, i - 1));
    put("r.yaml", "imports: {x: f20}\nquant_cfg: []\n");
    EXPECT_EQ(error("r"), "f5.yaml: imports nested deeper than 16 files");
    put("large.yaml", std::string(max_yaml_bytes + 1, '#'));
    EXPECT_EQ(error("large"), "large.yaml: 262145 bytes; a recipe has at most 262144");
}

TEST_F(Imports, AFolderOfTwoFilesIsARecipe) {
    put("r/metadata.yaml", "recipe_type: ptq\ndescription: two files\n");
    EXPECT_EQ(error("r"), "r: a recipe folder holds metadata.yaml and quantize.yaml");
    put("r/quantize.yaml", "imports: {preset: configs/ptq/presets/model/fp8}\n$import: preset\n");
    const auto recipe = load("r");
    ASSERT_TRUE(recipe.ok()) << recipe.error().message();
    EXPECT_EQ(recipe->description, "two files");
    EXPECT_EQ(recipe->rules.size(), load_recipe("fp8")->rules.size());
}

// Names as other programs and users spell them.
TEST(RecipeNames, LeadToTheRecipesOfThatKind) {
    for (const auto& [name, hint] :
         {std::pair{"gptq", "recipes of that kind: nvfp4_gptq, w4a16_int4_gptq, w4a16_nvfp4_gptq"},
          {"GPTQ", "recipes of that kind: nvfp4_gptq, w4a16_int4_gptq, w4a16_nvfp4_gptq"},
          {"awq", "recipes of that kind: nvfp4_awq_lite, w4a16_int4_awq_lite, w4a16_nvfp4_awq_lite"},
          {"nvfp4-awq", "recipes of that kind: nvfp4_awq_lite, w4a16_nvfp4_awq_lite"},
          {"nvfp4_AWQ", "recipes of that kind: nvfp4_awq_lite, w4a16_nvfp4_awq_lite"},
          {"awq_int4", "recipes of that kind: w4a16_int4_awq_lite"},
          {"int4", "recipes of that kind: w4a16_int4, w4a16_int4_gptq, w4a16_int4_awq_lite"},
          {"4bit", "recipes of that kind: w4a16_int4, w4a16_nvfp4"},
          {"w4a16", "recipes of that kind: w4a16_int4, w4a16_nvfp4"},
          {"int8", "recipes of that kind: fp8"},
          {"w8a8", "recipes of that kind: fp8"},
          {"fp4", "recipes of that kind: mxfp4, nvfp4"},
          {"blockwise", "recipes of that kind: fp8_2d_blockwise_weight_only"},
          {"nvfp4_gpqt", "did you mean 'nvfp4_gptq'?"},
          {"mxfp9", "did you mean 'mxfp"}}) {
        const auto found = check_recipe_name(name);
        ASSERT_FALSE(found.ok()) << name;
        EXPECT_NE(found.error().message().find(hint), std::string::npos) << found.error().message();
    }
    for (const auto& [name, preset] : {std::pair{"NVFP4", "nvfp4"},
                                       {"nvfp4-awq-lite", "nvfp4_awq_lite"},
                                       {"NVFP4_DEFAULT_CFG", "nvfp4"},
                                       {"w4a16-nvfp4", "w4a16_nvfp4"}})
        EXPECT_EQ(*check_recipe_name(name), preset);
}

TEST(RecipeYaml, AliasesExpandUpToALimit) {
    std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
    for (int i = 1; i < 8; ++i)
        bomb += fmt::format("a{0}: &a{0} [*a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}]\n", i, i - 1);
    EXPECT_TRUE(error_of(bomb).ends_with("more than 100000 values")) << error_of(bomb);
    EXPECT_NE(error_of("a: &a [*a]\n"), "no error");
    EXPECT_NE(error_of(std::string(10'000, '[')), "no error");
    EXPECT_EQ(error_of(test::read_file(test::test_data("../fuzz/corpus/recipe/endless_documents"))),
              "r.yaml: more than 8 YAML documents")
        << "found by the fuzzer";
    const auto recipe = parse_recipe(
        "quant_cfg:\n  - {quantizer_name: a, cfg: &c {num_bits: e4m3}}\n  - {quantizer_name: b, cfg: *c}\n", "r.yaml");
    ASSERT_TRUE(recipe.ok());
    EXPECT_EQ(recipe->rules[0].cfg, recipe->rules[1].cfg);
}

}  // namespace
}  // namespace nibble
