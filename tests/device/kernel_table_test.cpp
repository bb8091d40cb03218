#include "gpu_bench/kernel_table.h"

#include "gpu_bench/products.h"
#include "support/files.h"

#include <gtest/gtest.h>

namespace nibble::bench {
namespace {

const DeviceInfo device{.name = "a GPU", .multiprocessors = 4};
const MachineRates rates{.copy = 4e12, .bf16 = 800e12, .fp8 = 1600e12, .bf16_by = "BF16", .fp8_by = "FP8 tensor"};
const Vendor none{nullptr, "cuBLASLt cannot be opened"};

KernelRow row(bool fp8, double baseline_us) {
    KernelRow r{.kernel = "K", .shape = "8x8", .tokens = 3};
    r.check.compared = 10, r.check.worst = 1e-7;
    r.time = {.us = 10, .least = 9, .most = 12};
    r.bytes = 2e7, r.operations = 4e9, r.fp8 = fp8, r.baseline_us = baseline_us;
    return r;
}

std::string text_of(const KernelRow& r) {
    test::TempDir dir;
    const auto path = dir / "out";
    std::FILE* out = std::fopen(path.c_str(), "w");
    KernelTable(out, device, rates, none, "nothing").add(r);
    std::fclose(out);
    return test::read_file(path);
}

TEST(KernelTable, FractionsUseThisMachinesRatesAndTheRatioIsBaselineOverTime) {
    KernelTable table(nullptr, device, rates, none, "nothing");
    table.add(row(false, 25));
    table.add(row(true, 0));
    const Json first = table.json()["results"][0], second = table.json()["results"][1];
    EXPECT_DOUBLE_EQ(first["fraction_of_copy"].get<double>(), 0.5);
    EXPECT_DOUBLE_EQ(first["fraction_of_peak"].get<double>(), 0.5);
    EXPECT_DOUBLE_EQ(first["ratio"].get<double>(), 2.5);
    EXPECT_DOUBLE_EQ(second["fraction_of_peak"].get<double>(), 0.25);
    EXPECT_FALSE(second.contains("ratio"));
    EXPECT_TRUE(table.good());
    EXPECT_EQ(table.json()["cublaslt"], "cuBLASLt cannot be opened");
}

TEST(KernelTable, AWrongKernelHasNoTimeAndAnEmptyTableFails) {
    KernelRow wrong = row(false, 25), unchecked = row(false, 25);
    wrong.check.note("token 0 row 1: 2 instead of 3");
    unchecked.check.compared = 0;
    for (const KernelRow& r : {wrong, unchecked}) {
        KernelTable table(nullptr, device, rates, none, "nothing");
        EXPECT_FALSE(table.good());
        table.add(r);
        EXPECT_FALSE(table.good());
        EXPECT_FALSE(table.json()["results"][0].contains("microseconds"));
    }
    EXPECT_NE(text_of(wrong).find("WRONG, 1 of 10 outputs: token 0 row 1: 2 instead of 3"), std::string::npos);
}

TEST(KernelTable, AMissingLibraryIsOneLine) {
    const std::string text = text_of(row(false, 0));
    EXPECT_NE(text.find("no baseline: cuBLASLt cannot be opened\n"), std::string::npos) << text;
    EXPECT_NE(text.find("copies 4.00 TB/s"), std::string::npos) << text;
}

TEST(BenchProducts, EveryTargetFitsEveryKernel) {
    for (const ProductShape& shape : target_products()) {
        EXPECT_EQ(shape.n % 16, 0);
        EXPECT_EQ(shape.k % 256, 0);
        EXPECT_FALSE(shape.tokens.empty());
    }
    EXPECT_EQ(product_formats(),
              (std::vector<std::string_view>{"nvfp4", "bf16", "fp8+fp8", "fp8_block128+fp8_group128"}));
}

}  // namespace
}  // namespace nibble::bench
