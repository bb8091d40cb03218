// Golden vectors of Model Optimizer's own classes, for every kernel entry.
#include "kernels/matrices.h"
#include "support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace nibble {
namespace {

constexpr Arithmetic cpu = Arithmetic::true_division, cuda = Arithmetic::reciprocal;

struct Golden {
    WeightSpec spec;
    std::string scalars;  // FP32 bits of the tensor scale or of the tile scales
    std::string scales;   // SHA-256 of block or row scales
    std::string codes;
    int64_t raised = 0;
};

const std::string same;  // not given

std::vector<Golden> goldens() {
    using enum Format;
    std::vector<Golden> g;
    for (Arithmetic a : {cpu, cuda}) {
        g.push_back({{nvfp4, false, 448, {}, a},
                     "38c24925",
                     "c4fdba9c4a44acd86d974914c741693c7023a129063cea4582f4c9726348a309",
                     "a87ef9ef223333fe617b9cbd938b1ddd8c919f0e95e6a8e4350b35734228fed8"});
        g.push_back({{nvfp4, true, 448, {}, a},
                     "38c24925",
                     "7f4341d2b9d15dcd402bd66d26e1c94e47678b2b103b3b657b6931629d3790c3",
                     "a87ef9ef223333fe617b9cbd938b1ddd8c919f0e95e6a8e4350b35734228fed8"});
        g.push_back({{nvfp4, true, 256, {}, a},
                     "392a0000",
                     "495ff602a35bc149260177b3cb35f3648c0433e850730588076296e29b1901b7",
                     "bd8e0a1dbf51995ff8c94060cefe91274e0accac6f969e521d48796d76c25e86"});
        g.push_back({{mxfp8, false, 448, {}, a},
                     "3f800000",
                     "c8ad39cf5b38cfdc07cc18929962716fb4c723f4c212ce654ec7fbbbda4124b9",
                     "8e8139637ca485e54c244bda08ef546aed6157f63f958794fb87971147296f32"});
        g.push_back({{mxfp4, false, 448, {}, a},
                     "3f800000",
                     "0ebb84047fd0be5ce3460cec508644d05790a44aad81e42d76c1f6ce0b114627",
                     "101d6a5acebf5a38f67165d1900e7a26e9550142d97b348c996985a8686d85ca"});
    }
    g.push_back({{nvfp4, true, 256, test::four_over_six, cuda},
                 "392a0000",
                 "b38c9b972bfaab9d2483f4827adc09696139127bd48764ccdf545fa37cbdd587",
                 "60c5e001b0769eda93a02939184c40f9affa5e9625905bbc791a8f2b7f07cb40",
                 1369});
    g.push_back({{nvfp4, true, 448, test::sweep, cuda},
                 "38c24925",
                 "a79d8f5a5b8cc163d84fffe36f64672d08e26fe65734a57264acb5c20e967c85",
                 "2ecc11d37a504d3df8449a9a4f1a9ea7f6e193ba5ee794ac5081d28ed3ff471e"});
    g.push_back({{fp8, false, 448, {}, cpu},
                 "3a11b6db",
                 same,
                 "2c01af0c77a7a0bd1535b47a205757ec655ff403516199c34fbf062b3e1d805e"});
    g.push_back({{fp8, false, 448, {}, cuda},
                 "3a11b6dc",
                 same,
                 "7087481b6dca0c66da034e45145d5d01bd4c44c1b9f7e9cc7bae21432fa2c59a"});
    g.push_back({{fp8_row, false, 448, {}, cpu},
                 "",
                 "8517df097b499d447080bd87626c4627bd3e441a9c25ebfd90ec62b8e7b9d668",
                 "7f0fbd54e49a09a69caf34c8a00d0d716021b97f86476e0d1021cd2a03ab2621"});
    g.push_back({{fp8_row, false, 448, {}, cuda},
                 "",
                 "b354468102bfcf426d49c169197519499e86269102ab4bc4759771fbf1d1aee3",
                 "a8b1c7cf4fbf7d992e1c318788a0270e507f372d8e14510b1b2b0b3504581f81"});
    g.push_back({{fp8_block128, false, 448, {}, cpu},
                 "3a11b6db 3a109249 3a0f6db7 3a100000",
                 same,
                 "8674bff3a6221081a85c2463f89cdb71aca824c12b6dcc438f3eec9dd1f4474b"});
    g.push_back({{fp8_block128, false, 448, {}, cuda},
                 "3a11b6dc 3a10924a 3a0f6db7 3a100000",
                 same,
                 "c9362ba76b8c80b3b30605c97c9fa4dedf6223bf512fb5b4ec82ea9f9ab51ecc"});
    return g;
}

std::string hex(const uint8_t* bytes, size_t n) {
    std::string text;
    for (size_t i = 0; i < n; ++i) text += fmt::format("{:02x}", bytes[i]);
    return text;
}

std::string scalars_of(const QuantMatrix& q) {
    if (q.format == Format::fp8_row) return "";
    std::string text;
    if (q.format != Format::fp8_block128) return fmt::format("{:08x}", float_bits(q.tensor_scale));
    for (float s : q.float_scales) text += fmt::format("{}{:08x}", text.empty() ? "" : " ", float_bits(s));
    return text;
}

class GoldenTest : public ::testing::TestWithParam<size_t> {
protected:
    void SetUp() override {
        kernels_ = &quantize_kernels()[GetParam()];
        if (!kernels_->supported()) GTEST_SKIP() << "this CPU has no " << kernels_->name;
    }
    test::Quantized run(const WeightSpec& spec) const { return test::quantize_whole(*kernels_, matrix_.view(), spec); }

