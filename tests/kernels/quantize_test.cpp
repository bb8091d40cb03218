// Functions that do not depend on the kernel entry: the choice of an entry, specs, searches, statistics as a
// comparator.
#include "formats/fp8.h"
#include "formats/mx.h"
#include "formats/nvfp4.h"
#include "kernels/inputs.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(Select, TheFirstSupportedEntryIsTheDefaultAndRefIsLast) {
    const auto chosen = select_quantize_kernels();
    ASSERT_TRUE(chosen.ok());
    for (const QuantizeKernels& k : quantize_kernels()) {
        if (!k.supported()) continue;
        EXPECT_EQ((*chosen)->name, k.name);
        break;
    }
    EXPECT_EQ(quantize_kernels().back().name, "ref");
    EXPECT_TRUE(quantize_kernels().back().supported());
}

TEST(Select, EverySupportedEntryCanBeForced) {
    for (const QuantizeKernels& k : quantize_kernels()) {
        const auto chosen = select_quantize_kernels(k.name);
        ASSERT_EQ(chosen.ok(), k.supported()) << k.name;
        if (chosen.ok()) {
            EXPECT_EQ((*chosen)->name, k.name);
        }
    }
}

TEST(Select, AnUnknownNameIsAnErrorThatListsTheChoices) {
    const auto chosen = select_quantize_kernels("sse9");
    ASSERT_FALSE(chosen.ok());
    EXPECT_NE(chosen.error().message().find("sse9"), std::string::npos);
    EXPECT_NE(chosen.error().message().find("ref"), std::string::npos);
}

TEST(Spec, EverySpecOfTheTestsIsAccepted) {
    for (const WeightSpec& spec : test::all_specs()) EXPECT_TRUE(check(spec).ok()) << to_string(spec);
}

TEST(Spec, CombinationsWithoutMeaningAreErrors) {
    const Search multipliers = test::four_over_six;
    const WeightSpec bad[] = {
        {Format::none},
        {Format::mxfp4, false, 448, test::sweep},
        {Format::fp8, false, 448, test::sweep},
        {Format::nvfp4, false, 448, test::sweep},
        {Format::nvfp4, true, 256, test::sweep},
        {Format::nvfp4, false, 256},
        {Format::nvfp4_bs32, true, 448},
        {Format::fp8, true, 448},
        {Format::fp8, false, 256},
        {Format::nvfp4, true, 300},
        {Format::mxfp8, false, 448, multipliers},
        {Format::mxfp4, false, 448, multipliers},
        {Format::nvfp4_bs32, false, 448, multipliers},
        {Format::int4, false, 448, multipliers},
        {Format::nvfp4, true, 256, {Search::Kind::multipliers, 1.5f, 1.0f, 0.5f}},
        {Format::nvfp4, true, 256, {Search::Kind::multipliers, 0.0f, 1.0f, 0.5f}},
        {Format::nvfp4, true, 256, {Search::Kind::multipliers, 1.0f, 1.5f, 0.0f}},
        {Format::nvfp4, true, 256, {Search::Kind::multipliers, 1.0f, 1.5f, 1e-9f}},
        {Format::nvfp4, true, 256, {Search::Kind::multipliers, 1.0f, NAN, 0.5f}},
    };
    for (const WeightSpec& spec : bad) EXPECT_FALSE(check(spec).ok()) << format_name(spec.format);
}

TEST(Spec, TextNamesWhatMatters) {
    EXPECT_EQ(to_string({Format::nvfp4, true, 256, test::four_over_six}), "nvfp4 static/256 x{1,1.5}");
    EXPECT_EQ(to_string({Format::nvfp4, true, 448, test::sweep, Arithmetic::true_division}),
              "nvfp4 static/448 sweep true");
    EXPECT_EQ(to_string({Format::fp8}), "fp8");
}

TEST(Search, MultipliersAreTheLinspaceOfModelOptimizersDefaults) {
    EXPECT_EQ(search_multipliers(test::four_over_six), (std::vector<float>{1.0f, 1.5f}));
    const auto m = search_multipliers({Search::Kind::multipliers, 0.25f, 4.0f, 0.1f});
    ASSERT_EQ(m.size(), 39u);
    EXPECT_EQ(m.front(), 0.25f);
    EXPECT_EQ(m.back(), 4.0f);
    EXPECT_EQ(search_multipliers({Search::Kind::multipliers, 1.0f, 2.0f, 0.1f}).size(), 11u);
    EXPECT_EQ(search_multipliers({Search::Kind::multipliers, 0.5f, 1.2f, 0.1f}).size(), 8u);
    EXPECT_EQ(search_multipliers({Search::Kind::multipliers, 1.0f, 1.0f, 0.1f}), std::vector<float>{1.0f});
}

