#include "quant/panels.h"

#include "formats/minifloat.h"
#include "quant/fakes.h"

#include <gtest/gtest.h>

#include <cstring>

namespace nibble::test {
namespace {

const QuantizeKernels& kernels() { return **select_quantize_kernels("ref"); }

TEST(Panels, CoverEveryRowOnceInWholeTilesForEveryShape) {
    for (const Format format : {Format::none, Format::nvfp4, Format::fp8_block128})
        for (const int64_t rows : {0, 1, 127, 128, 129, 4096, 100'000})
            for (const int64_t cols : {0, 1, 16, 4096, 8192, 53'248, 3'000'000}) {
                const Panels panels(format, rows, cols);
                int64_t next = 0;
                for (int64_t p = 0; p < panels.count(); ++p) {
                    EXPECT_EQ(panels.begin(p), next);
                    EXPECT_GT(panels.size(p), 0);
                    next += panels.size(p);
                    if (format == Format::fp8_block128) {
                        EXPECT_EQ(panels.begin(p) % 128, 0);
                    }
                    if (format != Format::fp8_block128 && cols <= panel_elements) {
                        EXPECT_LE(panels.size(p) * cols, panel_elements);
                    }
                }
                EXPECT_EQ(next, rows);
            }
}

TEST(Panels, EveryF16CodeIsWidenedToItsValue) {
    FakeCheckpoint source;
    std::vector<uint8_t> bytes(2 * 65536);
    for (size_t code = 0; code < 65536; ++code) {
        bytes[2 * code] = static_cast<uint8_t>(code);
        bytes[2 * code + 1] = static_cast<uint8_t>(code >> 8);
    }
    source.add_plain("w", {256, 256}, DType::f16, bytes);
    PanelScratch scratch;
    const auto view = read_weights(source, 0, 0, 256, kernels(), scratch);
    ASSERT_TRUE(view.ok());
    ASSERT_EQ(view->dtype, DType::f32);
    for (size_t code = 0; code < 65536; ++code) {
        uint32_t bits;
        std::memcpy(&bits, view->data + 4 * code, 4);
        ASSERT_EQ(bits, float_bits(fp16_to_float(static_cast<uint16_t>(code)))) << code;
    }
}

TEST(Panels, F64IsAcceptedOnlyIfExact) {
    const auto read = [](std::vector<double> values) {
        FakeCheckpoint source;
        std::vector<uint8_t> bytes(8 * values.size());
        std::memcpy(bytes.data(), values.data(), bytes.size());
        source.add_plain("w", {1, static_cast<int64_t>(values.size())}, DType::f64, bytes);
        PanelScratch scratch;
        return read_weights(source, 0, 0, 1, kernels(), scratch).ok();
    };
    EXPECT_TRUE(read({0.5, -3, 0}));
    EXPECT_FALSE(read({0.5, 0.1}));
    EXPECT_FALSE(read({1e300}));
}

TEST(Panels, IntegersAreRefused) {
    FakeCheckpoint source;
    source.add_plain("w", {1, 4}, DType::i8, std::vector<uint8_t>(4));
    PanelScratch scratch;
    const auto view = read_weights(source, 0, 0, 1, kernels(), scratch);
    ASSERT_FALSE(view.ok());
    EXPECT_EQ(view.error().message(), "I8 is not a type of weights (BF16, F16, F32)");
}

}  // namespace
}  // namespace nibble::test
