#include "quant/report_html.h"

#include "quant/report_summary.h"
#include "report_samples.h"
#include "support/markup_check.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

namespace nibble {
namespace {

using test::check_markup;

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

TEST(ReportHtml, UntrustedTextIsEscapedEverywhere) {
    const std::string page = render_html(hostile_report());
    EXPECT_EQ(count(page, "<script"), 1u) << "only the page's own";
    EXPECT_EQ(count(page, "</style>"), 1u);
    EXPECT_EQ(count(page, "</title>"), count(page, "<title>"));
    EXPECT_FALSE(has(page, "<svg onload"));
    EXPECT_TRUE(has(page, "&lt;script&gt;alert(1)&lt;/script&gt;"));
    for (const test::MarkupTag& tag : check_markup(page).tags)
        for (const auto& [key, value] : tag.attributes) EXPECT_FALSE(key.starts_with("on")) << tag.name << ' ' << key;
}

TEST(ReportHtml, NothingRefersOutsideThePage) {
    for (const QuantReport& r : samples()) {
        const std::string page = render_html(r);
        for (std::string_view bad :
             {"http://", "https://", "url(", "@import", "<link", "<img", "<iframe", "fetch(", "XMLHttp", "import("})
            EXPECT_FALSE(has(page, bad)) << bad;
        for (const test::MarkupTag& tag : check_markup(page).tags) {
            EXPECT_EQ(tag.attribute("src"), "") << tag.name;
            EXPECT_TRUE(tag.attribute("href").empty() || tag.attribute("href").starts_with('#'));
        }
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

TEST(ReportHtml, EveryNumberOfTheReportIsOnThePage) {
    const std::string page = render_html(designed_report());
    for (std::string_view text : {"<h1>Designed-1B</h1>",
                                  "my_recipe",
                                  "gguf checkpoint",
                                  "Verified",
                                  "2 warnings",
                                  "first warning",
                                  "second warning",
                                  "3.20 MB",
                                  "904 kB",
                                  "3.54× smaller",
                                  "900 kB",
                                  ">4.500<",
                                  "bits per weight",
                                  ">20.00<",
                                  "layer 3, up",
                                  "5.00%",
                                  ">321<",
                                  ">7<",
                                  "25,000 of 100,000 blocks",
                                  "25.0%",
                                  "layer 3: 25,000 of 100,000",
                                  "0.125",
                                  "2.5",
                                  "rule 42 &#39;*mlp*&#39;",
                                  "nvfp4 static/256 x{1,1.5}",
                                  "1000 × 1600",
                                  "a norm",
                                  "9.8.7",
                                  "12345",
                                  "13 threads",
                                  "avx512",
                                  "1.25",
                                  "64.0",
                                  "77.0 MB",
                                  "5.00 MB, 7.00 MB",
                                  "3 tensors were already finished",
                                  "2026-05-04T03:02:01Z",
                                  "nibble quantize Designed",
                                  "reopened, all equal",
                                  "6: 400,000 (25.0%)",
                                  "−0: 1,200,000 (75.0%)",
                                  "1: 30,000 (30.0%)",
                                  "1.25: 70,000 (70.0%)"})
        EXPECT_TRUE(has(page, text)) << text;
    EXPECT_TRUE(has(page, "3\u202F<small>min</small> 12\u202F<small>s</small>")) << "time in its units";
}

TEST(ReportHtml, ACalibratedJobShowsItsTotalTimeAndTheLimitsOfSqnr) {
    QuantReport r = designed_report();
    EXPECT_FALSE(has(render_html(r), "SQNR compares weights"));
    r.timing.whole_seconds = 3600;
    r.timing.calibration_seconds = 3000;
    r.timing.output = "out/Designed-NVFP4";
    r.tensors[0].method = "nvfp4, nibble_best damping 0.03";
    const std::string page = render_html(r);
    for (std::string_view text : {"<h1>Designed-NVFP4</h1>", "Time of the whole job", "calibration 50 min 00 s",
                                  "quantizing 3 min 12 s", "SQNR compares weights"})
        EXPECT_TRUE(has(page, text)) << text;
}

TEST(ReportHtml, OnlyFourOverSixIsCalledFourInsteadOfSix) {
    QuantReport r = designed_report();
    EXPECT_TRUE(has(render_html(r), "Four instead of six"));
    r.tensors[0].method = "nvfp4 static/448 x{0.9,1,1.1}";
    EXPECT_FALSE(has(render_html(r), "Four instead of six"));
    EXPECT_TRUE(has(render_html(r), "25,000 of 100,000 blocks"));
    r.tensors[0].raised_blocks = 0;
    EXPECT_FALSE(has(render_html(r), "Raised block scales"));
}

TEST(ReportHtml, AnUnverifiedExportIsMarked) {
    QuantReport r = designed_report();
    r.timing.verified.clear();
    EXPECT_TRUE(has(render_html(r), "Not verified"));
    EXPECT_FALSE(has(render_html(r), "✓ Verified"));
}

TEST(ReportHtml, EveryTensorOfADenseModelHasItsRowInThePlan) {
    const QuantReport r = test::smollm2_report();
    std::string page = render_html(r);
    for (size_t at; (at = page.find("<wbr>")) != std::string::npos;) page.erase(at, 5);
    for (const TensorReport& t : r.tensors)
        EXPECT_TRUE(has(page, fmt::format("<td class=\"name\">{}</td>", t.name))) << t.name;
}

TEST(ReportHtml, ThousandsOfExpertsStaySmallAndShareRows) {
    const QuantReport r = test::moe_report();
    ASSERT_GT(r.tensors.size(), 18'000u);
    const std::string page = render_html(r);
    EXPECT_LT(page.size(), 3'000'000u);
    EXPECT_EQ(count(page, "<span class=\"times\">×128</span>"), 48u * 3);
}

TEST(ReportHtml, AnExpertPlannedDifferentlyKeepsItsOwnRow) {
    QuantReport r = test::moe_report();
    for (TensorReport& t : r.tensors)
        if (t.name == "model.layers.7.mlp.experts.5.up_proj.weight") t.reason = "rule 99";
    const std::string page = render_html(r);
    EXPECT_EQ(count(page, "×128</span>"), 48u * 3 - 1);
    EXPECT_EQ(count(page, "×127</span>"), 1u);
    EXPECT_TRUE(has(page, "rule 99"));
}

TEST(ReportHtml, NumbersThatDoNotExistAreNotPrinted) {
    for (const QuantReport& r : samples()) {
        const std::string page = render_html(r);
        const std::string_view body =
            std::string_view(page).substr(page.find("<body>"), page.rfind("<script>") - page.find("<body>"));
        for (std::string_view bad : {">nan", ">inf", ">-inf", "\"nan", "\"inf", " nan", " -nan", " inf "})
            EXPECT_FALSE(has(body, bad)) << r.source << bad;
    }
}

TEST(ReportHtml, LosslessTensorsAreInfiniteAndHaveNoPoint) {
    QuantReport r = designed_report();
    r.tensors[0].squared_error = 0;
    const std::string page = render_html(r);
    EXPECT_TRUE(has(page, "no weight changed"));
    EXPECT_TRUE(has(page, "∞"));
    EXPECT_FALSE(has(page, "class=\"line\""));
    EXPECT_FALSE(has(page, "Tensors with the largest errors"));
    EXPECT_EQ(check_markup(page).error, "");
}

TEST(ReportHtml, BarsAndCellsLieInsideTheirCharts) {
    for (const QuantReport& r : samples()) {
        double width = 0, height = 0;
        for (const test::MarkupTag& tag : check_markup(render_html(r)).tags) {
            if (tag.name == "svg") {
                ASSERT_EQ(std::sscanf(tag.attribute("viewBox").c_str(), "0 0 %lf %lf", &width, &height), 2);
            }
            if (tag.name != "rect") continue;
            const double x = std::stod(tag.attribute("x")), y = std::stod(tag.attribute("y"));
            const double w = std::stod(tag.attribute("width")), h = std::stod(tag.attribute("height"));
            EXPECT_TRUE(x >= 0 && y >= 0 && w >= 0 && h >= 0 && x + w <= width && y + h <= height)
                << r.source << ": " << x << ' ' << y << ' ' << w << ' ' << h;
        }
    }
}

TEST(ReportHtml, AnEmptyReportIsAPageWithoutTensors) {
    const std::string page = render_html(QuantReport{});
    EXPECT_TRUE(has(page, "unnamed model"));
    EXPECT_TRUE(has(page, "nothing was quantized"));
    EXPECT_TRUE(has(page, "No tensors"));
}

}  // namespace
}  // namespace nibble