TEST(Search, ATensorSearchPrefersTheMaximumThatLosesLess) {
    // One large weight among small ones that FP8 flushes with the full maximum and keeps with a quarter of it.
    std::vector<uint16_t> codes(512, bf16_from_float(0.0003f));
    codes[7] = bf16_from_float(1.0f);
    const Matrix m = test::bf16_matrix(1, 512, codes);
    const std::vector<float> multipliers{0.25f, 1.0f};
    for (const QuantizeKernels& k : quantize_kernels()) {
        if (!k.supported()) continue;
        std::vector<double> losses(2, 0.0);
        k.tensor_losses(m.view(), {Format::fp8}, {1.0f, 1.0f}, multipliers, losses);
        EXPECT_GT(losses[0], 0.5);  // 0.75 squared: the large one is clipped
        EXPECT_LT(losses[1], 1e-4);
    }
}

TEST(Search, AnFp8TileTakesItsPartnersMaximumWhenThatIsLarger) {
    const Matrix m = test::bf16_matrix(1, 16, std::vector<uint16_t>(16, bf16_from_float(2.0f)));
    for (const QuantizeKernels& k : quantize_kernels()) {
        if (!k.supported()) continue;
        for (float partner : {0.0f, 1.0f, 7.0f}) {
            QuantMatrix q(Format::fp8_block128, 1, 16);
            QuantStats stats;
            k.quantize(m.view(), {Format::fp8_block128}, {2.0f, partner}, q.span(), stats);
            EXPECT_EQ(q.float_scales[0], fp8_scale(std::max(2.0f, partner), Arithmetic::reciprocal)) << k.name;
        }
    }
}

// ---- measure as a comparator: known faults must show ---------------------------------------------------------------

class MeasureTest : public ::testing::TestWithParam<size_t> {
protected:
    void SetUp() override {
        if (!kernels().supported()) GTEST_SKIP() << "this CPU has no " << kernels().name;
        // 4 x 64 weights that NVFP4 with block scale 1 and tensor scale 1 represents exactly.
        for (size_t i = 0; i < weights_.size(); ++i) {
            const auto code = static_cast<uint8_t>(i % 16 == 8 ? 1 : i % 16);
            weights_[i] = bf16_from_float(e2m1_to_float(code));
            q_.codes[i / 2] = static_cast<uint8_t>(i % 2 ? q_.codes[i / 2] | code << 4 : code);
        }
        for (uint8_t& s : q_.block_scales) s = 0x38;
        q_.tensor_scale = 1.0f;
    }
    const QuantizeKernels& kernels() const { return quantize_kernels()[GetParam()]; }
    QuantStats measure() const {
        const Matrix m = test::bf16_matrix(4, 64, weights_);
        QuantStats stats;
        kernels().measure(m.view(), q_.view(), stats);
        return stats;
    }
    void set_code(size_t i, uint8_t code) {
        uint8_t& byte = q_.codes[i / 2];
        byte = static_cast<uint8_t>(i % 2 ? (byte & 0x0F) | code << 4 : (byte & 0xF0) | code);
    }
    void set_weight(size_t i, float x) { weights_[i] = bf16_from_float(x); }

    std::vector<uint16_t> weights_ = std::vector<uint16_t>(256);
    QuantMatrix q_{Format::nvfp4, 4, 64};
};

TEST_P(MeasureTest, AnExactMatrixHasNoError) {
    const QuantStats s = measure();
    EXPECT_EQ(s.elements, 256);
    EXPECT_EQ(s.blocks, 16);
    EXPECT_EQ(s.squared_error, 0);
    EXPECT_EQ(s.max_error, 0);
    EXPECT_EQ(s.zeros + s.saturated + s.sign_flips, 0);
    EXPECT_EQ(s.scales[0x38], 16);
    EXPECT_EQ(s.codes[0], 16);
    EXPECT_EQ(s.codes[1], 32);
    EXPECT_EQ(s.codes[8], 0);
    EXPECT_EQ(s.codes[15], 16);
    EXPECT_EQ(s.squared_weight, 16 * (2 * (.25 + 1 + 2.25 + 4 + 9 + 16 + 36) + .25));
}

