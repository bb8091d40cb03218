#include "measure/quantize.h"

#include "kernels/quantize.h"
#include "support/files.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <set>

namespace nibble {
namespace {

std::string run(const BenchQuantizeOptions& options, bool* ok = nullptr) {
    test::TempDir dir;
    const auto path = dir / "out";
    std::FILE* out = std::fopen(path.c_str(), "w");
    const Status status = bench_quantize(options, out);
    std::fclose(out);
    if (ok) *ok = status.ok();
    return status.ok() ? test::read_file(path) : status.error().message();
}

TEST(BenchQuantize, JsonHoldsEveryKernelAndThreadCountWithPositiveRates) {
    BenchQuantizeOptions options{.rows = 130, .cols = 256, .threads = 2, .kernel = "", .repetitions = 1, .json = true};
    bool ok = false;
    const auto json = nlohmann::json::parse(run(options, &ok));
    ASSERT_TRUE(ok);
    std::set<std::string> kernels, want;
    std::set<int> threads;
    for (const auto& line : json["results"]) {
        kernels.insert(line["kernel"]);
        threads.insert(line["threads"].get<int>());
        EXPECT_GT(line["bytes_per_second"].get<double>(), 0) << line;
        EXPECT_GT(line["fraction_of_memcpy"].get<double>(), 0) << line;
    }
    for (const QuantizeKernels& k : quantize_kernels())
        if (k.supported()) want.emplace(k.name);
    EXPECT_EQ(kernels, want);
    EXPECT_EQ(threads, (std::set<int>{1, 2}));
}

TEST(BenchQuantize, TheTableNamesTheForcedKernelOnly) {
    bool ok = false;
    const std::string text = run({.rows = 4, .cols = 64, .threads = 1, .kernel = "ref", .repetitions = 1}, &ok);
    ASSERT_TRUE(ok) << text;
    EXPECT_NE(text.find("nvfp4 four-over-six     ref"), std::string::npos) << text;
    EXPECT_EQ(text.find("avx"), std::string::npos);
}

TEST(BenchQuantize, ShapesAndNamesThatCannotWorkAreErrors) {
    bool ok = true;
    run({.rows = 4, .cols = 65}, &ok);
    EXPECT_FALSE(ok);
    run({.rows = 0, .cols = 64}, &ok);
    EXPECT_FALSE(ok);
    EXPECT_NE(run({.rows = 4, .cols = 64, .kernel = "mmx"}, &ok).find("mmx"), std::string::npos);
    EXPECT_FALSE(ok);
}

}  // namespace
}  // namespace nibble
