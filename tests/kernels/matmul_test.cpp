// The product against double precision, and changes that must not affect its bits.
#include "kernels/products.h"

#include <array>
#include <numeric>

namespace nibble {
namespace {

using test::product;
using test::Weight;

constexpr int64_t any_k = 640, any_n = 70;

void expect_bits(const std::vector<float>& a, const std::vector<float>& b, const std::string& what) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i)
        ASSERT_TRUE(float_bits(a[i]) == float_bits(b[i]) || (std::isnan(a[i]) && std::isnan(b[i])))
            << what << ": element " << i << ": " << a[i] << " and " << b[i];
}

std::vector<const MatmulKernels*> supported_in(SumOrder order) {
    std::vector<const MatmulKernels*> all;
    for (const MatmulKernels& k : matmul_kernels(order))
        if (k.supported()) all.push_back(&k);
    return all;
}

class Matmul : public testing::TestWithParam<SumOrder> {
protected:
    static std::vector<const MatmulKernels*> supported() { return supported_in(GetParam()); }
    static const MatmulKernels& ref() { return matmul_kernels(GetParam()).back(); }
};
INSTANTIATE_TEST_SUITE_P(Sums, Matmul, testing::Values(SumOrder::lanes, SumOrder::tiles),
                         [](const auto& order) { return order.param == SumOrder::tiles ? "InTiles" : "InLanes"; });

TEST(MatmulSelect, TheFirstSupportedEntryIsTheDefaultAndRefIsLast) {
    const auto chosen = select_matmul_kernels();
    ASSERT_TRUE(chosen.ok());
    EXPECT_EQ(*chosen, supported_in(SumOrder::lanes).front());
    EXPECT_EQ(matmul_kernels().back().name, "ref");
    const auto unknown = select_matmul_kernels("sse9");
    ASSERT_FALSE(unknown.ok());
    EXPECT_NE(unknown.error().message().find("ref"), std::string::npos);
}

TEST(MatmulSelect, TilesAreAModeByNameWithoutASilentRef) {
    const auto chosen = select_matmul_kernels({}, SumOrder::tiles);
    const bool amx = supported_in(SumOrder::tiles).size() == 2;
    ASSERT_EQ(chosen.ok(), amx);
    if (amx)
        EXPECT_EQ((*chosen)->name, "amx");
    else
        EXPECT_NE(chosen.error().message().find("no AMX"), std::string::npos);
    ASSERT_TRUE(select_matmul_kernels("ref", SumOrder::tiles).ok());
    EXPECT_FALSE(select_matmul_kernels("avx512", SumOrder::tiles).ok());
}

TEST_P(Matmul, RefEqualsDoublePrecisionWithinTheBoundOfAnFp32Sum) {
    ThreadPool pool(2);
    for (const auto& kind : test::weight_kinds()) {
        const Weight w = test::make_weight(kind.format, kind.dtype, any_n, any_k, 1);
        const auto packed = w.pack(pool);
        ASSERT_TRUE(packed.ok()) << packed.error().message();
        const auto values = w.values();
        for (ActivationFormat f : test::activation_formats()) {
            const auto x = test::bell_rows(3, any_k, 2, GetParam() == SumOrder::tiles);  // tiles round them
            const auto y = product(ref(), *packed, x, 3, f, pool);
            for (int64_t m = 0; m < 3; ++m) {
                const auto row = test::activation_values(&x[size_t(m * any_k)], any_k, f, test::input_scale_for(f));
                for (int64_t n = 0; n < any_n; ++n) {
                    double sum = 0, size = 0;
                    for (int64_t k = 0; k < any_k; ++k) {
                        const double term = double{row[size_t(k)]} * values[size_t(n * any_k + k)];
                        sum += term, size += std::fabs(term);
                    }
                    // A chain of at most 256 + 36 roundings, and a few of scales.
                    ASSERT_NEAR(y[size_t(m * any_n + n)], sum, size * 300 * 0x1p-24)
                        << kind.name << " " << activation_name(f) << " row " << m << " output " << n;
                }
            }
        }
    }
}