    const QuantizeKernels* kernels_ = nullptr;
    Matrix matrix_ = test::golden_matrix();
};

TEST_P(GoldenTest, TheInputIsTheOneTheHashesWereMadeOf) {
    EXPECT_EQ(test::sha256(matrix_.data), "a083e39e47559e03c6137cf397aa608ec3461e414bf452e614d7709aac9a4b61");
}

TEST_P(GoldenTest, EveryHashIsModelOptimizers) {
    for (const Golden& golden : goldens()) {
        SCOPED_TRACE(to_string(golden.spec));
        ASSERT_TRUE(check(golden.spec).ok());
        const auto [q, stats] = run(golden.spec);
        EXPECT_EQ(scalars_of(q), golden.scalars);
        const auto scales = golden.spec.format == Format::fp8_row ? std::as_bytes(std::span(q.float_scales))
                                                                  : std::as_bytes(std::span(q.block_scales));
        if (golden.scales != same) {
            EXPECT_EQ(test::sha256(scales), golden.scales);
        }
        EXPECT_EQ(test::sha256(std::as_bytes(std::span(q.codes))), golden.codes);
        EXPECT_EQ(stats.raised_blocks, golden.raised);
    }
}

TEST_P(GoldenTest, RowFiveAndTheZeroBlocksHaveTheDocumentedBytes) {
    const auto nvfp4 = run({Format::nvfp4});
    EXPECT_EQ(hex(&nvfp4.matrix.block_scales[5 * 16], 16), "7174707b7978796c6f76797777787472");
    EXPECT_EQ(hex(&nvfp4.matrix.codes[5 * 128], 16), "8e6710895b00958ae8f8b1cba89049e9");
    const auto raised = run({Format::nvfp4, true, 256, test::four_over_six});
    EXPECT_EQ(hex(&raised.matrix.block_scales[5 * 16], 16), "6b726974787578656d70727171716d6c");
    EXPECT_EQ(hex(&raised.matrix.codes[5 * 128], 16), "8e5710895b00958ad8e8a1ba989038d9");
    const auto fp8 = run({Format::fp8});
    EXPECT_EQ(hex(&fp8.matrix.codes[5 * 256], 16), "ecc9716b0059d8a2e26803496acddc80");
    const auto mx = run({Format::mxfp4});
    EXPECT_EQ(hex(&mx.matrix.block_scales[5 * 8], 8), "7a7b7a7a7a7a7a7a");
    EXPECT_EQ(hex(&mx.matrix.codes[5 * 128], 16), "8b35108929008389c8d8a1aa989028d8");

    EXPECT_EQ(nvfp4.matrix.block_scales[0], 0x38);   // zero row
    EXPECT_EQ(nvfp4.matrix.block_scales[16], 0x38);  // zero block
    EXPECT_EQ(nvfp4.matrix.block_scales[32], 0x01);  // tiny
    EXPECT_EQ(raised.matrix.block_scales[0], 0x7E);
    EXPECT_EQ(run({Format::nvfp4, true, 448}).matrix.block_scales[0], 0x7E);
    EXPECT_EQ(run({Format::nvfp4, true, 448, test::sweep}).matrix.block_scales[0], 0x01);
    EXPECT_EQ(mx.matrix.block_scales[0], 0);
    EXPECT_EQ(mx.matrix.codes[0], 0x88);
}

INSTANTIATE_TEST_SUITE_P(Entries, GoldenTest, ::testing::Range(size_t{0}, quantize_kernels().size()),
                         [](const auto& info) { return std::string(quantize_kernels()[info.param].name); });

}  // namespace
}  // namespace nibble
