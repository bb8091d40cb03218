#include "quant/report_text.h"

#include "report_samples.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

namespace nibble {
namespace {

QuantReport designed_report() {
    QuantReport r;
    r.source = "/models/Designed-1B";
    r.recipe = "my_recipe: for tests";
    r.warnings = {"rule 7 matched nothing"};
    for (int layer = 0; layer < 2; ++layer) {
        TensorReport t{.name = "model.layers." + std::to_string(layer) + ".mlp.up_proj.weight", .shape = {1000, 1600}};
        t.format = Format::nvfp4;
        t.method = "nvfp4 static/256 x{1,1.5}";
        t.elements = 1'600'000;
        t.source_bytes = 3'200'000;
        t.stored_bytes = 900'000;
        t.blocks = 100'000;
        t.raised_blocks = 25'000;
        t.squared_weight = 1000;
        t.squared_error = layer ? 10 : 1;
        t.zeros = 80'000;
        t.saturated = 321;
        t.sign_flips = 7;
        r.tensors.push_back(t);
    }
    TensorReport norm{.name = "model.norm.weight", .shape = {2000}};
    norm.elements = 2000;
    norm.source_bytes = norm.stored_bytes = 4000;
    r.tensors.push_back(norm);
    r.timing = {.seconds = 192.3,
                .gigabytes_per_second = 1.25,
                .threads = 13,
                .kernels = "avx512",
                .peak_anonymous_bytes = 64'000'000};
    r.timing.verified = "reopened, all equal";
    return r;
}

TEST(ReportText, EqualsTheExpectedTable) {
    EXPECT_EQ(report_text(designed_report()),
              R"(Designed-1B: 6.40 MB -> 1.80 MB, 3.55 times smaller, 4.500 bits per quantized weight
my_recipe: for tests

  format  tensors  weights   before    after  bits/weight  SQNR dB  zeroed  saturated  flips
  nvfp4         2   3.20 M  6.40 MB  1.80 MB        4.500    22.60   5.00%        642     14
  BF16          1   2.00 k  4.00 kB  4.00 kB       16.000
  total         3   3.20 M  6.40 MB  1.80 MB        4.507    22.60   5.00%        642     14

  role  format  tensors  SQNR dB  lowest  median  highest
  up    nvfp4         2    22.60   20.00   25.00    30.00

  worst                              SQNR dB  zeroed  saturated  flips
  model.layers.1.mlp.up_proj.weight    20.00   5.00%        321      7
  model.layers.0.mlp.up_proj.weight    30.00   5.00%        321      7

  50,000 of 200,000 blocks (25.0%) chose four instead of six
  quantized in 3 min 12 s at 1.25 GB/s, 13 threads, avx512; peak memory 64.0 MB
  verified: reopened, all equal
  warning: rule 7 matched nothing
)");
}

TEST(ReportText, OtherSearchesRaiseScalesOnly) {
    QuantReport r = designed_report();
    for (TensorReport& t : r.tensors)
        if (t.quantized()) t.method = "nvfp4 static/448 x{0.9,1,1.1}";
    EXPECT_NE(report_text(r).find("50,000 of 200,000 blocks (25.0%) chose a raised scale"), std::string::npos);
}

TEST(ReportText, GivesTheTimeOfTheWholeJobAndTheNameOfTheOutput) {
    QuantReport r = designed_report();
    r.timing.whole_seconds = 3600;
    EXPECT_NE(report_text(r).find("  1 h 00 min in all; quantized in 3 min 12 s"), std::string::npos);
    r.timing.calibration_seconds = 3000;
    r.timing.output = "out/Designed-NVFP4/";
    const std::string text = report_text(r);
    EXPECT_NE(text.find("  1 h 00 min in all, 50 min 00 s of it calibration; quantized in 3 min 12 s"),
              std::string::npos);
    EXPECT_TRUE(text.starts_with("Designed-NVFP4: 6.40 MB")) << text;
}

TEST(ReportText, ExplainsThatCalibrationDoesNotImproveSqnr) {
    QuantReport r = designed_report();
    EXPECT_EQ(report_text(r).find("SQNR compares weights"), std::string::npos);
    r.tensors[0].method = "nvfp4, gptq damping 0.01, block 128";
    EXPECT_NE(report_text(r).find("SQNR compares weights; calibration made the layers' outputs closer"),
              std::string::npos);
}

TEST(ReportText, AnEmptyReportIsStillATable) {
    const std::string text = report_text(QuantReport{});
    EXPECT_NE(text.find("unnamed model: 0 B -> 0 B"), std::string::npos);
    EXPECT_NE(text.find("not verified"), std::string::npos);
    EXPECT_EQ(text.find("nan"), std::string::npos);
    EXPECT_EQ(text.find("inf"), std::string::npos);
}

TEST(ReportText, NamesCannotSendControlCodesToTheTerminal) {
    QuantReport r = designed_report();
    r.source = r.recipe = r.timing.kernels = r.timing.verified = r.warnings[0] = "x\x1b[2J\r\n\x7f";
    for (TensorReport& t : r.tensors) t.name = "model.layers.0.\x1b]0;title\x07.weight";
    const std::string text = report_text(r);
    for (char c : text) EXPECT_TRUE(c == '\n' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7F)) << int(c);
    EXPECT_EQ(std::ranges::count(text, '\n'), std::ranges::count(report_text(designed_report()), '\n'))
        << "no line was added";
}

TEST(ReportText, ShowsFiveWorstAndNoTrailingSpaces) {
    std::istringstream lines(report_text(test::smollm2_report()));
    int worst = 0;
    for (std::string line; std::getline(lines, line);) {
        EXPECT_FALSE(line.ends_with(' ')) << line;
        EXPECT_LE(line.size(), 110u) << line;
        worst += line.starts_with("  model.layers.");
    }
    EXPECT_EQ(worst, 5);
}

}  // namespace
}  // namespace nibble