// A token's result depends on that token only, for every entry.
TEST_P(Matmul, EveryEntryGivesTheBitsOfRefForEveryM) {
    ThreadPool pool(2);
    for (const auto& kind : test::weight_kinds()) {
        for (const auto& [n, k] :
             std::initializer_list<std::pair<int64_t, int64_t>>{{70, 640}, {1, 32}, {33, 288}, {160, 1056}}) {
            if (kind.format != Format::none && !format_fits(kind.format, k)) continue;
            const Weight w = test::make_weight(kind.format, kind.dtype, n, k, 3);
            const auto packed = w.pack(pool);
            ASSERT_TRUE(packed.ok()) << packed.error().message();
            const int64_t most = 64;
            const auto x = test::bell_rows(most, k, 4, false);
            for (ActivationFormat f : test::activation_formats()) {
                const auto truth = product(ref(), *packed, x, most, f, pool);
                for (const MatmulKernels* kernels : supported())
                    for (int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 25, 64}) {
                        if (kernels == &ref() && m != 5) continue;
                        expect_bits(product(*kernels, *packed, x, m, f, pool), {truth.begin(), truth.begin() + m * n},
                                    fmt::format("{} {} {} m={} n={} k={}", kernels->name, kind.name, activation_name(f),
                                                m, n, k));
                        if (testing::Test::HasFatalFailure()) return;
                    }
            }
        }
    }
}

TEST_P(Matmul, RaggedK) {
    ThreadPool pool(2);
    for (const auto& kind : test::weight_kinds()) {
        if (format_layout(kind.format).whole_inputs()) continue;
        for (int64_t k : {1, 2, 3, 5, 31, 127, 129, 255, 257, 511, 515}) {
            const Weight w = test::make_weight(kind.format, kind.dtype, 37, k, 5);
            const auto packed = w.pack(pool);
            ASSERT_TRUE(packed.ok()) << packed.error().message();
            const auto x = test::bell_rows(18, k, 6);
            for (ActivationFormat f : test::activation_formats()) {
                if (!activation_fits(f, k)) continue;
                const auto truth = product(ref(), *packed, x, 18, f, pool);
                for (const MatmulKernels* kernels : supported())
                    for (int64_t m : {1, 2, 5, 18}) {
                        expect_bits(
                            product(*kernels, *packed, x, m, f, pool), {truth.begin(), truth.begin() + m * 37},
                            fmt::format("{} {} {} m={} k={}", kernels->name, kind.name, activation_name(f), m, k));
                        if (testing::Test::HasFatalFailure()) return;
                    }
            }
        }
    }
}

TEST_P(Matmul, ThreadsAndStridesChangeNoBit) {
    ThreadPool one(1), three(3);
    for (const auto& kind : test::weight_kinds()) {
        const Weight w = test::make_weight(kind.format, kind.dtype, 200, 512, 7);
        const auto packed = w.pack(three);
        ASSERT_TRUE(packed.ok());
        for (const MatmulKernels* kernels : supported())
            for (int64_t m : {1, 3, 20}) {
                const auto x = test::bell_rows(m, 512 + 5, 8);
                std::vector<float> dense, y(size_t(m * 203), -1.0f), z(size_t(m * 200));
                for (int64_t i = 0; i < m; ++i)
                    dense.insert(dense.end(), &x[size_t(i * 517)], &x[size_t(i * 517)] + 512);
                kernels->matmul(*packed, {x.data(), m, 517}, {y.data(), 203}, three);
                kernels->matmul(*packed, {dense.data(), m, 512}, {z.data(), 200}, one);
                for (int64_t i = 0; i < m; ++i) {
                    expect_bits({&y[size_t(i * 203)], &y[size_t(i * 203)] + 200},
                                {&z[size_t(i * 200)], &z[size_t(i * 200)] + 200}, kind.name);
                    for (int64_t j = 200; j < 203; ++j) ASSERT_EQ(y[size_t(i * 203 + j)], -1.0f);
                }
            }
    }
}

