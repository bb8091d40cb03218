// Compares plans with Model Optimizer's output for the same model and configuration: the whole golden set if it is
// available, three of them in tests/data/plans always.
#include "quant/golden.h"
#include "quant/models.h"
#include "quant/resolve.h"
#include "support/files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

namespace nibble {
namespace {

namespace fs = std::filesystem;

// Model Optimizer's output for one module.
struct Written {
    Format format = Format::none;
    bool input_scale = false;
    std::string input, scale;  // values in hexadecimal; empty: not stored, or not scalar
};

struct Case {
    std::string name, recipe, kv;
    std::string quant_cfg;  // Model Optimizer's configuration as text; may be empty
    test::TensorList model;
    std::map<std::string, Written> written;        // by module
    std::set<std::string> kv_scales;               // tensor names
    std::optional<std::set<std::string>> exclude;  // no value: mixed precision
    bool fp8_kv = false;
};

std::string module_of(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }

Case golden_case(const fs::path& file, const fs::path& model, const test::GoldenPreset& preset) {
    Case c{file.stem().string(), preset.recipe, preset.kv};
    c.model = test::read_model(model);
    const Json golden = *read_json_file(file);
    c.quant_cfg = golden["quant_cfg"].dump();
    struct Stored {
        std::string dtype;
        size_t dimensions;
        std::string value;
    };
    std::map<std::string, Stored> tensors;
    for (const Json& t : golden["tensors"]) tensors[t["name"]] = {t["dtype"], t["shape"].size(), t.value("hex", "")};
    for (const auto& [name, scale] : tensors) {
        if (name.ends_with(".k_scale") || name.ends_with(".v_scale")) c.kv_scales.insert(name);
        if (!name.ends_with(".weight_scale")) continue;
        const std::string module = module_of(name);
        Written& w = c.written[module];
        if (tensors.at(module + ".weight").dtype == "U8")
            w.format = scale.dtype == "F8_E4M3" ? Format::nvfp4 : Format::mxfp4;
        else if (scale.dtype == "U8")
            w.format = Format::mxfp8;
        else if (preset.recipe.starts_with("fp8_2d"))  // the scale of a single tile has no dimensions
            w.format = Format::fp8_block128;
        else
            w.format = scale.dimensions == 1 ? Format::fp8_row : Format::fp8;
        if (w.format == Format::fp8) w.scale = scale.value;
        if (const auto second = tensors.find(module + ".weight_scale_2"); second != tensors.end())
            w.scale = second->second.value;
        if (const auto input = tensors.find(module + ".input_scale"); input != tensors.end()) {
            w.input_scale = true;
            w.input = input->second.value;
        }
    }
    const Json& json = golden["hf_quant_config"]["quantization"];
    c.fp8_kv = json["kv_cache_quant_algo"] == "FP8";
    if (json.contains("exclude_modules")) c.exclude = json["exclude_modules"].get<std::set<std::string>>();
    return c;
}

std::vector<Case> golden_cases(const fs::path& root) {
    std::vector<Case> cases;
    for (const auto& item : fs::directory_iterator(root / "modelopt")) {
        const std::string stem = item.path().stem().string();
        const size_t dashes = stem.find("--");
        if (item.path().extension() != ".json" || dashes == std::string::npos) continue;
        const fs::path folder = root / "models" / stem.substr(0, dashes);
        const auto preset = test::golden_preset(stem.substr(dashes + 2));
        if (fs::exists(folder) && preset) cases.push_back(golden_case(item.path(), folder, *preset));
    }
    return cases;
}

std::vector<std::string> split(const std::string& text, char by) {
    std::vector<std::string> parts;
    std::istringstream in(text);
    for (std::string part; std::getline(in, part, by);) parts.push_back(part);
    if (text.ends_with(by)) parts.emplace_back();
    return parts;
}

Case small_case(const fs::path& file) {
    Case c{file.stem().string()};
    std::istringstream in(test::read_file(file));
    for (std::string line; std::getline(in, line);) {
        if (line.starts_with('#')) continue;
        const auto f = split(line, '\t');
        if (f[0] == "recipe")
            c.recipe = f[1];
        else if (f[0] == "kv")
            c.kv = f[1];
        else if (f[0] == "kv_algo")
            c.fp8_kv = f[1] == "FP8";
        else if (f[0] == "config")
            c.model.config = *parse_json(f[1]);
        else if (f[0] == "exclude") {
            if (f[1] == "-") continue;
            const auto names = split(f[1], ' ');
            c.exclude = std::set(names.begin(), names.end());
        } else {
            std::vector<int64_t> shape;
            for (const std::string& d : split(f[1], 'x')) shape.push_back(std::stoll(d));
            c.model.tensors.push_back(test::tensor(f[0], shape, *dtype_from_name(f[2])));
            if (f[3] == "none") continue;
            c.written[module_of(f[0])] = {*format_from_name(f[3]), f[4] != "-", f[4] == "-" ? "" : f[4],
                                          f[5] == "-" ? "" : f[5]};
        }
    }
    return c;
}

std::vector<Case> small_cases() {
    std::vector<Case> cases;
    for (const auto& item : fs::directory_iterator(test::test_data("plans"))) cases.push_back(small_case(item.path()));
    return cases;
}

// Implements the rule of compress_exclude_modules() independently.
std::set<std::string> compressed(const std::set<std::string>& excluded, const std::set<std::string>& quantized) {
    std::set<std::string> out;
    for (const std::string& name : excluded) {
        std::string chosen = name;
        for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
            const std::string p = name.substr(0, dot);
            const bool wide =
                std::none_of(quantized.begin(), quantized.end(), [&](const auto& q) { return q.starts_with(p); });
            const bool below = std::none_of(quantized.begin(), quantized.end(),
                                            [&](const auto& q) { return q == p || q.starts_with(p + "."); });
            if (!wide && !below) continue;
            chosen = wide ? p + "*" : p + ".*";
            break;
        }
        out.insert(chosen);
    }
    return out;
}

void expect_formats(const Plan& plan, const Case& c) {
    ASSERT_EQ(plan.entries.size(), c.model.tensors.size());
    size_t quantized = 0;
    for (const PlanEntry& e : plan.entries) {
        const auto found = c.written.find(e.module);
        const Written want = e.tensor.ends_with(".weight") && found != c.written.end() ? found->second : Written{};
        EXPECT_EQ(format_name(e.spec.format), format_name(want.format)) << e.tensor << ": " << e.reason;
        EXPECT_EQ(stores_input_scale(e.activation), want.input_scale) << e.tensor;
        quantized += e.spec.format != Format::none;
    }
    EXPECT_EQ(quantized, c.written.size());
}

// Checks that members of a group have one value, and that siblings with one value are in a group.
void expect_groups(const Plan& plan, const Case& c, std::string PlanEntry::*key, std::string Written::*value) {
    std::map<std::string, std::set<std::string>> values;  // values of each group
    // groups by (parent, value)
    std::map<std::pair<std::string, std::string>, std::set<std::string>> siblings;
    for (const PlanEntry& e : plan.entries) {
        const auto found = c.written.find(e.module);
        if (found == c.written.end() || e.spec.format == Format::none || (found->second.*value).empty()) continue;
        if (!(e.*key).empty()) values[e.*key].insert(found->second.*value);
        // BF16 maxima of FP8 weights are sometimes equal by chance.
        if (e.spec.format == Format::fp8 && value == &Written::scale) continue;
        siblings[{module_of(e.module), found->second.*value}].insert((e.*key).empty() ? e.module : e.*key);
    }
    for (const auto& [group, set] : values) EXPECT_EQ(set.size(), 1u) << group;
    for (const auto& [at, groups] : siblings) EXPECT_EQ(groups.size(), 1u) << at.first << " " << *groups.begin();
}

void expect_kv(const Plan& plan, const Case& c) {
    EXPECT_EQ(kv_name(plan.kv), kv_name(c.fp8_kv ? KvFormat::fp8 : KvFormat::none));
    std::set<std::string> scales;
    for (const std::string& layer : plan.kv_layers)
        scales.insert({layer + ".k_proj.k_scale", layer + ".v_proj.v_scale"});
    if (!c.kv_scales.empty() || !c.fp8_kv) {
        EXPECT_EQ(scales, c.kv_scales);
    }
}

void expect_exclude(const Plan& plan, const Case& c) {
    std::set<std::string> excluded(plan.tied_heads.begin(), plan.tied_heads.end()), quantized;
    for (const PlanEntry& e : plan.entries) {
        EXPECT_FALSE(e.listed_module && e.spec.format != Format::none) << e.tensor;
        if (e.listed_module) excluded.insert(e.module);
        if (e.spec.format != Format::none) quantized.insert(e.module);
    }
    if (c.exclude) {
        EXPECT_EQ(compressed(excluded, quantized), *c.exclude);
    }
}

void expect_golden(const Case& c) {
    SCOPED_TRACE(c.name);
    const auto recipe = load_recipe(c.recipe);
    ASSERT_TRUE(recipe.ok()) << recipe.error().message();
    const auto plan = resolve(*recipe, c.model.tensors, c.model.config, {.kv = c.kv});
    ASSERT_TRUE(plan.ok()) << plan.error().message();
    expect_formats(*plan, c);
    expect_groups(*plan, c, &PlanEntry::scale_group, &Written::scale);
    // Models with experts have siblings with the same inputs that are not fused (a shared expert and a projection).
    if (c.recipe.find("mamba") == std::string::npos && !c.name.starts_with("nemotron_h"))
        expect_groups(*plan, c, &PlanEntry::input_group, &Written::input);
    expect_kv(*plan, c);
    expect_exclude(*plan, c);
}

TEST(GoldenPlan, SmallCasesHaveTheFormatsGroupsAndExcludedModulesThatWereWritten) {
    const auto cases = small_cases();
    EXPECT_EQ(cases.size(), 3u);
    for (const Case& c : cases) expect_golden(c);
}

TEST(GoldenPlan, AllCasesHaveTheFormatsGroupsAndExcludedModulesThatWereWritten) {
    const std::filesystem::path root = test::test_data("golden");
    const auto cases = golden_cases(root);
    EXPECT_GE(cases.size(), 40u);
    for (const Case& c : cases) expect_golden(c);
}

TEST(GoldenPlan, TheFlatConfigurationOfEachCaseGivesThePlanOfItsPreset) {
    const std::filesystem::path root = test::test_data("golden");
    for (const Case& c : golden_cases(root)) {
        SCOPED_TRACE(c.name);
        const auto flat = parse_recipe(c.quant_cfg, "quant_cfg.json");
        ASSERT_TRUE(flat.ok()) << flat.error().message();
        const auto a = resolve(*flat, c.model.tensors, c.model.config);
        const auto b = resolve(*load_recipe(c.recipe), c.model.tensors, c.model.config, {.kv = c.kv});
        ASSERT_TRUE(a.ok() && b.ok()) << (a.ok() ? b : a).error().message();
        for (size_t i = 0; i < a->entries.size(); ++i) {
            EXPECT_EQ(a->entries[i].spec, b->entries[i].spec) << a->entries[i].tensor;
            EXPECT_EQ(a->entries[i].activation, b->entries[i].activation) << a->entries[i].tensor;
        }
        EXPECT_EQ(a->kv, b->kv);
    }
}

}  // namespace
}  // namespace nibble
