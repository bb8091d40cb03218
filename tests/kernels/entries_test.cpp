// Every entry equals `ref` bit for bit.
#include "formats/nvfp4.h"
#include "kernels/inputs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace nibble {
namespace {

using test::Quantized;

const QuantizeKernels& ref() { return quantize_kernels().back(); }

std::string difference(const QuantStats& a, const QuantStats& b) {
    std::string d;
    const auto bits = [](double x) { return std::bit_cast<uint64_t>(x); };
    const auto both = [&](const char* name, auto x, auto y) { d += fmt::format(" {}: {} / {}", name, x, y); };
    if (a.elements != b.elements) both("elements", a.elements, b.elements);
    if (a.blocks != b.blocks) both("blocks", a.blocks, b.blocks);
    if (bits(a.squared_error) != bits(b.squared_error)) both("squared_error", a.squared_error, b.squared_error);
    if (bits(a.squared_weight) != bits(b.squared_weight)) both("squared_weight", a.squared_weight, b.squared_weight);
    if (float_bits(a.max_error) != float_bits(b.max_error)) both("max_error", a.max_error, b.max_error);
    if (a.zeros != b.zeros) both("zeros", a.zeros, b.zeros);
    if (a.saturated != b.saturated) both("saturated", a.saturated, b.saturated);
    if (a.sign_flips != b.sign_flips) both("sign_flips", a.sign_flips, b.sign_flips);
    if (a.raised_blocks != b.raised_blocks) both("raised_blocks", a.raised_blocks, b.raised_blocks);
    if (a.codes != b.codes) d += " code histogram";
    if (a.scales != b.scales) d += " scale histogram";
    return d;
}

template <class T>
std::string first_difference(const char* what, const T* a, const T* b, int64_t n) {
    for (int64_t i = 0; i < n; ++i)
        if (std::memcmp(a + i, b + i, sizeof(T)) != 0) return fmt::format(" {}[{}]: {} / {}", what, i, a[i], b[i]);
    return {};
}

struct Outcome {
    QuantMatrix q;
    QuantStats made, measured;
    std::vector<float> decoded;
};

Outcome run(const QuantizeKernels& k, const MatrixView& w, const WeightSpec& spec, const TensorAmax& amax) {
    Outcome r{QuantMatrix(spec.format, w.rows, w.cols), {}, {}, std::vector<float>(size_t(w.rows * w.cols))};
    r.q.tensor_scale = tensor_scale(spec, amax);
    k.quantize(w, spec, amax, r.q.span(), r.made);
    k.decode(r.q.view(), r.decoded.data());
    k.measure(w, r.q.view(), r.measured);
    return r;
}

std::string difference(const Outcome& a, const Outcome& b) {
    return first_difference("scale", a.q.block_scales.data(), b.q.block_scales.data(),
                            int64_t(b.q.block_scales.size())) +
           first_difference("float scale", a.q.float_scales.data(), b.q.float_scales.data(),
                            int64_t(b.q.float_scales.size())) +
           first_difference("code", a.q.codes.data(), b.q.codes.data(), int64_t(b.q.codes.size())) +
           first_difference("decoded", a.decoded.data(), b.decoded.data(), int64_t(b.decoded.size())) +
           difference(a.made, b.made) + difference(a.measured, b.measured);
}

class EntryTest : public ::testing::TestWithParam<size_t> {
protected:
    void SetUp() override {
        if (!kernels().supported()) GTEST_SKIP() << "this CPU has no " << kernels().name;
    }
    const QuantizeKernels& kernels() const { return quantize_kernels()[GetParam()]; }

    // F32 panels as weights of every dtype.
    void expect_equal(const MatrixView& w, WeightSpec spec, const std::string& name) {
        for (const DType weights : {DType::bf16, DType::f16, DType::f32}) {
            spec.weights = weights;
            expect_equal_codes(w, spec, name);
            if (w.dtype == DType::bf16) break;
        }
    }