TEST_P(MeasureTest, EachFaultShowsInItsOwnNumber) {
    set_code(5, 4);  // 3 -> 2
    QuantStats s = measure();
    EXPECT_EQ(s.squared_error, 1);
    EXPECT_EQ(s.max_error, 1);
    EXPECT_EQ(s.zeros + s.saturated + s.sign_flips, 0);
    set_code(5, 5);

    set_code(66, 0);  // 1 -> 0, in the second row
    s = measure();
    EXPECT_EQ(s.zeros, 1);
    EXPECT_EQ(s.squared_error, 1);
    set_code(66, 8);  // -0 is a zero, not a flip
    EXPECT_EQ(measure().zeros, 1);
    EXPECT_EQ(measure().sign_flips, 0);
    set_code(66, 10);  // 1 -> -1
    s = measure();
    EXPECT_EQ(s.sign_flips, 1);
    EXPECT_EQ(s.zeros, 0);
    EXPECT_EQ(s.squared_error, 4);
    set_code(66, 2);

    set_weight(255, -6.5f);
    s = measure();
    EXPECT_EQ(s.saturated, 1);
    EXPECT_EQ(s.squared_error, 0.25);
    set_weight(255, -6.0f);

    q_.block_scales[3] = 0x40;  // one block doubled: its 16 errors equal the values
    s = measure();
    EXPECT_EQ(s.squared_error, 2 * (.25 + 1 + 2.25 + 4 + 9 + 16 + 36) + .25);
    EXPECT_EQ(s.max_error, 6);
    EXPECT_EQ(s.scales[0x40], 1);
    q_.block_scales[3] = 0x38;

    q_.tensor_scale = 0.5f;
    EXPECT_EQ(measure().squared_error, measure().squared_weight / 4);
}

TEST_P(MeasureTest, NibblesInTheWrongOrderAndAMissingLastBlockAreSeen) {
    const auto codes = q_.codes;
    for (uint8_t& b : q_.codes) b = static_cast<uint8_t>(b << 4 | b >> 4);
    EXPECT_GT(measure().squared_error, 0);
    q_.codes = codes;
    for (size_t b = q_.codes.size() - 8; b < q_.codes.size(); ++b) q_.codes[b] = 0;
    EXPECT_EQ(measure().zeros, 15);
}

TEST_P(MeasureTest, ANanScaleIsLoud) {
    q_.block_scales[15] = e4m3_nan_code;
    const QuantStats s = measure();
    EXPECT_TRUE(std::isnan(s.squared_error));
    EXPECT_TRUE(std::isnan(s.max_error));
    QuantStats total;
    total += s;
    total += QuantStats{};
    EXPECT_TRUE(std::isnan(total.max_error));
}

INSTANTIATE_TEST_SUITE_P(Entries, MeasureTest, ::testing::Range(size_t{0}, quantize_kernels().size()),
                         [](const auto& info) { return std::string(quantize_kernels()[info.param].name); });

// ---- ref against the scalar definitions, written out once more without its helpers ---------------------------------

