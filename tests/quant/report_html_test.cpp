#include "quant/report_html.h"

#include "quant/report_summary.h"
#include "report_samples.h"
#include "support/markup_check.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace nibble {
namespace {

using test::check_markup;
using test::page_data;

bool has(std::string_view page, std::string_view text) { return page.find(text) != std::string_view::npos; }

size_t count(std::string_view page, std::string_view text) {
    size_t n = 0;
    for (size_t at = page.find(text); at != std::string_view::npos; at = page.find(text, at + text.size())) ++n;
    return n;
}

// Returns a report whose strings would each break a page that does not escape them.
QuantReport hostile_report() {
    const std::string bad = "\"'><script>alert(1)</script><svg onload=x>&amp;\x01\xFF\xC0\xAF</style></title>";
    QuantReport r = test::tiny_report();
    r.source = "/models/" + std::string("\"'><script>alert(1)<&");
    r.recipe = r.plan = bad;
    r.settings = {{"dialect", bad}, {bad, bad}, {"list", {bad}}};
    r.versions = {{bad, bad}};
    r.kv = KvFormat::fp8;
    r.kv_scales = {{bad, 1.0f}};
    r.warnings = {bad};
    for (size_t i = 0; i < r.tensors.size(); ++i) {
        TensorReport& t = r.tensors[i];
        t.name =
            i % 2 ? fmt::format("model.layers.{}.{}.weight", i, bad) : fmt::format("{}.experts.{}.{}", bad, i, bad);
        t.reason = t.scale_group = bad;
        if (t.quantized()) t.method = bad;
    }
    r.timing.kernels = r.timing.finished_at = r.timing.command = r.timing.verified = bad;
    return r;
}

std::vector<QuantReport> samples() {
    return {QuantReport{},        test::tiny_report(), test::smollm2_report(),
            test::mixed_report(), test::moe_report(),  hostile_report()};
}

TEST(ReportHtml, PagesAreWellFormedForEveryReport) {
    for (const QuantReport& r : samples()) {
        const std::string page = render_html(r);
        EXPECT_EQ(check_markup(page).error, "") << r.source;
        EXPECT_TRUE(test::is_utf8(page)) << r.source;
    }
}

TEST(ReportHtml, TheMarkupCheckerFindsErrors) {
    EXPECT_EQ(check_markup("<!DOCTYPE html><p class=\"a\">x &lt; y<wbr></p>").error, "");
    for (std::string_view body : {"<p>", "</p>", "<p></b></p>", "<p class=a></p>", "<p title=\"<\"></p>", "a < b",
                                  "a & b", "a > b", "<p title=\"a></p>", "<script>"})
        EXPECT_NE(check_markup(fmt::format("<!DOCTYPE html>{}", body)).error, "") << body;
    EXPECT_NE(check_markup("<p></p>").error, "");
}

TEST(ReportHtml, UntrustedTextStaysInTheDocument) {
    const std::string page = render_html(hostile_report());
    EXPECT_EQ(count(page, "<script"), 2u) << "only the document and the page's own";
    EXPECT_EQ(count(page, "</script"), 2u);
    EXPECT_EQ(count(page, "</style>"), 1u);
    EXPECT_EQ(count(page, "</title>"), 1u);
    EXPECT_FALSE(has(page, "<svg onload"));
    EXPECT_EQ(page_data(page)["report"]["recipe"],
              "\"'><script>alert(1)</script><svg onload=x>&amp;\x01\uFFFD\uFFFD\uFFFD</style></title>");
    for (const test::MarkupTag& tag : check_markup(page).tags)
        for (const auto& [key, value] : tag.attributes) EXPECT_FALSE(key.starts_with("on")) << tag.name << ' ' << key;
}

TEST(ReportHtml, NothingRefersOutsideThePage) {
    for (const QuantReport& r : samples()) {
        std::string page = render_html(r);
        constexpr std::string_view name_of_svg = "http://www.w3.org/2000/svg";
        page.erase(page.find(name_of_svg), name_of_svg.size());
        for (std::string_view bad :
             {"http://", "https://", "url(", "@import", "<link", "<img", "<iframe", "fetch(", "XMLHttp", "import("})
            EXPECT_FALSE(has(page, bad)) << bad;
        for (const test::MarkupTag& tag : check_markup(page).tags) EXPECT_EQ(tag.attribute("src"), "") << tag.name;
        EXPECT_TRUE(has(page, "default-src 'none'")) << "the browser forbids it too";
    }
}

TEST(ReportHtml, EqualReportsGiveEqualBytes) {
    EXPECT_EQ(render_html(test::smollm2_report()), render_html(test::smollm2_report()));
    QuantReport other = test::smollm2_report();
    ++other.tensors[1].saturated;
    EXPECT_NE(render_html(other), render_html(test::smollm2_report()));
}

// Returns a report with one NVFP4 matrix and one norm with round numbers.
QuantReport designed_report() {
    QuantReport r;
    r.source = "/models/Designed-1B/";
    r.recipe = "my_recipe";
    r.settings = {{"dialect", "gguf"}, {"max_shard_bytes", 12345}};
    r.versions = {{"nibble", "9.8.7"}};
    r.warnings = {"first warning", "second warning"};
    TensorReport t{.name = "model.layers.3.mlp.up_proj.weight", .shape = {1000, 1600}, .format = Format::nvfp4};
    t.method = "nvfp4 static/256 x{1,1.5}";
    t.reason = "rule 42 '*mlp*'";
    t.elements = 1'600'000;
    t.source_bytes = 3'200'000;
    t.stored_bytes = 900'000;
    t.blocks = 100'000;
    t.raised_blocks = 25'000;
    t.squared_weight = 1000;
    t.squared_error = 10;  // 20 dB
    t.max_error = 0.125f;
    t.amax = 2.5f;
    t.zeros = 80'000;
    t.saturated = 321;
    t.sign_flips = 7;
    t.codes.first = 7;
    t.codes.counts = {400'000, 1'200'000};
    t.scales.first = 0x38;
    t.scales.counts = {30'000, 0, 70'000};
    TensorReport norm{.name = "model.norm.weight", .shape = {2000}, .dtype = DType::bf16, .reason = "a norm"};
    norm.elements = 2000;
    norm.source_bytes = norm.stored_bytes = 4000;
    r.tensors = {t, norm};
    r.timing = {.seconds = 192.3,
                .bytes_read = 5'000'000,
                .bytes_written = 7'000'000,
                .gigabytes_per_second = 1.25,
                .threads = 13,
                .kernels = "avx512",
                .peak_anonymous_bytes = 64'000'000,
                .peak_resident_bytes = 77'000'000,
                .resumed_tensors = 3,
                .finished_at = "2026-05-04T03:02:01Z"};
    r.timing.command = "nibble quantize Designed";
    r.timing.verified = "reopened, all equal";
    return r;
}

TEST(ReportHtml, ThePageHoldsTheReportAndItsTensorsInGroups) {
    const QuantReport r = designed_report();
    const Json data = page_data(render_html(r)), &summary = data["summary"];
    Json head = to_json(r);
    head.erase("tensors"), head.erase("plan");
    EXPECT_EQ(data["report"], head);
    EXPECT_EQ(summary["name"], "Designed-1B");
    EXPECT_EQ(summary["sqnr_note"], "");
    EXPECT_EQ(summary["sqnr"], Json({{"low", 20}, {"median", 20}, {"mean", 20}, {"high", 20}}));

    ASSERT_EQ(summary["formats"].size(), 2u);
    const Json &format = summary["formats"][0], &norms = summary["formats"][1];
    for (const auto& [key, value] : {std::pair{"label", Json("nvfp4")},
                                     {"quantized", Json(true)},
                                     {"elements", Json(1'600'000)},
                                     {"source_bytes", Json(3'200'000)},
                                     {"stored_bytes", Json(900'000)},
                                     {"zeros", Json(80'000)},
                                     {"saturated", Json(321)},
                                     {"sign_flips", Json(7)},
                                     {"squared_weight", Json(1000)},
                                     {"squared_error", Json(10)},
                                     {"code_bits", Json(4)},
                                     {"scale_type", Json("e4m3")}})
        EXPECT_EQ(format[key], value) << key;
    EXPECT_EQ(format["codes"][7], 400'000);
    EXPECT_EQ(format["codes"][8], 1'200'000);
    EXPECT_EQ(format["scales"][0x38], 30'000);
    EXPECT_EQ(format["scales"][0x3A], 70'000);
    EXPECT_EQ(norms["label"], "BF16");
    EXPECT_EQ(norms["quantized"], false);

    ASSERT_EQ(summary["roles"].size(), 1u);
    EXPECT_EQ(summary["roles"][0]["role"], "up");
    EXPECT_EQ(summary["roles"][0]["layers"], Json({{3, 1, 0, 20, 20, 20}}));
    ASSERT_EQ(summary["worst"].size(), 1u);
    EXPECT_EQ(summary["worst"][0]["name"], "model.layers.3.mlp.up_proj.weight");
    EXPECT_EQ(summary["worst"][0]["layer"], 3);
    EXPECT_EQ(summary["worst"][0]["max_error"], 0.125);
    EXPECT_EQ(summary["worst"][0]["amax"], 2.5);
    ASSERT_EQ(summary["carried"].size(), 1u);
    EXPECT_EQ(summary["carried"][0]["reason"], "a norm");
    EXPECT_EQ(summary["carried"][0]["patterns"][0]["pattern"], "model.norm.weight");
    ASSERT_EQ(summary["plan"].size(), 2u);
    EXPECT_EQ(summary["plan"][0]["reason"], "rule 42 '*mlp*'");
    EXPECT_EQ(summary["plan"][0]["method"], "nvfp4 static/256 x{1,1.5}");
    EXPECT_EQ(summary["plan"][0]["shape"], Json({1000, 1600}));
    EXPECT_EQ(summary["plan"][0]["sqnr"], Json({20, 20}));
    EXPECT_FALSE(summary["plan"][1].contains("method"));
}

TEST(ReportHtml, ACalibratedJobShowsTheLimitsOfSqnr) {
    QuantReport r = designed_report();
    r.timing.output = "out/Designed-NVFP4";
    r.tensors[0].method = "nvfp4, nibble_best damping 0.03";
    const Json summary = page_data(render_html(r))["summary"];
    EXPECT_EQ(summary["name"], "Designed-NVFP4");
    EXPECT_EQ(summary["sqnr_note"], sqnr_is_not_the_aim);
}

TEST(ReportHtml, OnlyFourOverSixIsCalledFourInsteadOfSix) {
    QuantReport r = designed_report();
    const auto raised = [&] { return page_data(render_html(r))["summary"]["raised"]; };
    EXPECT_EQ(raised(), (Json{{"four_over_six", true},
                              {"layers", Json::array({{{"layer", 3}, {"raised", 25'000}, {"blocks", 100'000}}})}}));
    r.tensors[0].method = "nvfp4 static/448 x{0.9,1,1.1}";
    EXPECT_EQ(raised()["four_over_six"], false);
    EXPECT_EQ(raised()["layers"].size(), 1u);
    r.tensors[0].raised_blocks = 0;
    EXPECT_TRUE(raised()["layers"].empty());
}

TEST(ReportHtml, EveryTensorOfADenseModelHasItsRowInThePlan) {
    const QuantReport r = test::smollm2_report();
    const Json plan = page_data(render_html(r))["summary"]["plan"];
    ASSERT_EQ(plan.size(), r.tensors.size());
    for (size_t i = 0; i < plan.size(); ++i) EXPECT_EQ(plan[i]["name"], r.tensors[i].name);
}

int64_t rows_of(const Json& plan, int64_t tensors) {
    return std::ranges::count_if(plan, [&](const Json& row) { return row["tensors"] == tensors; });
}

TEST(ReportHtml, ThousandsOfExpertsStaySmallAndShareRows) {
    const QuantReport r = test::moe_report();
    ASSERT_GT(r.tensors.size(), 18'000u);
    const std::string page = render_html(r);
    EXPECT_LT(page.size(), 400'000u);
    EXPECT_EQ(rows_of(page_data(page)["summary"]["plan"], 128), 48 * 3);
}

TEST(ReportHtml, AnExpertPlannedDifferentlyKeepsItsOwnRow) {
    QuantReport r = test::moe_report();
    for (TensorReport& t : r.tensors)
        if (t.name == "model.layers.7.mlp.experts.5.up_proj.weight") t.reason = "rule 99";
    const Json plan = page_data(render_html(r))["summary"]["plan"];
    EXPECT_EQ(rows_of(plan, 128), 48 * 3 - 1);
    EXPECT_EQ(rows_of(plan, 127), 1);
    EXPECT_EQ(std::ranges::count_if(plan, [](const Json& row) { return row["reason"] == "rule 99"; }), 1);
}

TEST(ReportHtml, LosslessTensorsHaveNoDecibels) {
    QuantReport r = designed_report();
    r.tensors[0].squared_error = 0;
    const Json summary = page_data(render_html(r))["summary"];
    EXPECT_TRUE(summary["sqnr"].is_null());
    EXPECT_TRUE(summary["worst"].empty());
    EXPECT_EQ(summary["roles"][0]["layers"], Json({{3, 1, 1}}));
    EXPECT_EQ(summary["plan"][0]["sqnr"], Json::array());
}

TEST(ReportHtml, AnEmptyReportIsAPageWithoutTensors) {
    const Json summary = page_data(render_html(QuantReport{}))["summary"];
    EXPECT_EQ(summary["name"], "unnamed model");
    for (const char* key : {"formats", "roles", "worst", "carried", "plan"}) EXPECT_TRUE(summary[key].empty()) << key;
}

}  // namespace
}  // namespace nibble
