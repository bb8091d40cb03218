#include "formats/ggml_blocks.h"

#include "formats/ggml_dequantize.h"
#include "formats/nvfp4.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

namespace nibble {
namespace {

uint32_t crc32(Bytes bytes) {
    uint32_t crc = ~0u;
    for (const std::byte b : bytes) {
        crc ^= static_cast<uint8_t>(b);
        for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

// The stream of the golden vectors: a linear congruential generator, upper byte.
struct Lcg {
    uint32_t state = 12345;
    uint32_t next() { return state = state * 1664525u + 1013904223u; }
    uint8_t byte() { return static_cast<uint8_t>(next() >> 24); }
};

struct Golden {
    GgmlType type;
    std::vector<int> fp16_fields;  // byte offsets
    uint32_t input_crc, output_crc;
};

// CRCs made by ggml's C decoders; those of Q5_0, Q5_1, Q2_K and Q3_K by gguf-py 0.19 over the same stream.
const std::vector<Golden>& goldens() {
    static const std::vector<Golden> rows{
        {GgmlType::q4_0, {0}, 0xf6ce2614, 0xc26760a7},    {GgmlType::q4_1, {0, 2}, 0x4327d12b, 0x7892909d},
        {GgmlType::q5_0, {0}, 0x62e80cb0, 0x2835b577},    {GgmlType::q5_1, {0, 2}, 0x97ff281d, 0xb62272d1},
        {GgmlType::q8_0, {0}, 0x34b92eaa, 0xfd73ccba},    {GgmlType::q2_k, {80, 82}, 0x301fa2ba, 0x9ecd056c},
        {GgmlType::q3_k, {108}, 0x2d72e4ea, 0xa086eb64},  {GgmlType::q4_k, {0, 2}, 0xb1ba8d8b, 0x112bfe41},
        {GgmlType::q5_k, {0, 2}, 0x3137dd3f, 0x154c8cf0}, {GgmlType::q6_k, {208}, 0xba141b87, 0xc7d511e0},
        {GgmlType::mxfp4, {}, 0xef297e29, 0xa85c702f},    {GgmlType::nvfp4, {}, 0x5be313fa, 0xa9ae826d},
    };
    return rows;
}

std::vector<uint8_t> golden_blocks(const Golden& golden) {
    const int64_t size = ggml_type_info(golden.type).bytes;
    std::vector<uint8_t> bytes(64 * size);
    Lcg lcg;
    for (uint8_t& b : bytes) b = lcg.byte();
    for (int b = 0; b < 64; ++b) {
        uint8_t* block = bytes.data() + b * size;
        for (size_t k = 0; k < golden.fp16_fields.size(); ++k) {
            const unsigned code = 0x2000 + 0x91 * b + 0x400 * static_cast<unsigned>(k);
            block[golden.fp16_fields[k]] = code & 255;
            block[golden.fp16_fields[k] + 1] = code >> 8 & 255;
        }
        if (golden.type == GgmlType::mxfp4) block[0] = static_cast<uint8_t>(4 * b);
        if (golden.type == GgmlType::nvfp4)
            for (int s = 0; s < 4; ++s) block[s] = (4 * b + s) & 0x7F;
    }
    return bytes;
}

TEST(GgmlBlocks, DecodingEqualsGgmlBitForBitOnTheGoldenStreams) {
    for (const Golden& golden : goldens()) {
        SCOPED_TRACE(ggml_type_name(golden.type));
        const auto bytes = golden_blocks(golden);
        EXPECT_EQ(crc32(std::as_bytes(std::span(bytes))), golden.input_crc);
        std::vector<float> y(64 * ggml_type_info(golden.type).block);
        ASSERT_TRUE(ggml_dequantize(golden.type, std::as_bytes(std::span(bytes)), y.data(), y.size()).ok());
        EXPECT_EQ(crc32(std::as_bytes(std::span(y))), golden.output_crc);
    }
}

TEST(GgmlBlocks, Fp16TableEqualsGgmlOnAll65536Codes) {
    std::vector<uint16_t> codes(65536);
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint16_t>(i);
    std::vector<float> y(65536);
    ASSERT_TRUE(ggml_dequantize(GgmlType::f16, std::as_bytes(std::span(codes)), y.data(), y.size()).ok());
    for (float& v : y)
        if (std::isnan(v)) v = 0.0f;
    EXPECT_EQ(crc32(std::as_bytes(std::span(y))), 0xef9d25e2u);
}

TEST(GgmlBlocks, TheTypeTableHasUniqueIdsAndNamesAndFindsEveryRow) {
    for (const GgmlTypeInfo& a : ggml_types) {
        EXPECT_EQ(&ggml_type_info(a.type), &a) << a.name;
        EXPECT_EQ(ggml_type_from_id(static_cast<uint32_t>(a.type))->name, a.name);
        for (const GgmlTypeInfo& b : ggml_types) EXPECT_TRUE(&a == &b || a.name != b.name) << a.name;
    }
    for (const uint32_t retired : {4u, 5u, 31u, 32u, 33u, 36u, 37u, 38u, 43u, ~0u})
        EXPECT_FALSE(ggml_type_from_id(retired)) << retired;
}

TEST(GgmlBlocks, DecodersWorkAtCompileTime) {
    constexpr auto first = [] {
        uint8_t block[36] = {0x38, 0, 0, 0, 0x27};  // scale 1.0; elements 0 and 8 are codes 7 and 2
        float y[64] = {};
        decode_nvfp4(block, y);
        return y[0] * 10 + y[8];
    }();
    static_assert(first == 61.0f);
}

TEST(GgmlBlocks, Nvfp4ScaleCodes0And7fAreZeroAndBit7IsIgnored) {
    for (int code = 0; code < 256; ++code) {
        uint8_t block[36] = {static_cast<uint8_t>(code), 0, 0, 0, 0x02};  // element 0: 1.0
        float y[64];
        decode_nvfp4(block, y);
        const int exponent = code >> 3 & 15, mantissa = code & 7;
        const double value = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
        EXPECT_EQ(y[0], code == 0x7F ? 0.0 : value) << code;
    }
}

// Every code with every block scale. The tensor scales have full mantissas, so another order of products would differ.
TEST(GgmlBlocks, Nvfp4WithATensorScaleIsTheFormatsOwnDecoding) {
    for (const float tensor_scale : {0.75f, 0.1f, 1.0f / 2688, 3.1415927e-5f, 7.0f / 3})
        for (int scale = 0; scale < e4m3_nan_code; ++scale) {
            uint8_t codes[32], scales[4], block[36];
            std::ranges::fill(scales, static_cast<uint8_t>(scale));
            for (int t = 0; t < 32; ++t) codes[t] = static_cast<uint8_t>((2 * t & 15) | ((2 * t + 1) & 15) << 4);
            pack_nvfp4(codes, scales, block);
            std::vector<float> y(64);
            ASSERT_TRUE(
                ggml_dequantize(GgmlType::nvfp4, std::as_bytes(std::span(block)), y.data(), 64, tensor_scale).ok());
            for (int i = 0; i < 64; ++i)
                ASSERT_EQ(y[i], e2m1_to_float(i & 15) * nvfp4_decode_scale(static_cast<uint8_t>(scale), tensor_scale));
        }
    float y[32];
    const uint8_t q8[34] = {};
    EXPECT_FALSE(ggml_dequantize(GgmlType::q8_0, std::as_bytes(std::span(q8)), y, 32, 0.5f).ok());
}

TEST(GgmlBlocks, Mxfp4ScalesSpanAllExponentsIncludingSubnormals) {
    for (int code = 0; code < 255; ++code) {
        uint8_t block[17] = {static_cast<uint8_t>(code), 0xA2};  // element 0: 1.0, element 16: -1.0
        float y[32];
        decode_mxfp4(block, y);
        EXPECT_EQ(y[0], std::ldexp(1.0, code - 127)) << code;
        EXPECT_EQ(y[16], -y[0]);
    }
}

TEST(GgmlBlocks, Code8DecodesToPlusZeroAsInGgml) {
    uint8_t mx[17] = {127, 0x88};
    uint8_t nv[36] = {0x38, 0, 0, 0, 0x88};
    float y[64];
    decode_mxfp4(mx, y);
    EXPECT_EQ(float_bits(y[0]), 0u);
    decode_nvfp4(nv, y);
    EXPECT_EQ(float_bits(y[0]), 0u);
}

std::string hex(std::span<const uint8_t> bytes) {
    std::string out;
    for (const uint8_t b : bytes) out += fmt::format("{:02x}", b);
    return out;
}

// Packing only moves nibbles: element i of the block is canonical element i, for every code at every position.
TEST(GgmlBlocks, PackedNvfp4DecodesToTheCanonicalCodesAndUnpacksToThem) {
    Lcg lcg;
    for (int trial = 0; trial < 100; ++trial) {
        uint8_t codes[32], scales[4], block[36], codes_back[32], scales_back[4];
        for (uint8_t& c : codes) c = lcg.byte();
        for (uint8_t& s : scales) s = lcg.byte() % 0x7F;
        pack_nvfp4(codes, scales, block);
        float y[64];
        decode_nvfp4(block, y);
        for (int i = 0; i < 64; ++i)
            EXPECT_EQ(y[i], e2m1_to_float(codes[i / 2] >> (i % 2 * 4) & 15) * e4m3_to_float(scales[i / 16]));
        unpack_nvfp4(block, codes_back, scales_back);
        EXPECT_EQ(hex(codes_back), hex(codes));
        EXPECT_EQ(hex(scales_back), hex(scales));
    }
}

TEST(GgmlBlocks, PackedMxfp4DecodesToTheCanonicalCodesAndUnpacksToThem) {
    Lcg lcg;
    for (int exponent = 0; exponent < 253; ++exponent) {
        uint8_t codes[16], block[17], codes_back[16], exponent_back = 0;
        for (uint8_t& c : codes) c = lcg.byte();
        pack_mxfp4(codes, static_cast<uint8_t>(exponent), block);
        float y[32];
        decode_mxfp4(block, y);
        for (int i = 0; i < 32; ++i)
            EXPECT_EQ(y[i], std::ldexp(e2m1_to_float(codes[i / 2] >> (i % 2 * 4) & 15), exponent - 127));
        unpack_mxfp4(block, codes_back, &exponent_back);
        EXPECT_EQ(hex(codes_back), hex(codes));
        EXPECT_EQ(exponent_back, exponent);
    }
}

// ggml's own encoders of x[i] = (i - 32) * 0.01: their blocks must decode to within half a step of the input.
TEST(GgmlBlocks, BlocksOfGgmlsEncodersDecodeNearTheirInput) {
    const uint8_t nvfp4[36] = {0x16, 0x0e, 0x0d, 0x15, 0xef, 0xef, 0xef, 0xef, 0xef, 0xde, 0xde, 0xde,
                               0xdf, 0xdf, 0xcf, 0xce, 0xbe, 0xae, 0x9e, 0x9d, 0x50, 0x61, 0x62, 0x62,
                               0x63, 0x74, 0x74, 0x75, 0x65, 0x65, 0x76, 0x76, 0x76, 0x76, 0x76, 0x76};
    const uint8_t mxfp4[34] = {0x7b, 0xdf, 0xce, 0xce, 0xce, 0xce, 0xce, 0xbe, 0xbe, 0xbe, 0xae, 0xae,
                               0xad, 0x9d, 0x9d, 0x9d, 0x0d, 0x7b, 0x50, 0x50, 0x51, 0x51, 0x51, 0x52,
                               0x62, 0x62, 0x63, 0x63, 0x63, 0x64, 0x64, 0x64, 0x64, 0x64};
    float y[64], z[64];
    decode_nvfp4(nvfp4, y);
    decode_mxfp4(mxfp4, z);
    decode_mxfp4(mxfp4 + 17, z + 32);
    for (int i = 0; i < 64; ++i) {
        const double x = (i - 32) * 0.01;
        EXPECT_NEAR(y[i], x, 0.06) << i;  // half the step between codes 4 and 6 at scale 0.055
        EXPECT_NEAR(z[i], x, 0.0626) << i;
    }
}

TEST(GgmlDequantize, RefusesWhatItCannotDecodeByName) {
    float y[256];
    std::vector<std::byte> bytes(256);
    const auto unsupported = ggml_dequantize(GgmlType::iq2_xs, Bytes(bytes).first(74), y, 256);
    ASSERT_FALSE(unsupported.ok());
    EXPECT_NE(unsupported.error().message().find("IQ2_XS"), std::string::npos);
    EXPECT_FALSE(ggml_dequantize(GgmlType::q8_0, Bytes(bytes).first(34), y, 31).ok());
    EXPECT_FALSE(ggml_dequantize(GgmlType::q8_0, Bytes(bytes).first(33), y, 32).ok());
    EXPECT_FALSE(ggml_dequantize(GgmlType::q8_0, Bytes(bytes).first(68), y, 32).ok());
    EXPECT_FALSE(ggml_dequantize(GgmlType::q8_0, Bytes(bytes).first(34), y, -32).ok());
    EXPECT_TRUE(ggml_dequantize(GgmlType::q8_0, {}, y, 0).ok());
}

TEST(GgmlDequantize, EveryTypeThatCanBeDecodedIsDecoded) {
    int decodable = 0;
    for (const GgmlTypeInfo& info : ggml_types) {
        std::vector<std::byte> zeros(info.bytes);
        std::vector<float> y(info.block, 1.0f);
        EXPECT_EQ(ggml_dequantize(info.type, zeros, y.data(), info.block).ok(), ggml_can_dequantize(info.type));
        decodable += ggml_can_dequantize(info.type);
    }
    EXPECT_EQ(decodable, 16);
}

}  // namespace
}  // namespace nibble
