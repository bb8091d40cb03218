// Inputs are quantized like weights if the rules are the same, and by the formulas of formats/ otherwise.
#include "base/json.h"
#include "kernels/products.h"
#include "support/files.h"

namespace nibble {
namespace {

struct Codes {
    std::vector<uint8_t> codes, block_scales;
    std::vector<float> float_scales;
    bool operator==(const Codes&) const = default;
};

Codes quantized(const MatmulKernels& kernels, const float* x, int64_t cols, ActivationFormat f, float scale) {
    Codes c{std::vector<uint8_t>(size_t(activation_code_bytes(f, cols)), 0xEE),
            std::vector<uint8_t>(size_t(activation_block_scales(f, cols))),
            std::vector<float>(size_t(activation_float_scales(f, cols)))};
    kernels.quantize_row(x, cols, f, scale, {c.codes.data(), c.block_scales.data(), c.float_scales.data()});
    return c;
}

TEST(Activations, AreQuantizedAsWeightsOfTheSameRules) {
    const auto& weights = quantize_kernels().back();
    const std::pair<ActivationFormat, Format> same[] = {{ActivationFormat::nvfp4, Format::nvfp4},
                                                        {ActivationFormat::mxfp8, Format::mxfp8},
                                                        {ActivationFormat::fp8_token, Format::fp8_row}};
    for (const auto& input : test::designed_inputs())
        for (DType dtype : {DType::bf16, DType::f32})
            for (const auto& [activation, format] : same) {
                const Matrix m = test::make_matrix(input, dtype, 5, 192, 21);
                QuantMatrix q(format, 5, 192);
                q.tensor_scale = format == Format::nvfp4 ? 0.0013f : 1.0f;
                QuantStats stats;
                weights.quantize(m.view(), {format, false, 448, {}, Arithmetic::true_division}, {}, q.span(), stats);
                for (int64_t r = 0; r < 5; ++r) {
                    std::vector<float> x(192);
                    for (int64_t k = 0; k < 192; ++k) {
                        if (dtype == DType::f32) {
                            std::memcpy(&x[size_t(k)], m.data.data() + 4 * (r * 192 + k), 4);
                        } else {
                            uint16_t code;
                            std::memcpy(&code, m.data.data() + 2 * (r * 192 + k), 2);
                            x[size_t(k)] = bf16_to_float(code);
                        }
                    }
                    const QuantView row = q.view().panel(r, 1);
                    const Codes c = quantized(matmul_kernels().back(), x.data(), 192, activation, row.tensor_scale);
                    const auto where = input.name + " " + std::string(format_name(format));
                    EXPECT_TRUE(std::equal(c.codes.begin(), c.codes.end(), row.codes)) << where;
                    EXPECT_TRUE(std::equal(c.block_scales.begin(), c.block_scales.end(), row.block_scales)) << where;
                    EXPECT_TRUE(std::equal(c.float_scales.begin(), c.float_scales.end(), row.float_scales)) << where;
                }
            }
}

// tests/oracles/mx_inputs_peer.py: blocks of 32 and the results of compressed-tensors.
TEST(Activations, MxInputsAreThoseOfCompressedTensors) {
    const auto json = read_json_file(test::test_data("mx_inputs.json"));
    ASSERT_TRUE(json.ok()) << json.error().message();
    const auto bits = [&](const char* key) { return (*json)[key].get<std::vector<uint16_t>>(); };
    const std::vector<uint16_t> inputs = bits("inputs"), mxfp4 = bits("MXFP4"), mxfp8 = bits("MXFP8");
    ASSERT_GE(inputs.size(), 70u * 32);
    int other_scale = 0;
    for (size_t at = 0; at < inputs.size(); at += 32) {
        float x[32], amax = 0;
        for (size_t k = 0; k < 32; ++k) {
            x[k] = bf16_to_float(inputs[at + k]);
            amax = std::max(amax, magnitude(x[k]));
        }
        for (const bool fp4 : {true, false}) {
            const auto format = fp4 ? ActivationFormat::mxfp4 : ActivationFormat::mxfp8;
            const Codes c = quantized(matmul_kernels().back(), x, 32, format, 1);
            // compressed-tensors' MXFP8 scale is twice ours if the maximum is 448 times a power of two: 448 fits both.
            const bool differs = !fp4 && (float_bits(amax) & 0x7FFFFF) == 0x600000;
            other_scale += differs;
            for (size_t k = 0; k < 32; ++k) {
                const uint8_t code = fp4 ? c.codes[k / 2] >> (k % 2 * 4) & 15 : c.codes[k];
                const float value =
                    (fp4 ? e2m1_to_float(code) : e4m3_to_float(code)) * e8m0_to_float(c.block_scales[0]);
                const float want = bf16_to_float((fp4 ? mxfp4 : mxfp8)[at + k]);
                if (differs)
                    EXPECT_NEAR(value, want, 0x1p-9f * amax) << at + k;
                else
                    EXPECT_EQ(value, want) << activation_name(format) << " " << at + k << ": " << x[k];
            }
        }
    }
    EXPECT_GT(other_scale, 0);
}

TEST(Activations, AGroupOf128IsATokenOf128) {
    const auto& ref = matmul_kernels().back();
    const auto x = test::bell_rows(1, 300, 22, false);
    const Codes all = quantized(ref, x.data(), 300, ActivationFormat::fp8_group128, 1);
    ASSERT_EQ(all.float_scales.size(), 3u);
    for (int64_t g = 0; g < 3; ++g) {
        const int64_t n = std::min<int64_t>(128, 300 - g * 128);
        const Codes part = quantized(ref, &x[size_t(g * 128)], n, ActivationFormat::fp8_token, 1);
        EXPECT_EQ(part.float_scales[0], all.float_scales[size_t(g)]);
        EXPECT_TRUE(std::equal(part.codes.begin(), part.codes.end(), &all.codes[size_t(g * 128)]));
    }
}

TEST(Activations, AStaticFp8ScaleSaturates) {
    const std::vector<float> x{0.0f, -0.0f, 448.0f, 449.0f, 1e30f, -1e30f, 0.5f, 0x1p-9f};
    const Codes c = quantized(matmul_kernels().back(), x.data(), 8, ActivationFormat::fp8, 0.5f);
    EXPECT_EQ(c.codes, (std::vector<uint8_t>{0x00, 0x80, 0x7E, 0x7E, 0x7E, 0xFE, 0x38, 0x02}));
}

TEST(Activations, EveryEntryGivesTheBytesOfRef) {
    const auto& ref = matmul_kernels().back();
    for (const MatmulKernels& kernels : matmul_kernels()) {
        if (!kernels.supported() || &kernels == &ref) continue;
        for (const auto& input : test::designed_inputs())
            for (ActivationFormat f : test::activation_formats())
                for (int64_t cols : {16, 32, 48, 100, 128, 160, 576, 1000})
                    for (float scale : {1.0f, 0.0013f, 1e-30f, 1e30f}) {
                        if (!activation_fits(f, cols)) continue;
                        std::mt19937 random(23);
                        std::vector<float> x(static_cast<size_t>(cols));
                        for (int64_t k = 0; k < cols; ++k) x[size_t(k)] = input.value(random, 3, k);
                        ASSERT_EQ(quantized(kernels, x.data(), cols, f, scale),
                                  quantized(ref, x.data(), cols, f, scale))
                            << kernels.name << " " << input.name << " " << activation_name(f) << " " << cols;
                    }
    }
}

}  // namespace
}  // namespace nibble