TEST(Ref, CodesAndScalesFollowFromTheScalarFunctions) {
    const QuantizeKernels& ref = quantize_kernels().back();
    const Matrix m = test::make_matrix(test::designed_inputs()[1], DType::bf16, 3, 64, 11);
    const auto w = [&](int64_t i) {
        uint16_t code;
        std::memcpy(&code, m.data.data() + 2 * i, 2);
        return bf16_to_float(code);
    };
    const auto amax_of = [&](int64_t begin, int64_t n) {
        float a = 0;
        for (int64_t i = begin; i < begin + n; ++i) a = std::max(a, std::fabs(w(i)));
        return a;
    };
    for (Arithmetic arithmetic : {Arithmetic::reciprocal, Arithmetic::true_division}) {
        const auto nvfp4 = test::quantize_whole(ref, m.view(), {Format::nvfp4, false, 448, {}, arithmetic}).matrix;
        const auto mxfp8 = test::quantize_whole(ref, m.view(), {Format::mxfp8, false, 448, {}, arithmetic}).matrix;
        const auto rows = test::quantize_whole(ref, m.view(), {Format::fp8_row, false, 448, {}, arithmetic}).matrix;
        for (int64_t i = 0; i < 192; ++i) {
            const uint8_t scale = nvfp4_dynamic_scale(amax_of(i / 16 * 16, 16), nvfp4.tensor_scale);
            EXPECT_EQ(nvfp4.block_scales[size_t(i / 16)], scale);
            EXPECT_EQ(nvfp4.codes[size_t(i / 2)] >> (i % 2 * 4) & 15,
                      nvfp4_code(w(i), nvfp4_decode_scale(scale, nvfp4.tensor_scale)));
            const uint8_t exponent = mxfp8_scale(amax_of(i / 32 * 32, 32));
            EXPECT_EQ(mxfp8.block_scales[size_t(i / 32)], exponent);
            EXPECT_EQ(mxfp8.codes[size_t(i)], mxfp8_code(w(i), mx_inverse_scale(exponent)));
            const float row_scale = fp8_scale(amax_of(i / 64 * 64, 64), arithmetic);
            EXPECT_EQ(rows.float_scales[size_t(i / 64)], row_scale);
            EXPECT_EQ(rows.codes[size_t(i)], fp8_code(w(i), row_scale));
        }
    }
}

TEST(Ref, MasterWeightsInFp32GiveMaximaBeforeAndCodesAfterRoundingToBf16) {
    Matrix m(DType::f32, 1, 16);
    // 1 + 2^-8 - 2^-20 rounds to 1; its own value makes the maximum.
    const float x = 1.0f + 0x1p-8f - 0x1p-20f;
    for (int i = 0; i < 16; ++i) std::memcpy(m.data.data() + 4 * i, &x, 4);
    for (const QuantizeKernels& k : quantize_kernels()) {
        if (!k.supported()) continue;
        const auto q = test::quantize_whole(k, m.view(), {Format::fp8_row, false, 448, {}, Arithmetic::true_division});
        EXPECT_EQ(q.matrix.float_scales[0], x / 448.0f);
        EXPECT_EQ(q.matrix.codes[0], fp8_code(1.0f, x / 448.0f));
    }
}

TEST(Ref, WeightsInF16AndF32KeepTheirOwnValues) {
    // Between a tie and the next BF16 number; the largest one makes every scale 1, or 1/64 in FP8.
    const float x = 0.75f + 0x1p-10f;
    Matrix m(DType::f32, 1, 32);
    for (int i = 0; i < 32; ++i) {
        const float value = i == 0 ? 6.0f : i == 1 ? 0.75f : x;
        std::memcpy(m.data.data() + 4 * i, &value, 4);
    }
    for (const QuantizeKernels& k : quantize_kernels()) {
        if (!k.supported()) continue;
        for (const DType weights : {DType::bf16, DType::f16, DType::f32}) {
            WeightSpec spec{Format::mxfp4};
            spec.weights = weights;
            const auto mx = test::quantize_whole(k, m.view(), spec).matrix;
            EXPECT_EQ(mx.codes[0], 0x17) << k.name;  // the tie itself goes down
            EXPECT_EQ(mx.codes[1], weights == DType::bf16 ? 0x11 : 0x22) << k.name << " " << dtype_name(weights);
            spec.format = Format::fp8;
            spec.arithmetic = Arithmetic::true_division;
            const auto fp8 = test::quantize_whole(k, m.view(), spec).matrix;
            const float rounded = weights == DType::bf16 ? 0.75f : x;
            EXPECT_EQ(fp8.codes[2], fp8_tensor_code(rounded, 6.0f / 448.0f, weights)) << k.name;
        }
    }
}

TEST(Ref, AnF16DivisorThatWouldVanishStaysFp32) {
    EXPECT_EQ(fp8_tensor_divisor(0x1p-26f, Arithmetic::reciprocal, DType::f16), 0x1p-26f);
    EXPECT_EQ(fp8_tensor_divisor(1.25e-5f, Arithmetic::reciprocal, DType::f16),
              fp16_to_float(fp16_from_float(1.25e-5f)));
    EXPECT_EQ(fp8_tensor_divisor(1.005f, Arithmetic::reciprocal, DType::f32), 1.005f);
}

}  // namespace
}  // namespace nibble