    // With the panel's own maximum, a group's larger one, and a searched one below it.
    void expect_equal_codes(const MatrixView& w, const WeightSpec& spec, const std::string& name) {
        const float g = ref().scan(w).amax;
        for (TensorAmax amax : {TensorAmax{g, g}, TensorAmax{g, g * 3.7f}, TensorAmax{g * 1.3f, g * 0.6f}}) {
            if (spec.format == Format::fp8_block128 && amax.store == g) amax.store = 0;  // tiles use their own maxima
            if (!is_finite(amax.search) || !is_finite(amax.store)) continue;
            const std::string d = difference(run(kernels(), w, spec, amax), run(ref(), w, spec, amax));
            ASSERT_EQ(d, "") << name << ", " << to_string(spec) << ", " << w.rows << "x" << w.cols << " "
                             << dtype_name(w.dtype) << " of " << dtype_name(spec.weights) << ", maxima " << amax.search
                             << " " << amax.store;
        }
    }
};

TEST_P(EntryTest, BytesDecodedValuesAndStatsOfDesignedInputsEqualRef) {
    uint32_t seed = 1;
    for (const test::Input& input : test::designed_inputs())
        for (DType dtype : {DType::bf16, DType::f32}) {
            const Matrix m = test::make_matrix(input, dtype, 9, 640, seed++);
            for (const WeightSpec& spec : test::all_specs()) expect_equal(m.view(), spec, input.name);
        }
}

TEST_P(EntryTest, OddShapesEqualRef) {
    uint32_t seed = 100;
    const test::Input input = test::designed_inputs()[1];
    for (auto [rows, cols] : {std::pair{1, 16},
                              {1, 32},
                              {3, 48},
                              {5, 96},
                              {2, 160},
                              {130, 32},
                              {257, 272},
                              {1, 4112},
                              {2, 8224},
                              {3, 128},
                              {2, 384}})
        for (DType dtype : {DType::bf16, DType::f32}) {
            const Matrix m = test::make_matrix(input, dtype, rows, cols, seed++);
            for (const WeightSpec& spec : test::all_specs())
                if (format_fits(spec.format, cols)) expect_equal(m.view(), spec, "odd shape");
        }
    for (auto [rows, cols] : {std::pair{1, 1}, {1, 7}, {3, 17}, {129, 131}, {200, 255}, {2, 1025}})
        for (DType dtype : {DType::bf16, DType::f32}) {
            const Matrix m = test::make_matrix(input, dtype, rows, cols, seed++);
            for (const WeightSpec& spec : test::all_specs())
                if (format_fits(spec.format, cols)) expect_equal(m.view(), spec, "ragged");
        }
}

TEST_P(EntryTest, EveryFiniteBf16PatternEqualsRef) {
    std::vector<uint16_t> codes;
    for (uint32_t c = 0; c < 65536; ++c)
        if (is_finite(bf16_to_float(static_cast<uint16_t>(c)))) codes.push_back(static_cast<uint16_t>(c));
    const int64_t cols = 640, rows = int64_t(codes.size()) / cols;  // in order: neighbours of one size per block
    for (const WeightSpec& spec : test::all_specs())
        expect_equal(test::bf16_matrix(rows, cols, codes).view(), spec, "in order");
    std::shuffle(codes.begin(), codes.end(), std::mt19937(5));
    for (const WeightSpec& spec : test::all_specs())
        expect_equal(test::bf16_matrix(rows, cols, codes).view(), spec, "shuffled");
}

// FP32 has numbers between a tie and its neighbours in BF16.
TEST_P(EntryTest, NumbersNextToEveryTieEqualRef) {
    constexpr float ties[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 0.0f};
    Matrix m(DType::f32, 48, 32);
    for (int64_t row = 0; row < 48; ++row)
        for (int64_t k = 0; k < 32; ++k) {
            const uint32_t tie = float_bits(std::ldexp(ties[k % 8], static_cast<int>(row / 2) - 12));
            const uint32_t neighbour = tie ? tie + static_cast<uint32_t>(k / 8) - 1 : static_cast<uint32_t>(k / 8);
            const float x = k == 7 ? std::ldexp(6.0f, static_cast<int>(row / 2) - 12) : float_from_bits(neighbour);
            const float value = row % 2 ? -x : x;
            std::memcpy(m.data.data() + 4 * (row * 32 + k), &value, 4);
        }
    for (const WeightSpec& spec : test::all_specs())
        if (format_fits(spec.format, 32)) expect_equal(m.view(), spec, "ties");
}

TEST_P(EntryTest, UnalignedPointersGiveTheSameBytes) {
    const Matrix m = test::make_matrix(test::designed_inputs()[0], DType::bf16, 4, 256, 3);
    std::vector<std::byte> shifted(m.data.size() + 2);
    std::memcpy(shifted.data() + 2, m.data.data(), m.data.size());
    const MatrixView w{DType::bf16, 4, 256, shifted.data() + 2};
    for (const WeightSpec& spec : test::all_specs()) {
        const TensorAmax amax{0.1f, spec.format == Format::fp8_block128 ? 0.0f : 0.1f};
        const Outcome want = run(ref(), m.view(), spec, amax);
        std::vector<uint8_t> codes(want.q.codes.size() + 1), scales(want.q.block_scales.size() + 1);
        std::vector<float> floats(want.q.float_scales.size()), decoded(want.decoded.size() + 1);
        QuantSpan out{spec.format, 4, 256, codes.data() + 1, scales.data() + 1, floats.data(), want.q.tensor_scale};
        QuantStats made, measured;
        kernels().quantize(w, spec, amax, out, made);
        kernels().decode(out, decoded.data() + 1);
        kernels().measure(w, out, measured);
        const std::string d =
            first_difference("code", codes.data() + 1, want.q.codes.data(), int64_t(want.q.codes.size())) +
            first_difference("scale", scales.data() + 1, want.q.block_scales.data(), int64_t(scales.size()) - 1) +
            first_difference("decoded", decoded.data() + 1, want.decoded.data(), int64_t(want.decoded.size())) +
            difference(measured, want.measured);
        EXPECT_EQ(d, "") << to_string(spec);
    }
}

TEST_P(EntryTest, PanelsInRowOrderGiveTheWholesBytesAndStats) {
    const Matrix m = test::make_matrix(test::designed_inputs()[1], DType::bf16, 300, 384, 9);
    for (const WeightSpec& spec : test::all_specs()) {
        const TensorAmax amax{0.5f, spec.format == Format::fp8_block128 ? 0.0f : 0.5f};
        const Outcome whole = run(kernels(), m.view(), spec, amax);
        Outcome parts{QuantMatrix(spec.format, 300, 384), {}, {}, std::vector<float>(300 * 384)};
        parts.q.tensor_scale = whole.q.tensor_scale;
        for (int64_t begin = 0; begin < 300; begin += 128) {
            const int64_t n = std::min<int64_t>(128, 300 - begin);
            const QuantSpan out = parts.q.span().panel(begin, n);
            kernels().quantize(m.view().panel(begin, n), spec, amax, out, parts.made);
            kernels().decode(out, parts.decoded.data() + begin * 384);
            kernels().measure(m.view().panel(begin, n), out, parts.measured);
        }
        EXPECT_EQ(difference(parts, whole), "") << to_string(spec);
    }
}

TEST_P(EntryTest, TensorLossesEqualRef) {
    const std::vector<float> multipliers = search_multipliers({Search::Kind::multipliers, 0.25f, 4.0f, 0.1f});
    uint32_t seed = 50;
    for (const test::Input& input : test::designed_inputs())
        for (DType dtype : {DType::bf16, DType::f32})
            for (int64_t cols : {16, 48, 528, 1001})
                for (const WeightSpec& spec : {WeightSpec{Format::fp8}, WeightSpec{Format::nvfp4},
                                               WeightSpec{Format::nvfp4, false, 448, {}, Arithmetic::true_division}}) {
                    if (!format_fits(spec.format, cols)) continue;
                    const Matrix m = test::make_matrix(input, dtype, 3, cols, seed++);
                    const TensorAmax amax{ref().scan(m.view()).amax, 0};
                    if (amax.search > 1e37f) continue;  // times 4 it would overflow
                    std::vector<double> want(multipliers.size(), 1.0), have(multipliers.size(), 1.0);
                    ref().tensor_losses(m.view(), spec, amax, multipliers, want);
                    kernels().tensor_losses(m.view(), spec, amax, multipliers, have);
                    ASSERT_EQ(first_difference("loss", have.data(), want.data(), int64_t(want.size())), "")
                        << input.name << " " << to_string(spec) << " " << cols;
                }
}

TEST_P(EntryTest, ScanFindsTheFiniteMaximumAndTheFirstNonfinite) {
    for (DType dtype : {DType::bf16, DType::f32})
        for (int64_t cols : {1, 31, 1000, 40000}) {
            Matrix m = test::make_matrix(test::designed_inputs()[0], dtype, 3, cols, 4);
            const Scan clean = kernels().scan(m.view());
            EXPECT_EQ(clean.amax, ref().scan(m.view()).amax);
            EXPECT_EQ(clean.first_nonfinite, -1);
            const int64_t n = 3 * cols;
            for (int64_t at : {n - 1, n / 2, int64_t{0}})
                for (uint32_t bits : {0x7F800000u, 0xFF800000u, 0x7FC00000u, 0xFFFF0000u}) {
                    const uint16_t half = static_cast<uint16_t>(bits >> 16);
                    if (dtype == DType::f32)
                        std::memcpy(m.data.data() + 4 * at, &bits, 4);
                    else
                        std::memcpy(m.data.data() + 2 * at, &half, 2);
                    const Scan found = kernels().scan(m.view()), want = ref().scan(m.view());
                    EXPECT_EQ(found.first_nonfinite, at);
                    EXPECT_EQ(found.amax, want.amax);
                }
        }
    EXPECT_EQ(kernels().scan({DType::bf16, 0, 16, nullptr}).first_nonfinite, -1);
}

INSTANTIATE_TEST_SUITE_P(Entries, EntryTest, ::testing::Range(size_t{0}, quantize_kernels().size() - 1),
                         [](const auto& info) { return std::string(quantize_kernels()[info.param].name); });

}  // namespace
}  // namespace nibble
