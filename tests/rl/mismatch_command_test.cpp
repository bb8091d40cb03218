// Tests `nibble rl --mismatch`: its default run, and its messages for wrong flags.
#include "base/json.h"
#include "support/files.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

namespace nibble::test {
namespace {

int lab(const TempDir& dir, const std::string& arguments) {
    return std::system(fmt::format("cd '{}' && '{}' rl --mismatch {} < /dev/null > out.txt 2>&1", dir.path().string(),
                                   NIBBLE_PROGRAM, arguments)
                           .c_str());
}

TEST(MismatchCommand, RunsAllThatPromiseWithBothCaches) {
    TempDir dir;
    ASSERT_EQ(lab(dir, test_data("chat").string() + " --prompts 2 --threads 1 --json"), 0)
        << read_file(dir / "out.txt");
    const auto report = parse_json(read_file(dir / "out.txt"));
    ASSERT_TRUE(report.ok()) << report.error().message();
    std::set<std::pair<std::string, std::string>> seen;
    for (const Json& r : (*report)["recipes"]) {
        const std::string recipe = r["recipe"], kv = r["kv"];
        SCOPED_TRACE(recipe + ", " + kv);
        EXPECT_TRUE(seen.emplace(recipe, kv).second);
        EXPECT_EQ(r["promised"], true);
        EXPECT_EQ(r["mismatches"], 0);
        EXPECT_GT(r["tokens"], 1000);
        std::set<std::string> controls;
        for (const Json& c : r["controls"]) {
            EXPECT_GT(c["mismatches"], 0) << c["control"];
            controls.insert(c["control"]);
        }
        EXPECT_EQ(controls.contains("the length of attention's splits"), recipe == "fp32");
        EXPECT_TRUE(r["ranks"].empty());
        EXPECT_EQ(controls.contains("one scale of the KV cache"), kv == "fp8");
        EXPECT_EQ(controls.contains("one scale of inputs"), recipe == "nvfp4_w4a4");
    }
    std::set<std::pair<std::string, std::string>> all;
    for (const char* recipe : {"bf16", "fp32", "fp8_block", "mxfp8", "nvfp4_row_scaled", "nvfp4_w4a16", "nvfp4_w4a4"})
        for (const char* kv : {"bf16", "fp8"}) all.emplace(recipe, kv);
    EXPECT_EQ(seen, all);
}

// Two processes give the bits of one; another code in the second is detected.
TEST(MismatchCommand, ComparesTwoRanksWithOne) {
    TempDir dir;
    ASSERT_EQ(
        lab(dir, test_data("chat").string() +
                     " --prompts 2 --threads 1 --json --ranks 2 --recipe bf16 --recipe fp8_block --recipe nvfp4_w4a4"),
        0)
        << read_file(dir / "out.txt");
    const auto report = parse_json(read_file(dir / "out.txt"));
    ASSERT_TRUE(report.ok()) << report.error().message();
    ASSERT_EQ((*report)["recipes"].size(), 6u);
    for (const Json& r : (*report)["recipes"]) {
        SCOPED_TRACE(r["recipe"].dump() + r["kv"].dump());
        const Json& ranks = r["ranks"];
        EXPECT_EQ(ranks["size"], 2);
        ASSERT_EQ(ranks["lines"].size(), 3u);
        for (const Json& line : ranks["lines"]) {
            EXPECT_GT(line["tokens"], 1000) << line["rows"];
            EXPECT_EQ(line["mismatches"], 0) << line["rows"];
        }
        EXPECT_GT(ranks["control"]["mismatches"], 0);
    }
}

TEST(MismatchCommand, ErrorsNameTheProblem) {
    TempDir dir;
    const std::string model = test_data("chat").string();
    for (const char* recipe : {"nvfp4_row_scale", "fp8_delayed", "nibble_nvfp4"}) {
        EXPECT_NE(lab(dir, fmt::format("{} --prompts 2 --recipe {}", model, recipe)), 0);
        EXPECT_EQ(read_file(dir / "out.txt"),
                  fmt::format("nibble: --recipe {}: choose one of: bf16, fp32, fp8_block, mxfp8, nvfp4_row_scaled, "
                              "nvfp4_w4a16, nvfp4_w4a4, fp8, nvfp4\n",
                              recipe));
    }
    // The lab does not have the flags of a run.
    for (const char* flag : {"--steps 3", "-o lab", "--resume"}) {
        EXPECT_NE(lab(dir, fmt::format("{} --prompts 2 {}", model, flag)), 0) << flag;
        EXPECT_THAT(read_file(dir / "out.txt"), testing::HasSubstr("excludes")) << flag;
    }
    // Without a table no table head is printed.
    EXPECT_NE(lab(dir, "/nonexist"), 0);
    EXPECT_THAT(read_file(dir / "out.txt"), testing::StartsWith("nibble: "));
    EXPECT_THAT(read_file(dir / "out.txt"), testing::HasSubstr("/nonexist"));
    ASSERT_EQ(lab(dir, model + " --prompts 2 --recipe bf16 --kv bf16"), 0) << read_file(dir / "out.txt");
    EXPECT_THAT(read_file(dir / "out.txt"), testing::StartsWith("recipe "));
    EXPECT_THAT(read_file(dir / "out.txt"), testing::HasSubstr("control: one code was changed"));
}

}  // namespace
}  // namespace nibble::test
