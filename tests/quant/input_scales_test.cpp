#include "quant/input_scales.h"

#include "quant/fakes.h"

#include <gtest/gtest.h>

#include <bit>

namespace nibble::test {
namespace {

Plan attention_plan(ActivationFormat activation, KvFormat kv = KvFormat::none) {
    Plan plan{.recipe = "test", .kv = kv};
    for (const char* letter : {"q", "k", "v", "o"}) {
        const std::string module = std::string("l.0.self_attn.") + letter + "_proj";
        PlanEntry e{.tensor = module + ".weight",
                    .module = module,
                    .shape = {16, 16},
                    .spec = {Format::nvfp4},
                    .activation = activation};
        if (*letter != 'o') e.input_group = "{qkv}";
        plan.entries.push_back(e);
    }
    plan.entries.push_back({.tensor = "norm.weight", .module = "norm", .shape = {16}});
    plan.kv_layers = {"l.0.self_attn"};
    return plan;
}

ScaleTable table(std::map<std::string, float, std::less<>> values) { return {"table", std::move(values)}; }

TEST(InputScales, AreReadExactly) {
    const float odd = std::bit_cast<float>(0x3b1ddb5fu);
    TempDir dir;
    Json json = Json::object();
    for (const char* letter : {"q", "k", "v", "o"})
        json[std::string("l.0.self_attn.") + letter + "_proj.input_scale"] = odd;
    write_file(dir / "scales.json", json.dump());
    const auto read = read_scale_table(dir / "scales.json");
    ASSERT_TRUE(read.ok()) << read.error().message();
    const auto scales = resolve_activation_scales(attention_plan(ActivationFormat::nvfp4), &*read);
    ASSERT_TRUE(scales.ok()) << scales.error().message();
    for (int i = 0; i < 4; ++i) EXPECT_EQ(std::bit_cast<uint32_t>(*scales->input[static_cast<size_t>(i)]), 0x3b1ddb5fu);
    EXPECT_FALSE(scales->input[4].has_value());
    EXPECT_TRUE(scales->warnings.empty());
}

TEST(InputScales, MissingOnesAreNamedWithTheNextStep) {
    const auto none = resolve_activation_scales(attention_plan(ActivationFormat::fp8), nullptr);
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.error().message(),
              "the plan needs 4 activation scales (l.0.self_attn.q_proj.input_scale, l.0.self_attn.k_proj.input_scale, "
              "l.0.self_attn.v_proj.input_scale, ...); calibrate with --calib, give them with --input-scales, or drop "
              "the quantizers with "
              "--weights-only");
    const auto some = table({{"l.0.self_attn.q_proj.input_scale", 1.0f},
                             {"l.0.self_attn.k_proj.input_scale", 1.0f},
                             {"l.0.self_attn.v_proj.input_scale", 1.0f}});
    const auto one = resolve_activation_scales(attention_plan(ActivationFormat::fp8), &some);
    ASSERT_FALSE(one.ok());
    EXPECT_TRUE(
        one.error().message().starts_with("table lacks 1 activation scale (l.0.self_attn.o_proj.input_scale);"));
}

TEST(InputScales, FormatsWithoutStoredScalesNeedNone) {
    for (const auto activation : {ActivationFormat::none, ActivationFormat::fp8_token, ActivationFormat::mxfp8})
        EXPECT_TRUE(resolve_activation_scales(attention_plan(activation, KvFormat::fp8_cast), nullptr).ok());
}

TEST(InputScales, ARecipesConstantAmaxNeedsNoTable) {
    Plan plan = attention_plan(ActivationFormat::nvfp4);
    for (PlanEntry& e : plan.entries) e.constant_input_amax = 448.0f;
    auto scales = resolve_activation_scales(plan, nullptr);
    ASSERT_TRUE(scales.ok());
    EXPECT_EQ(*scales->input[0], 448.0f * (1.0f / 2688.0f));
    for (PlanEntry& e : plan.entries) {
        e.activation = ActivationFormat::fp8;
        e.spec.arithmetic = Arithmetic::true_division;
    }
    scales = resolve_activation_scales(plan, nullptr);
    ASSERT_TRUE(scales.ok());
    EXPECT_EQ(*scales->input[0], 1.0f);
}

TEST(InputScales, AMaximumBecomesTheScaleOfThePlansFormat) {
    TempDir dir;
    write_file(dir / "amax.json",
               std::string_view(R"({"l.0.self_attn.q_proj.input_amax": 448, "l.0.self_attn.k_proj.input_amax": 448,
        "l.0.self_attn.v_proj.input_amax": 448, "l.0.self_attn.o_proj.input_amax": 0})"));
    const auto read = read_scale_table(dir / "amax.json");
    ASSERT_TRUE(read.ok()) << read.error().message();
    auto scales = resolve_activation_scales(attention_plan(ActivationFormat::nvfp4), &*read);
    ASSERT_TRUE(scales.ok()) << scales.error().message();
    EXPECT_EQ(*scales->input[0], 448.0f * (1.0f / 2688.0f));
    EXPECT_EQ(*scales->input[3], 6.0f * (1.0f / 2688.0f)) << "an input that was always zero";
    EXPECT_TRUE(scales->warnings.empty());
    scales = resolve_activation_scales(attention_plan(ActivationFormat::fp8), &*read);
    ASSERT_TRUE(scales.ok());
    EXPECT_EQ(*scales->input[3], 448.0f * (1.0f / 448.0f));
}

TEST(InputScales, FusedLinearsGetTheLargestAndAWarning) {
    const auto values = table({{"l.0.self_attn.q_proj.input_scale", 1.0f},
                               {"l.0.self_attn.k_proj.input_scale", 3.0f},
                               {"l.0.self_attn.v_proj.input_scale", 2.0f},
                               {"l.0.self_attn.o_proj.input_scale", 0.5f}});
    const auto scales = resolve_activation_scales(attention_plan(ActivationFormat::nvfp4), &values);
    ASSERT_TRUE(scales.ok());
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(*scales->input[i], 3.0f);
    EXPECT_EQ(*scales->input[3], 0.5f);
    EXPECT_EQ(scales->warnings.size(), 2u);
}

TEST(InputScales, UnusedOnesGiveAWarning) {
    const auto values = table({{"elsewhere.input_scale", 1.0f}, {"nowhere.input_scale", 1.0f}});
    const auto scales = resolve_activation_scales(attention_plan(ActivationFormat::none), &values);
    ASSERT_TRUE(scales.ok());
    EXPECT_EQ(scales->warnings,
              std::vector<std::string>{
                  "table: 2 of 2 scales belong to no tensor of this plan, the first is 'elsewhere.input_scale'"});
}

TEST(InputScales, ACalibratedKvCacheNeedsKAndVScalesOfEveryLayer) {
    const Plan plan = attention_plan(ActivationFormat::none, KvFormat::fp8);
    const auto none = resolve_activation_scales(plan, nullptr);
    ASSERT_FALSE(none.ok());
    EXPECT_NE(none.error().message().find("l.0.self_attn.k_proj.k_scale"), std::string::npos);
    const auto values = table({{"l.0.self_attn.k_proj.k_scale", 0.5f}, {"l.0.self_attn.v_proj.v_scale", 0.25f}});
    const auto scales = resolve_activation_scales(plan, &values);
    ASSERT_TRUE(scales.ok());
    EXPECT_EQ(scales->kv, (std::vector<std::pair<std::string, float>>{{"l.0.self_attn.k_proj.k_scale", 0.5f},
                                                                      {"l.0.self_attn.v_proj.v_scale", 0.25f}}));
}

TEST(InputScales, InvalidValuesAreRefused) {
    TempDir dir;
    for (const char* text :
         {R"({"a": 0})", R"({"a": -1})", R"({"a": 1e99})", R"({"a": "1"})", R"([1])", R"({"a": NaN})", "{"}) {
        write_file(dir / "scales.json", std::string_view(text));
        const auto read = read_scale_table(dir / "scales.json");
        ASSERT_FALSE(read.ok()) << text;
        EXPECT_NE(read.error().message().find("scales.json"), std::string::npos) << read.error().message();
    }
}

}  // namespace
}  // namespace nibble::test
