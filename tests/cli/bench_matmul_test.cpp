#include "measure/matmul.h"

#include "kernels/matmul.h"
#include "support/files.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <set>

namespace nibble {
namespace {

std::string run(const BenchMatmulOptions& options, bool* ok = nullptr) {
    test::TempDir dir;
    const auto path = dir / "out";
    std::FILE* out = std::fopen(path.c_str(), "w");
    const Status status = bench_matmul(options, out);
    std::fclose(out);
    if (ok) *ok = status.ok();
    return status.ok() ? test::read_file(path) : status.error().message();
}

TEST(BenchMatmul, JsonHoldsDecodeAndPrefillOfEveryVectorKernelAndShape) {
    bool ok = false;
    const auto json = nlohmann::json::parse(
        run({.format = "nvfp4", .rows = 3, .megabytes = 1, .threads = 1, .repetitions = 1, .json = true}, &ok));
    ASSERT_TRUE(ok);
    std::set<std::string> kernels, want, shapes;
    std::set<int> rows;
    for (const auto& line : json["results"]) {
        kernels.insert(line["kernel"]);
        shapes.insert(line["shape"]);
        rows.insert(line["rows"].get<int>());
        EXPECT_EQ(line["format"], "nvfp4");
        EXPECT_GT(line["fraction"].get<double>(), 0) << line;
    }
    for (const MatmulKernels& k : matmul_kernels())
        if (k.supported() && k.name != "ref") want.emplace(k.name);
    if (want.empty()) want.emplace("ref");
    EXPECT_EQ(kernels, want);
    EXPECT_EQ(rows, (std::set<int>{1, 3}));
    EXPECT_EQ(shapes.size(), 4u);
}

TEST(BenchMatmul, BadOptionsAreErrorsThatNameTheChoices) {
    EXPECT_NE(run({.shapes = "opt"}).find("smollm2, llama, all"), std::string::npos);
    EXPECT_NE(run({.format = "int8"}).find("nvfp4+nvfp4"), std::string::npos);
    EXPECT_NE(run({.kernel = "sse9"}).find("ref"), std::string::npos);
    for (const BenchMatmulOptions& bad :
         {BenchMatmulOptions{.rows = 1}, BenchMatmulOptions{.megabytes = 0}, BenchMatmulOptions{.repetitions = 0}}) {
        bool ok = true;
        run(bad, &ok);
        EXPECT_FALSE(ok);
    }
}

}  // namespace
}  // namespace nibble
