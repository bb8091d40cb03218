// Model Optimizer's own recipe files, if available: NIBBLE_PUBLISHED_RECIPES is the folder modelopt_recipes of its
// package, NIBBLE_FLAT_RECIPES the output of tests/oracles/flatten_recipes.py.
#include "quant/models.h"
#include "quant/resolve.h"
#include "support/files.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

namespace nibble {
namespace {

namespace fs = std::filesystem;

std::string rule_text(const Rule& rule) {
    std::string text = fmt::format("{} {} {}", rule.pattern, rule.parent_class, rule.enable);
    for (const QuantizerConfig& c : rule.cfg) {
        text += fmt::format(" [{} axis {} dynamic {}/{} scale {} 4/6 {} constant {} {} bits {}", to_string(c.num_bits),
                            c.axis ? static_cast<int>(c.axis->size()) : -1, c.dynamic, c.dynamic_blocks,
                            c.scale_bits ? to_string(*c.scale_bits) : "-", c.four_over_six, c.use_constant_amax,
                            c.constant_amax.value_or(0), c.effective_bits.value_or(0));
        for (const auto& [axis, size] : c.block_sizes) text += fmt::format(" {}:{}", axis, size.value_or(-1));
        for (const std::string& name : c.unsupported) text += " !" + name;
        text += "]";
    }
    return text;
}

std::string rules_text(const Recipe& recipe) {
    std::string text;
    for (const Rule& rule : recipe.rules) text += rule_text(rule) + "\n";
    for (const Algorithm& a : recipe.algorithms)
        text += fmt::format("{} {} {} {} {}\n", method_name(a.method), a.start, a.stop, a.step, a.fp8_scale_sweep);
    return text;
}

TEST(PublishedRecipes, EveryFileFlattensAsByAnIndependentLoader) {
    const char* tree = std::getenv("NIBBLE_PUBLISHED_RECIPES");
    const char* flat = std::getenv("NIBBLE_FLAT_RECIPES");
    if (!tree || !flat) GTEST_SKIP() << "no published recipes (set NIBBLE_PUBLISHED_RECIPES and NIBBLE_FLAT_RECIPES)";
    int files = 0;
    for (const auto& item : fs::recursive_directory_iterator(flat)) {
        if (item.path().extension() != ".json") continue;
        const fs::path path = fs::relative(item.path(), flat).replace_extension(".yaml");
        SCOPED_TRACE(path.string());
        const auto want = parse_recipe(test::read_file(item.path()), "flat.json");
        const auto got = load_recipe((fs::path(tree) / path).string());
        ASSERT_EQ(got.ok(), want.ok()) << (got.ok() ? want : got).error().message();
        if (!got.ok()) {
            std::printf("refused  %-90s %s\n", path.c_str(), got.error().message().c_str());
            continue;
        }
        ++files;
        EXPECT_EQ(rules_text(*got), rules_text(*want));
    }
    EXPECT_GE(files, 40);
}

TEST(PublishedRecipes, OurPresetsGiveThePlansOfThePublishedOnes) {
    const std::filesystem::path models = test::test_data("golden/models");
    const char* flat = std::getenv("NIBBLE_FLAT_RECIPES");
    if (!flat) GTEST_SKIP() << "no published recipes (set NIBBLE_FLAT_RECIPES)";
    int plans = 0;
    for (const std::string& preset : preset_names()) {
        const auto theirs = parse_recipe(
            test::read_file(fs::path(flat) / "configs/ptq/presets/model" / (preset + ".json")), "flat.json");
        ASSERT_TRUE(theirs.ok()) << theirs.error().message();
        for (const auto& folder : fs::directory_iterator(models)) {
            SCOPED_TRACE(preset + " on " + folder.path().filename().string());
            const test::TensorList model = test::read_model(folder.path());
            const auto a = resolve(*load_recipe(preset), model.tensors, model.config);
            const auto b = resolve(*theirs, model.tensors, model.config);
            ASSERT_EQ(a.ok(), b.ok()) << (a.ok() ? b : a).error().message();
            if (!a.ok()) continue;
            ++plans;
            for (size_t i = 0; i < a->entries.size(); ++i) {
                EXPECT_EQ(a->entries[i].spec, b->entries[i].spec) << a->entries[i].tensor;
                EXPECT_EQ(a->entries[i].activation, b->entries[i].activation) << a->entries[i].tensor;
            }
            EXPECT_EQ(a->kv, b->kv);
        }
    }
    EXPECT_GE(plans, 100);
}

TEST(PublishedRecipes, PrintThePlansOfEachFileForTheTinyModels) {
    const std::filesystem::path models = test::test_data("golden/models");
    const char* tree = std::getenv("NIBBLE_PUBLISHED_RECIPES");
    if (!tree) GTEST_SKIP() << "no published recipes (set NIBBLE_PUBLISHED_RECIPES)";
    std::set<std::string> lines;
    for (const auto& item : fs::recursive_directory_iterator(tree)) {
        const std::string path = fs::relative(item.path(), tree).string();
        if (item.path().extension() != ".yaml" || path.find("ptq/") == std::string::npos ||
            path.find("units/") != std::string::npos)
            continue;
        const auto recipe = load_recipe(item.path().string());
        if (!recipe.ok()) {
            lines.insert(fmt::format("{}: not loaded: {}", path, recipe.error().message()));
            continue;
        }
        int good = 0;
        std::set<std::string> why;
        for (const auto& folder : fs::directory_iterator(models)) {
            const test::TensorList model = test::read_model(folder.path());
            const auto plan = resolve(*recipe, model.tensors, model.config);
            good += plan.ok();
            if (!plan.ok()) why.insert(plan.error().message());
        }
        lines.insert(fmt::format("{}: plans for {} models{}", path, good, why.empty() ? "" : "; else " + *why.begin()));
    }
    for (const std::string& line : lines) std::printf("%s\n", line.c_str());
    EXPECT_GE(lines.size(), 60u);
}

}  // namespace
}  // namespace nibble
