#include "checkpoint/gguf_source.h"

#include "formats/ggml_dequantize.h"
#include "formats/minifloat.h"
#include "io/safetensors.h"
#include "support/files.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(GgufGolden, EveryBlockTypeDecodesAsGgufPyDoes) {
    const std::filesystem::path root = test::test_data("golden/gguf");
    const auto gguf = GgufFile::open(root / "llama-mixed.gguf");
    const auto expected = SafetensorsFile::open(root / "llama-mixed.dequantized.safetensors");
    ASSERT_TRUE(gguf.ok() && expected.ok());
    for (const GgufTensor& tensor : gguf->tensors()) {
        SCOPED_TRACE(tensor.name);
        const TensorRecord* want = expected->find(tensor.name);
        ASSERT_NE(want, nullptr);
        std::vector<float> y(want->data.size() / sizeof(float));
        ASSERT_TRUE(ggml_dequantize(tensor.type, tensor.data, y.data(), y.size()).ok());
        EXPECT_EQ(std::memcmp(y.data(), want->data.data(), want->data.size()), 0) << ggml_type_name(tensor.type);
    }
}

// Reorders the rows of q and k by the formula of the reference, independently of the tested code.
TEST(GgufGolden, TheSourceGivesUnpermutedScaledRowsUnderHuggingFaceNames) {
    const std::filesystem::path root = test::test_data("golden/gguf");
    const auto source = GgufSource::open(root / "llama-mixed.gguf");
    ASSERT_TRUE(source.ok()) << source.error().message();
    const auto expected = SafetensorsFile::open(root / "llama-mixed.dequantized.safetensors");
    ASSERT_TRUE(expected.ok());
    EXPECT_EQ(source->tensors().size(), 30u) << "31 with the scale";
    for (const GgufSourceTensor& tensor : source->tensors()) {
        SCOPED_TRACE(tensor.name);
        const int64_t rows = tensor.rows(), cols = tensor.cols();
        const auto* want = reinterpret_cast<const float*>(expected->find(tensor.source->name)->data.data());
        std::vector<float> y(rows * cols);
        ASSERT_TRUE(source->read_rows(tensor, 0, rows, y.data()).ok());
        const bool permuted =
            tensor.name.find("q_proj") != std::string::npos || tensor.name.find("k_proj") != std::string::npos;
        const float scale = tensor.source->name == "blk.2.ffn_down.weight" ? 0.75f : 1.0f;
        for (int64_t h = 0; h < rows; ++h) {
            // head dim 16: HF row p*8 + i of a head is GGUF row 2i + p
            const int64_t r = h % 16, from = permuted ? h - r + 2 * (r % 8) + r / 8 : h;
            for (int64_t c = 0; c < cols; ++c)
                ASSERT_EQ(y[h * cols + c], want[from * cols + c] * scale) << h << " " << c;
        }
        // Any range gives the same rows, and BF16 values are the rounded FP32 values.
        std::vector<float> part(cols);
        std::vector<uint16_t> bf16(cols);
        for (const int64_t r : {int64_t{0}, rows / 2, rows - 1}) {
            ASSERT_TRUE(source->read_rows(tensor, r, r + 1, part.data()).ok());
            ASSERT_TRUE(source->read_rows_bf16(tensor, r, r + 1, bf16.data()).ok());
            for (int64_t c = 0; c < cols; ++c) {
                EXPECT_EQ(part[c], y[r * cols + c]);
                EXPECT_EQ(bf16[c], bf16_from_float(part[c]));
            }
        }
        EXPECT_FALSE(source->read_rows(tensor, 0, rows + 1, y.data()).ok());
        EXPECT_FALSE(source->read_rows(tensor, -1, 1, y.data()).ok());
        EXPECT_FALSE(source->read_rows_bf16(tensor, 2, 1, bf16.data()).ok());
    }
}

}  // namespace
}  // namespace nibble