TEST_P(Matmul, AGatedProductIsTheProductAndThenTheActivation) {
    ThreadPool one(1), three(3);
    const ElementwiseKernels& plain = elementwise_kernels().back();
    constexpr std::array<std::pair<int64_t, int64_t>, 3> shapes{{{64, 64}, {192, 640}, {448, 288}}};
    for (const auto& kind : test::weight_kinds())
        for (const auto& [n, k] : shapes) {
            if (kind.format != Format::none && !format_fits(kind.format, k)) continue;
            const Weight w = test::make_weight(kind.format, kind.dtype, n, k, 9);
            const auto packed = w.pack(three);
            ASSERT_TRUE(packed.ok()) << packed.error().message();
            const auto x = test::bell_rows(40, k, 10, false), bias = test::bell_rows(1, n, 11);
            for (const ActivationFormat f :
                 {ActivationFormat::none, ActivationFormat::nvfp4, ActivationFormat::fp8_group128})
                for (const int64_t m : {1, 2, 9, 16, 40}) {
                    const bool bf16 = m % 2, biased = m > 2;
                    const auto activation = static_cast<Activation>(m % 3);
                    const MatmulInput in{x.data(), m, k, f, test::input_scale_for(f)};
                    std::vector<float> both(size_t(m * n)), want(size_t(m * n / 2));
                    ref().matmul(*packed, in, {both.data(), n, biased ? bias.data() : nullptr, bf16}, one);
                    for (int64_t i = 0; i < m; ++i)
                        plain.activate(activation, &both[size_t(i * n)], &both[size_t(i * n + n / 2)], n / 2, bf16,
                                       &want[size_t(i * n / 2)]);
                    for (const MatmulKernels* kernels : supported())
                        for (ThreadPool* pool : {&one, &three}) {
                            std::vector<float> got(want.size(), -1.0f);
                            kernels->matmul(*packed, in,
                                            {got.data(), n / 2, biased ? bias.data() : nullptr, bf16, activation},
                                            *pool);
                            expect_bits(got, want,
                                        fmt::format("{} {} {} m={} n={} k={}", kernels->name, kind.name,
                                                    activation_name(f), m, n, k));
                            if (testing::Test::HasFatalFailure()) return;
                        }
                }
        }
}

TEST_P(Matmul, BiasAndRoundingFollowTheProduct) {
    ThreadPool pool(2);
    constexpr int64_t n = 200, k = 512;
    const std::vector<float> bias = test::bell_rows(1, n, 9);
    for (const auto& kind : test::weight_kinds()) {
        const auto packed = test::make_weight(kind.format, kind.dtype, n, k, 7).pack(pool);
        ASSERT_TRUE(packed.ok());
        for (const MatmulKernels* kernels : supported())
            for (int64_t m : {1, 7, 20}) {
                const auto x = test::bell_rows(m, k, 8);
                const auto plain = product(*kernels, *packed, x, m, ActivationFormat::none, pool);
                for (const bool biased : {false, true})
                    for (const bool bf16 : {false, true}) {
                        std::vector<float> y(plain.size()), expected = plain;
                        for (size_t i = 0; i < expected.size(); ++i) {
                            if (biased) expected[i] += bias[i % size_t(n)];
                            if (bf16) expected[i] = round_to_bf16(expected[i]);
                        }
                        kernels->matmul(*packed, {x.data(), m, k}, {y.data(), n, biased ? bias.data() : nullptr, bf16},
                                        pool);
                        expect_bits(y, expected, fmt::format("{} {} m={}", kernels->name, kind.name, m));
                        if (testing::Test::HasFatalFailure()) return;
                    }
            }
    }
}

