#include "quant/report_summary.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nibble {
namespace {

TEST(PlaceOf, ReadsLayerExpertAndRoleFromTheNamesOfPublishedModels) {
    const std::vector<std::pair<std::string_view, TensorPlace>> table{
        {"model.layers.0.self_attn.q_proj.weight", {0, -1, "q"}},
        {"model.layers.29.mlp.down_proj.weight", {29, -1, "down"}},
        {"model.layers.3.mlp.experts.17.up_proj.weight", {3, 17, "expert up"}},
        {"model.layers.3.block_sparse_moe.experts.7.w1.weight", {3, 7, "expert gate"}},
        {"model.layers.3.block_sparse_moe.experts.7.w2.weight", {3, 7, "expert down"}},
        {"model.layers.3.mlp.shared_experts.up_proj.weight", {3, -1, "shared up"}},
        {"model.layers.3.mlp.shared_expert.gate_proj.weight", {3, -1, "shared gate"}},
        {"model.layers.3.mlp.gate.weight", {3, -1, "mlp.gate"}},
        {"model.layers.3.self_attn.kv_a_proj_with_mqa.weight", {3, -1, "self_attn.kv_a_proj_with_mqa"}},
        {"backbone.layers.51.mixer.in_proj.weight", {51, -1, "mixer.in_proj"}},
        {"backbone.layers.51.mixer.experts.127.up_proj.weight", {51, 127, "expert up"}},
        {"model.language_model.layers.5.self_attn.o_proj.weight", {5, -1, "o"}},
        {"mtp.layers.0.self_attn.q_proj.weight", {0, -1, "mtp q"}},
        {"model.visual.blocks.2.attn.qkv.weight", {2, -1, "visual attn.qkv"}},
        {"lm_head.weight", {-1, -1, "lm_head"}},
        {"model.embed_tokens.weight", {-1, -1, "model.embed_tokens"}},
        {"weight", {-1, -1, "weight"}},
        {"", {-1, -1, ""}},
        {"3.weight", {-1, -1, "3"}},
        {"experts.3.up_proj.weight", {-1, -1, "experts.3.up_proj"}},
        {"model.layers.99999999999.q_proj.weight", {-1, -1, "model.layers.99999999999.q_proj"}},
    };
    for (const auto& [name, place] : table) {
        const TensorPlace got = place_of(name);
        EXPECT_EQ(got.layer, place.layer) << name;
        EXPECT_EQ(got.expert, place.expert) << name;
        EXPECT_EQ(got.role, place.role) << name;
    }
}

TEST(NamePattern, StarsStandForNumbers) {
    EXPECT_EQ(name_pattern("model.layers.3.mlp.experts.17.w1.weight", Wildcards::all),
              "model.layers.*.mlp.experts.*.w1.weight");
    EXPECT_EQ(name_pattern("model.layers.3.mlp.experts.17.w1.weight", Wildcards::experts),
              "model.layers.3.mlp.experts.*.w1.weight");
    EXPECT_EQ(name_pattern("lm_head.weight", Wildcards::all), "lm_head.weight");
    EXPECT_EQ(name_pattern("", Wildcards::all), "");
    EXPECT_EQ(name_pattern("a..1.", Wildcards::all), "a..*.");
}

TEST(SqnrRange, LeavesLosslessTensorsOut) {
    const SqnrRange r = sqnr_range({30, 10, INFINITY, 20, 40});
    EXPECT_EQ(r.tensors, 5);
    EXPECT_EQ(r.lossless, 1);
    EXPECT_EQ(r.low, 10);
    EXPECT_EQ(r.high, 40);
    EXPECT_EQ(r.median, 25);
    EXPECT_DOUBLE_EQ(r.mean, 25);
    EXPECT_FALSE(sqnr_range({INFINITY}).measured());
    EXPECT_FALSE(sqnr_range({}).measured());
}

TensorReport tensor(std::string name, double weight, double error, Format format = Format::nvfp4) {
    TensorReport t{.name = std::move(name), .shape = {10, 16}, .format = format};
    t.method = format == Format::none ? "" : "m";
    t.elements = 160;
    t.source_bytes = 320;
    t.stored_bytes = format == Format::none ? 320 : 90;
    t.squared_weight = weight;
    t.squared_error = error;
    return t;
}

TEST(SummarizeRoles, PoolsEnergyPerFormatAndRoleInReadingOrder) {
    QuantReport r;
    r.tensors = {tensor("model.layers.0.mlp.down_proj.weight", 100, 1),
                 tensor("model.layers.1.mlp.down_proj.weight", 900, 9),
                 tensor("model.layers.0.self_attn.q_proj.weight", 100, 10),
                 tensor("model.layers.1.self_attn.q_proj.weight", 1000, 1),
                 tensor("model.layers.2.self_attn.q_proj.weight", 1, 0.001, Format::fp8),
                 tensor("lm_head.weight", 1, 0, Format::nvfp4),
                 tensor("model.norm.weight", 0, 0, Format::none)};
    r.tensors[4].stored_bytes = 10;
    const std::vector<RoleSummary> roles = summarize_roles(r);
    ASSERT_EQ(roles.size(), 4u);
    EXPECT_EQ(roles[0].role, "q");
    EXPECT_EQ(roles[0].format, Format::nvfp4);
    EXPECT_NEAR(roles[0].pooled_db(), 10 * std::log10(100), 1e-9);
    EXPECT_NEAR(roles[0].sqnr.mean, 20, 1e-9);
    ASSERT_EQ(roles[0].layers.size(), 2u);
    EXPECT_EQ(roles[0].layers[1].layer, 1);
    EXPECT_NEAR(roles[0].layers[1].sqnr.low, 30, 1e-9);
    EXPECT_EQ(roles[1].role, "down");
    EXPECT_EQ(roles[2].role, "lm_head");
    EXPECT_TRUE(std::isinf(roles[2].pooled_db()));
    EXPECT_TRUE(roles[2].layers.empty());
    EXPECT_EQ(roles[3].role, "q");
    EXPECT_EQ(roles[3].format, Format::fp8);
}

TEST(SummarizeFormats, QuantizedFormatsComeFirstAndAddUpToTheTotals) {
    QuantReport r;
    r.tensors = {tensor("a", 0, 0, Format::none), tensor("b", 1, 1), tensor("c", 1, 1, Format::fp8),
                 tensor("d", 1, 1, Format::fp8)};
    r.tensors.push_back(tensor("was quantized", 0, 0, Format::fp8));
    r.tensors.back().method.clear();
    const std::vector<FormatSummary> formats = summarize_formats(r);
    ASSERT_EQ(formats.size(), 4u);
    EXPECT_EQ(formats[0].label, "fp8");
    EXPECT_EQ(formats[0].tensors, 2);
    EXPECT_EQ(formats[1].label, "nvfp4");
    EXPECT_EQ(formats[2].label, "BF16");
    EXPECT_EQ(formats[3].label, "fp8 (as it was)");
    int64_t tensors = 0, stored = 0;
    for (const FormatSummary& f : formats) tensors += f.tensors, stored += f.stored_bytes;
    EXPECT_EQ(tensors, r.totals().tensors);
    EXPECT_EQ(stored, r.totals().stored_bytes);
    EXPECT_DOUBLE_EQ(formats[1].bits_per_element(), 4.5);
}

TEST(SummarizeRaised, CountsOnlyMethodsThatCanRaiseScales) {
    QuantReport r;
    for (int layer : {1, 0, 0}) {
        r.tensors.push_back(tensor("model.layers." + std::to_string(layer) + ".mlp.up_proj.weight", 1, 1));
        r.tensors.back().blocks = 10;
    }
    r.tensors[0].raised_blocks = 4;
    r.tensors[2].method = "another";  // raised no block, so it is not counted
    const std::vector<RaisedSummary> raised = summarize_raised(r);
    ASSERT_EQ(raised.size(), 2u);
    EXPECT_EQ(raised[0].layer, 0);
    EXPECT_EQ(raised[0].blocks, 10);
    EXPECT_EQ(raised[0].raised, 0);
    EXPECT_EQ(raised[1].raised, 4);
    r.tensors[0].raised_blocks = 0;
    EXPECT_TRUE(summarize_raised(r).empty());
}

TEST(SummarizeCarried, GroupsByReasonThenPattern) {
    QuantReport r;
    for (const char* name : {"model.layers.0.a.weight", "lm_head.weight", "model.layers.1.a.weight"})
        r.tensors.push_back(tensor(name, 0, 0, Format::none));
    r.tensors[0].reason = r.tensors[2].reason = "norm";
    r.tensors[1].reason = "rule";
    r.tensors.push_back(tensor("quantized", 1, 1));
    const std::vector<CarriedReason> reasons = summarize_carried(r);
    ASSERT_EQ(reasons.size(), 2u);
    EXPECT_EQ(reasons[0].reason, "norm");
    EXPECT_EQ(reasons[0].tensors, 2);
    EXPECT_EQ(reasons[0].bytes, 640);
    ASSERT_EQ(reasons[0].patterns.size(), 1u);
    EXPECT_EQ(reasons[0].patterns[0].pattern, "model.layers.*.a.weight");
    EXPECT_EQ(reasons[0].patterns[0].elements, 320);
    EXPECT_EQ(reasons[1].patterns[0].tensors, 1);
}

TEST(WorstTensors, AreSortedByErrorWithoutLosslessOnes) {
    QuantReport r;
    r.tensors = {tensor("a", 100, 1), tensor("b", 10, 1), tensor("c", 10, 1), tensor("d", 1, 0),
                 tensor("e", 0, 0, Format::none)};
    EXPECT_EQ(worst_tensors(r, 10), (std::vector<size_t>{1, 2, 0}));
    EXPECT_EQ(worst_tensors(r, 1), (std::vector<size_t>{1}));
}

TEST(HumanNumbers, KeepThreeDigitsAndNeverPrintAThousandOfAUnit) {
    EXPECT_EQ(human_bytes(0), "0 B");
    EXPECT_EQ(human_bytes(999), "999 B");
    EXPECT_EQ(human_bytes(1000), "1.00 kB");
    EXPECT_EQ(human_bytes(9'996), "10.0 kB");
    EXPECT_EQ(human_bytes(99'960), "100 kB");
    EXPECT_EQ(human_bytes(999'499), "999 kB");
    EXPECT_EQ(human_bytes(999'500), "1.00 MB");
    EXPECT_EQ(human_bytes(61'064'000'000), "61.1 GB");
    EXPECT_EQ(human_bytes(INT64_MAX), "9223 PB");
    EXPECT_EQ(human_large(134'515'008), "135 M");
    EXPECT_EQ(human_count(0), "0");
    EXPECT_EQ(human_count(999), "999");
    EXPECT_EQ(human_count(1234567), "1,234,567");
    EXPECT_EQ(human_count(-123456), "-123,456");
    EXPECT_EQ(human_count(INT64_MIN), "-9,223,372,036,854,775,808");
}

TEST(HumanNumbers, TimeCarriesIntoTheNextUnit) {
    EXPECT_EQ(human_seconds(0.0124), "12 ms");
    EXPECT_EQ(human_seconds(0.9996), "1.0 s");
    EXPECT_EQ(human_seconds(59.94), "59.9 s");
    EXPECT_EQ(human_seconds(59.96), "1 min 00 s");
    EXPECT_EQ(human_seconds(3599.6), "1 h 00 min");
    EXPECT_EQ(human_seconds(7500), "2 h 05 min");
    EXPECT_EQ(human_seconds(NAN), "–");
    EXPECT_EQ(human_seconds(-1), "–");
}

TEST(HumanNumbers, SmallSharesAreNotZero) {
    EXPECT_EQ(human_share(0, 100), "0");
    EXPECT_EQ(human_share(0, 0), "0");
    EXPECT_EQ(human_share(1, 1'000'000'000), "< 0.0001%");
    EXPECT_EQ(human_share(1, 100), "1.00%");
    EXPECT_EQ(human_share(9'996, 100'000), "10.0%");
    EXPECT_EQ(human_share(100, 100), "100.0%");
    EXPECT_EQ(human_db(INFINITY), "∞");
    EXPECT_EQ(human_db(20.126), "20.13");
}

TEST(ModelName, IsTheLastComponentOfThePath) {
    const std::vector<std::pair<std::string, std::string>> table{{"/models/A-1B", "A-1B"},
                                                                 {"/models/A-1B/", "A-1B"},
                                                                 {"a.gguf", "a.gguf"},
                                                                 {"", "unnamed model"},
                                                                 {"/", "/"},
                                                                 {"x//", "x"}};
    for (const auto& [source, name] : table) {
        QuantReport r;
        r.source = source;
        EXPECT_EQ(report_name(r), name) << source;
    }
}

}  // namespace
}  // namespace nibble