// Designed weights: every code with every exportable scale, huge and tiny values.
TEST_P(Matmul, DesignedWeightsOnEveryEntry) {
    ThreadPool pool(2);
    for (const auto& input : test::designed_inputs()) {
        if (input.name.starts_with("huge") || input.name == "any finite BF16") continue;  // sums overflow
        for (const auto& kind : test::weight_kinds()) {
            Weight w{kind.format,
                     test::make_matrix(input, kind.format == Format::none ? kind.dtype : DType::bf16, 48, 256, 9),
                     {}};
            if (kind.dtype == DType::f16) continue;
            if (kind.format != Format::none)
                w.quantized = test::quantize_whole(quantize_kernels().back(), w.plain.view(), {kind.format}).matrix;
            const auto packed = w.pack(pool);
            if (!packed.ok() && input.name == "subnormal") continue;  // an FP8 scale that underflows makes NaN codes
            ASSERT_TRUE(packed.ok()) << input.name << ": " << packed.error().message();
            for (ActivationFormat f : test::activation_formats())
                for (int64_t m : {1, 7}) {
                    std::mt19937 random(10);
                    std::vector<float> x(size_t(m * 256));
                    for (int64_t i = 0; i < m; ++i)
                        for (int64_t k = 0; k < 256; ++k) x[size_t(i * 256 + k)] = input.value(random, i, k);
                    const auto truth = product(ref(), *packed, x, m, f, pool);
                    for (const MatmulKernels* kernels : supported())
                        expect_bits(product(*kernels, *packed, x, m, f, pool), truth,
                                    fmt::format("{} {} {} {} m={}", kernels->name, input.name, kind.name,
                                                activation_name(f), m));
                    if (testing::Test::HasFatalFailure()) return;
                }
        }
    }
}

// Sums of values with few bits are exact in any order, so only plain inputs can show a difference.
TEST(MatmulOrders, TilesRoundDifferentlyWhereDocumented) {
    ThreadPool pool(2);
    const auto &lanes = matmul_kernels().back(), &tiles = matmul_kernels(SumOrder::tiles).back();
    for (const auto& kind : test::weight_kinds()) {
        const Weight w = test::make_weight(kind.format, kind.dtype, any_n, any_k, 1);
        const auto packed = w.pack(pool);
        ASSERT_TRUE(packed.ok());
        for (const ActivationFormat f : test::activation_formats()) {
            const auto x = test::bell_rows(3, any_k, 2);
            const auto a = product(lanes, *packed, x, 3, f, pool), b = product(tiles, *packed, x, 3, f, pool);
            if (!sums_in_tiles(*packed)) {
                EXPECT_EQ(a, b) << kind.name << " " << activation_name(f);
            }
            if (f == ActivationFormat::none && (kind.name == "bf16" || kind.format == Format::nvfp4)) {
                EXPECT_NE(a, b) << kind.name;
            }
        }
    }
}

TEST(Prepack, AStackIsItsParts) {
    ThreadPool pool(2);
    const auto& kernels = **select_matmul_kernels();
    const auto x = test::bell_rows(3, 256, 11);
    for (const auto& kind : test::weight_kinds()) {
        std::vector<Weight> parts;
        for (int64_t rows : {40, 3, 130}) parts.push_back(test::make_weight(kind.format, kind.dtype, rows, 256, 12));
        std::vector<MatrixView> plain;
        std::vector<QuantView> quantized;
        for (const Weight& w : parts) plain.push_back(w.plain.view()), quantized.push_back(w.quantized.view());
        const auto stack =
            kind.format == Format::none ? prepack_stacked(plain, pool) : prepack_stacked(quantized, pool);
        ASSERT_TRUE(stack.ok()) << stack.error().message();
        EXPECT_EQ(stack->rows(), 173);
        const auto y = product(kernels, *stack, x, 3, ActivationFormat::none, pool);
        int64_t at = 0;
        for (const Weight& w : parts) {
            const auto z = product(kernels, *w.pack(pool), x, 3, ActivationFormat::none, pool);
            for (int64_t m = 0; m < 3; ++m)
                for (int64_t n = 0; n < w.plain.rows; ++n)
                    ASSERT_EQ(y[size_t(m * 173 + at + n)], z[size_t(m * w.plain.rows + n)]) << kind.name;
            at += w.plain.rows;
        }
    }
}

TEST(Prepack, TheTransposeIsThePackedTranspose) {
    ThreadPool pool(2);
    const auto& kernels = **select_matmul_kernels();
    for (DType dtype : {DType::bf16, DType::f16, DType::f32}) {
        const Weight w = test::make_weight(Format::none, dtype, 77, 45, 13);
        const int size = dtype_bytes(dtype);
        Matrix t(dtype, 45, 77);
        for (int64_t i = 0; i < 77; ++i)
            for (int64_t j = 0; j < 45; ++j)
                std::memcpy(t.data.data() + (j * 77 + i) * size, w.plain.data.data() + (i * 45 + j) * size,
                            size_t(size));
        const auto a = prepack_transposed(w.plain.view(), pool), b = prepack(t.view(), pool);
        ASSERT_TRUE(a.ok() && b.ok());
        const auto x = test::bell_rows(6, 77, 14);
        const auto want = product(kernels, *b, x, 6, ActivationFormat::none, pool);
        expect_bits(product(kernels, *a, x, 6, ActivationFormat::none, pool), want, std::string(dtype_name(dtype)));
        const MatrixView whole = w.plain.view();
        const std::vector<MatrixView> parts{whole.panel(0, 33), whole.panel(33, 1), whole.panel(34, 43)};
        const auto c = prepack_transposed(parts, pool);
        ASSERT_TRUE(c.ok());
        expect_bits(product(kernels, *c, x, 6, ActivationFormat::none, pool), want, "three parts");
    }
    const Matrix narrow(DType::bf16, 8, 8), wide(DType::bf16, 8, 16);
    EXPECT_FALSE(prepack_transposed(std::vector<MatrixView>{narrow.view(), wide.view()}, pool).ok());
}

TEST(Prepack, NegativeBlockScalesAreValues) {
    ThreadPool pool(1);
    for (Format f : {Format::nvfp4, Format::nvfp4_bs32}) {
        Weight w = test::make_weight(f, DType::bf16, 33, 64, 15);
        for (size_t i = 0; i < w.quantized.block_scales.size(); i += 3) w.quantized.block_scales[i] |= 0x80;
        const auto packed = w.pack(pool);
        ASSERT_TRUE(packed.ok());
        const auto values = w.values();
        for (int64_t k = 0; k < 64; ++k) {
            std::vector<float> x(64, 0.0f);
            x[size_t(k)] = 1.0f;
            for (const MatmulKernels* kernels : supported_in(SumOrder::lanes)) {
                const auto y = product(*kernels, *packed, x, 1, ActivationFormat::none, pool);
                for (int64_t n = 0; n < 33; ++n) ASSERT_FLOAT_EQ(y[size_t(n)], values[size_t(n * 64 + k)]);
            }
        }
    }
}

TEST(Prepack, BadMatricesAreErrors) {
    ThreadPool pool(1);
    Weight w = test::make_weight(Format::nvfp4, DType::bf16, 8, 64, 16);
    w.quantized.block_scales[5] = 0x7F;
    EXPECT_FALSE(prepack(w.quantized.view(), pool).ok());
    w = test::make_weight(Format::mxfp4, DType::bf16, 8, 64, 16);
    w.quantized.block_scales[5] = 0xFF;
    EXPECT_FALSE(prepack(w.quantized.view(), pool).ok());
    w = test::make_weight(Format::fp8, DType::bf16, 8, 64, 16);
    w.quantized.codes[5] = 0xFF;
    EXPECT_FALSE(prepack(w.quantized.view(), pool).ok());
    QuantView broken = test::make_weight(Format::nvfp4, DType::bf16, 8, 64, 16).quantized.view();
    broken.cols = 40;
    EXPECT_FALSE(prepack(broken, pool).ok());
    EXPECT_FALSE(prepack(Matrix(DType::f64, 2, 2).view(), pool).ok());
    EXPECT_FALSE(prepack_stacked(std::span<const MatrixView>{}, pool).ok());
    const Matrix a(DType::bf16, 2, 32), b(DType::bf16, 2, 64), c(DType::f32, 2, 32);
    const MatrixView widths[] = {a.view(), b.view()}, types[] = {a.view(), c.view()};
    EXPECT_FALSE(prepack_stacked(widths, pool).ok());
    EXPECT_FALSE(prepack_stacked(types, pool).ok());
}

}  // namespace
}  // namespace nibble
