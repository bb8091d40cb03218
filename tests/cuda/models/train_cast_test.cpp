// Compares training operands on a GPU with train/train_cast.h and train/train_eden.h: all formats, both directions,
// sizes with partial blocks, and random bits of any position in a step.
#include "train/train_cast.h"
#include "kernels/cast_cuda.h"
#include "train/input_directions.h"
#include "train/train_eden.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>

namespace nibble::test {
namespace {

DeviceChoice cast_device() {
    const char* name = std::getenv("NIBBLE_DEVICE");
    const auto choice = parse_device(name ? name : "cuda");
    return choice.ok() && choice->cuda ? *choice : DeviceChoice{.cuda = true};
}

struct Casting {
    const char* name;
    CastRule rule;
    bool down = false, eden = false;
};
void PrintTo(const Casting& c, std::ostream* out) { *out << c.name; }

class CudaCast : public testing::TestWithParam<Casting> {
protected:
    void SetUp() override {
        const auto device = open_device(cast_device());
        ASSERT_TRUE(device.ok()) << device.error().message();
        index_ = device->index;
        ASSERT_TRUE(use_device(index_).ok());
        auto stream = Stream::create(index_);
        auto arena = DeviceArena::create(index_, int64_t{256} << 20);
        ASSERT_TRUE(stream.ok() && arena.ok());
        stream_.emplace(*std::move(stream));
        arena_.emplace(*std::move(arena));
    }
    std::byte* room(int64_t bytes) {
        auto p = arena_->allocate(bytes);
        EXPECT_TRUE(p.ok());
        EXPECT_TRUE(fill_device(*p, 0xA5, bytes, *stream_).ok());
        return *p;
    }
    template <class T>
    std::vector<T> fetch(const void* from, int64_t count) {
        std::vector<T> to(static_cast<size_t>(count));
        EXPECT_TRUE(copy_to_host(reinterpret_cast<std::byte*>(to.data()),
                                 const_cast<std::byte*>(static_cast<const std::byte*>(from)),
                                 count * static_cast<int64_t>(sizeof(T)), *stream_)
                        .ok());
        EXPECT_TRUE(stream_->synchronize().ok());
        return to;
    }

    std::byte* to_gpu(const std::vector<float>& x) {
        std::vector<uint16_t> narrow(x.size());
        for (size_t i = 0; i < x.size(); ++i) narrow[i] = bf16_from_float(x[i]);
        std::byte* to = room(2 * std::ssize(x));
        EXPECT_TRUE(copy_to_device(to, reinterpret_cast<std::byte*>(narrow.data()), 2 * std::ssize(x), *stream_).ok());
        EXPECT_TRUE(stream_->synchronize().ok());
        return to;
    }
    float* to_gpu_floats(const std::vector<float>& x) {
        auto* const to = reinterpret_cast<float*>(room(4 * std::ssize(x)));
        EXPECT_TRUE(copy_to_device(reinterpret_cast<std::byte*>(to),
                                   reinterpret_cast<std::byte*>(const_cast<float*>(x.data())), 4 * std::ssize(x),
                                   *stream_)
                        .ok());
        EXPECT_TRUE(stream_->synchronize().ok());
        return to;
    }
    // Compares values on the GPU: rows [outer, want.cols], or with `down` the transpose.
    void expect_values(const std::byte* values, const CastOperand& want, bool down, const std::string& where) {
        const int64_t outer = want.rows;
        const auto got = fetch<uint16_t>(values, outer * want.cols);
        int64_t wrong = 0;
        for (int64_t o = 0; o < outer; ++o)
            for (int64_t i = 0; i < want.cols; ++i) {
                const float w = want.values[static_cast<size_t>(o * want.cols + i)];
                const uint16_t g = got[static_cast<size_t>(down ? i * outer + o : o * want.cols + i)];
                if (bf16_from_float(w) != g && wrong++ < 3)
                    ADD_FAILURE() << where << " at " << o << ", " << i << ": " << bf16_to_float(g) << " for " << w;
            }
        EXPECT_EQ(wrong, 0) << where;
    }

    // factor() requests a factor of a cast; expect_factor() checks the result.
    cuda::CastFactor factor(int64_t count) {
        return {.other = to_gpu_floats({other_scale}),
                .constant = 1.0f / 2688,
                .out = reinterpret_cast<float*>(room(4 * count)),
                .count = count};
    }
    void expect_factor(const cuda::CastFactor& f, const std::vector<float>& scale, const std::string& where) {
        const auto got = fetch<float>(f.out, f.count);
        for (size_t i = 0; i < got.size(); ++i)
            ASSERT_EQ(float_bits(got[i]), float_bits(scale[scale.size() > 1 ? i : 0] * other_scale * f.constant))
                << where << ", factor " << i;
    }
    static constexpr float other_scale = 0.37f;

    int index_ = 0;
    std::optional<Stream> stream_;
    std::optional<DeviceArena> arena_;
    ThreadPool pool_;
};

// BF16 numbers over many binades, with zeros, a block of zeros, and a few outliers.
std::vector<float> cast_numbers(int64_t rows, int64_t cols, uint64_t seed) {
    std::vector<float> x(static_cast<size_t>(rows * cols));
    for (size_t i = 0; i < x.size(); ++i) {
        const PhiloxBlock b = PhiloxStream{seed, 3}.block(i);
        const double u = (b.word[0] + 0.5) * 0x1p-32, v = (b.word[1] + 0.5) * 0x1p-32;
        double value = std::sqrt(-2 * std::log(u)) * std::cos(6.283185307 * v);
        if (b.word[2] % 64 == 0) value *= 40;
        if (b.word[2] % 50 == 1) value = 0;
        value *= std::ldexp(1.0, static_cast<int>(b.word[3] % 7) - 9);
        x[i] = round_to_bf16(static_cast<float>(value));
    }
    for (int64_t r = 0; r < std::min<int64_t>(rows, 40); ++r)
        for (int64_t c = 0; c < std::min<int64_t>(cols, 32); ++c) x[static_cast<size_t>(r * cols + c)] = 0;
    return x;
}

std::vector<float> turned(const std::vector<float>& x, int64_t rows, int64_t cols) {
    std::vector<float> t(x.size());
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c) t[static_cast<size_t>(c * rows + r)] = x[static_cast<size_t>(r * cols + c)];
    return t;
}

// Numbers with zeros of both signs, subnormals and NaN of both signs. A larger `worst` adds infinities, then the
// largest numbers, or gives only zeros.
std::vector<float> odd_numbers(int64_t rows, int64_t cols, int worst) {
    std::vector<float> x = cast_numbers(rows, cols, 13);
    const float nan = std::nanf("");
    const std::array<float, 12> odd{-0.0f, 0.0f, 0x1p-133f,   -0x1p-133f, nan,       -nan,
                                    1.0f,  6.0f, 0x1.FEp127f, -0x1p127f,  HUGE_VALF, -HUGE_VALF};
    const size_t kinds = worst > 1 ? 12 : worst > 0 ? 10 : 8;
    for (size_t i = 0; i < x.size(); i += 5) x[i] = round_to_bf16(odd[i / 5 % kinds]);
    // Blocks with only -0, in both directions.
    for (int64_t r = 0; r < std::min<int64_t>(rows, 16); ++r)
        for (int64_t c = 0; c < 16; ++c) x[static_cast<size_t>(r * cols + c)] = -0.0f;
    if (worst > 2) std::fill(x.begin(), x.end(), -0.0f);
    return x;
}

TEST_P(CudaCast, EqualsThatOfTheHost) {
    const Casting& c = GetParam();
    int64_t compared = 0, not_zero = 0;
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{64, 128}, {1, 64}, {333, 208}, {200, 1040}, {5, 4096}, {2070, 24}, {150, 136}}) {
        if (c.rule.square && cols % 16) continue;
        const DeviceArena::Mark mark = arena_->mark();
        const std::vector<float> x = cast_numbers(rows, cols, 11);
        const int64_t outer = c.down ? cols : rows, length = c.down ? rows : cols;
        const std::vector<float> along = c.down ? turned(x, rows, cols) : x;  // [outer, length]
        CastRandom random{.id = 42,
                          .draw = (uint64_t{5} << 20) + 7,
                          .first_outer = 96,
                          .first_group = 3,
                          .outer_step = static_cast<uint64_t>((length + 15) / 16)};
        if (c.down) random.first_outer = 0, random.outer_step = 1, random.group_step = static_cast<uint64_t>(outer);
        const CastRandom signs{.id = 45, .draw = random.draw};
        const CastOperand want = c.eden ? eden_rows(along.data(), outer, length, length, random, signs, 128, pool_)
                                        : cast_rows(along.data(), outer, length, length, c.rule, random, {}, pool_);
        std::byte* source = to_gpu(x);
        std::byte* values = room(2 * outer * want.cols);
        const bool blocks = !want.block_scales.empty();
        auto* scale = reinterpret_cast<float*>(room(4 * std::max(rows, std::ssize(want.block_scales))));
        auto* amax = reinterpret_cast<float*>(room(4));
        const cuda::CastSource from{.x = source, .rows = rows, .cols = cols, .down = c.down};
        const bool one = c.rule.format != CastFormat::mxfp8 && !c.rule.square && !c.eden && !blocks;
        const cuda::CastFactor by = one ? factor(c.down ? 1 : rows) : cuda::CastFactor{};
        const Status made =
            c.eden   ? cuda::eden_values(from, random, signs, 128, {values, scale, amax}, *stream_)
            : blocks ? cuda::cast_blocks(from, c.rule, {values, scale}, *stream_)
                     : cuda::cast_values(from, c.rule, random, nullptr, {values, scale, amax, nullptr, by}, *stream_);
        ASSERT_TRUE(made.ok()) << made.error().message();
        if (by.other) expect_factor(by, want.scale, fmt::format("{} x {}", rows, cols));
        const auto got = fetch<uint16_t>(values, outer * want.cols);
        int64_t wrong = 0;
        for (int64_t o = 0; o < outer; ++o)
            for (int64_t i = 0; i < want.cols; ++i, ++compared) {
                const float w = want.values[static_cast<size_t>(o * want.cols + i)];
                const uint16_t g = got[static_cast<size_t>(c.down && !blocks ? i * outer + o : o * want.cols + i)];
                EXPECT_EQ(round_to_bf16(w), w);
                not_zero += w != 0;
                if (bf16_from_float(w) != g && wrong++ < 3)
                    ADD_FAILURE() << rows << "x" << cols << " at " << o << ", " << i << ": " << bf16_to_float(g)
                                  << " for " << w;
            }
        EXPECT_EQ(wrong, 0) << rows << "x" << cols;
        if (blocks) {
            const int64_t across = want.cols / fp8_group, step = c.rule.square ? fp8_group : 1;
            const int64_t down = (outer + step - 1) / step;
            const auto scales = fetch<float>(scale, down * across);
            for (int64_t i = 0; i < down * across; ++i) {
                const float w = want.block_scales[static_cast<size_t>(i / across * step * across + i % across)];
                EXPECT_EQ(float_bits(scales[static_cast<size_t>(i)]), float_bits(w)) << i;
            }
        } else if (c.rule.format != CastFormat::mxfp8 || c.eden) {
            const auto scales = fetch<float>(scale, std::ssize(want.scale));
            for (size_t i = 0; i < scales.size(); ++i) EXPECT_EQ(float_bits(scales[i]), float_bits(want.scale[i])) << i;
        }
        arena_->release(mark);
    }
    // A scale of 16 x 16 rounds small numbers to zero.
    EXPECT_GT(not_zero, compared / (c.rule.square ? 8 : 4));
}

// Formats whose codes have no NaN and no infinity must accept any source.
TEST_P(CudaCast, AcceptsAnyNumber) {
    const Casting& c = GetParam();
    if (c.rule.format != CastFormat::nvfp4) GTEST_SKIP() << "of NVFP4";
    for (int worst = 0; worst < 4; ++worst) {
        const DeviceArena::Mark mark = arena_->mark();
        const int64_t rows = 80, cols = 144, outer = c.down ? cols : rows, length = c.down ? rows : cols;
        const std::vector<float> x = odd_numbers(rows, cols, worst), along = c.down ? turned(x, rows, cols) : x;
        const CastRandom random{.id = 42, .draw = 99, .outer_step = 100};
        const CastOperand want = cast_rows(along.data(), outer, length, length, c.rule, random, {}, pool_);
        std::byte* values = room(2 * outer * want.cols);
        auto *scale = reinterpret_cast<float*>(room(4 * rows)), *amax = reinterpret_cast<float*>(room(4));
        const Status made = cuda::cast_values({.x = to_gpu(x), .rows = rows, .cols = cols, .down = c.down}, c.rule,
                                              random, nullptr, {values, scale, amax}, *stream_);
        ASSERT_TRUE(made.ok()) << made.error().message();
        expect_values(values, want, c.down, fmt::format("numbers {}", worst));
        const auto scales = fetch<float>(scale, std::ssize(want.scale));
        for (size_t i = 0; i < scales.size(); ++i) EXPECT_EQ(float_bits(scales[i]), float_bits(want.scale[i])) << i;
        arena_->release(mark);
    }
}

// A given largest magnitude is used unchanged: with that of a larger source, the values are those in the larger source.
TEST_P(CudaCast, AcceptsAKnownMagnitude) {
    const Casting& c = GetParam();
    const bool of_tensor = c.rule.format == CastFormat::fp8 || c.rule.format == CastFormat::fp8_e5m2 ||
                           (c.rule.format == CastFormat::nvfp4 && !c.rule.row_scaled);
    if (!of_tensor || c.rule.rotate || c.eden) GTEST_SKIP() << "of a tensor";
    const int64_t rows = 64, cols = 144;
    const CastRandom random{.id = 42, .draw = 99, .outer_step = 100};
    std::vector<float> more = cast_numbers(rows + 16, cols, 31);
    more.back() = 1000;
    const int64_t outer = c.down ? cols : rows + 16, length = c.down ? rows + 16 : cols;
    const CastOperand want = cast_rows((c.down ? turned(more, rows + 16, cols) : more).data(), outer, length, length,
                                       c.rule, random, {}, pool_);
    more.resize(static_cast<size_t>(rows * cols));
    std::byte* values = room(2 * rows * cols);
    auto *scale = reinterpret_cast<float*>(room(4)), *amax = reinterpret_cast<float*>(room(4));
    const cuda::CastSource from{
        .x = to_gpu(more), .rows = rows, .cols = cols, .down = c.down, .amax = to_gpu_floats({1000})};
    const Status made = cuda::cast_values(from, c.rule, random, nullptr, {values, scale, amax}, *stream_);
    ASSERT_TRUE(made.ok()) << made.error().message();
    EXPECT_EQ(fetch<float>(scale, 1)[0], want.scale[0]);
    const auto got = fetch<uint16_t>(values, rows * cols);
    int64_t wrong = 0;
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t col = 0; col < cols; ++col)
            wrong += got[static_cast<size_t>(r * cols + col)] !=
                     bf16_from_float(want.values[static_cast<size_t>(c.down ? col * want.cols + r : r * cols + col)]);
    EXPECT_EQ(wrong, 0);
    const auto untouched = fetch<uint32_t>(amax, 1);
    EXPECT_EQ(untouched[0], 0xA5A5A5A5u);
}

// A source with a stride and scales (per row or one), which change the numbers.
TEST_P(CudaCast, ReadsValuesOfAnOperand) {
    const Casting& c = GetParam();
    if (c.eden || c.rule.format == CastFormat::fp8_block || c.rule.format == CastFormat::fp8_block2)
        GTEST_SKIP() << "of values";
    for (const auto& [rows, cols, by_row] :
         {std::tuple<int64_t, int64_t, bool>{70, 144, true}, {70, 144, false}, {33, 400, true}}) {
        const DeviceArena::Mark mark = arena_->mark();
        const int64_t stride = cols + 24, outer = c.down ? cols : rows, length = c.down ? rows : cols;
        const std::vector<float> x = cast_numbers(rows, stride, 21);
        const float factor = 1.0f / 2688;
        std::vector<float> scales(static_cast<size_t>(rows)), seen(static_cast<size_t>(rows * cols));
        for (size_t r = 0; r < scales.size(); ++r) scales[r] = 0.3f + 1.7f * static_cast<float>(r % 11);
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t col = 0; col < cols; ++col)
                seen[static_cast<size_t>(r * cols + col)] = round_to_bf16(
                    x[static_cast<size_t>(r * stride + col)] * (scales[by_row ? static_cast<size_t>(r) : 0] * factor));
        const std::vector<float> along = c.down ? turned(seen, rows, cols) : seen;
        const CastRandom random{.id = 42, .draw = 99, .outer_step = 100};
        const CastOperand want = cast_rows(along.data(), outer, length, length, c.rule, random, {}, pool_);
        std::byte* values = room(2 * outer * want.cols);
        auto *scale = reinterpret_cast<float*>(room(4 * rows)), *amax = reinterpret_cast<float*>(room(4));
        const cuda::CastSource from{.x = to_gpu(x),
                                    .rows = rows,
                                    .cols = cols,
                                    .stride = stride,
                                    .down = c.down,
                                    .scale = to_gpu_floats(scales),
                                    .scale_by_row = by_row,
                                    .factor = factor};
        const Status made = cuda::cast_values(from, c.rule, random, nullptr, {values, scale, amax}, *stream_);
        ASSERT_TRUE(made.ok()) << made.error().message();
        expect_values(values, want, c.down, fmt::format("{} x {}", rows, cols));
        arena_->release(mark);
    }
}

class CudaCastBoth : public CudaCast {};

// Rows and columns cast together equal two separate casts, whatever blocks the sizes cut.
TEST_P(CudaCastBoth, EqualThoseOfTheHost) {
    const Casting& c = GetParam();
    CastRule rows_rule = c.rule, columns_rule = c.rule;
    rows_rule.rotate = false;
    ASSERT_TRUE(cuda::casts_both(rows_rule, columns_rule));
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{64, 128},
                                     {1, 64},
                                     {1, 8},
                                     {16, 16},
                                     {333, 208},
                                     {200, 1040},
                                     {2070, 24},
                                     {150, 136},
                                     {47, 4104}})
        for (int worst = -1; worst < (c.rule.format == CastFormat::nvfp4 && cols >= 16 ? 4 : 0); ++worst) {
            const DeviceArena::Mark mark = arena_->mark();
            const std::vector<float> x = worst < 0 ? cast_numbers(rows, cols, 14) : odd_numbers(rows, cols, worst);
            const CastRandom by_row{.id = 42,
                                    .draw = (uint64_t{5} << 20) + 7,
                                    .first_outer = 96,
                                    .outer_step = static_cast<uint64_t>((cols + 15) / 16)};
            const CastRandom by_column{
                .id = 43, .draw = by_row.draw, .first_group = 3, .group_step = static_cast<uint64_t>(cols)};
            const CastOperand of_rows = cast_rows(x.data(), rows, cols, cols, rows_rule, by_row, {}, pool_);
            const CastOperand of_columns =
                cast_rows(turned(x, rows, cols).data(), cols, rows, rows, columns_rule, by_column, {}, pool_);
            const cuda::CastBoth to{.rows = room(2 * rows * of_rows.cols + 256),
                                    .columns = room(2 * cols * of_columns.cols + 256),
                                    .scales = reinterpret_cast<float*>(room(16)),
                                    .amax = reinterpret_cast<float*>(room(16)),
                                    .factor = c.rule.format == CastFormat::mxfp8 ? cuda::CastFactor{} : factor(1)};
            const Status made = cuda::cast_both({.x = to_gpu(x), .rows = rows, .cols = cols}, rows_rule, by_row,
                                                columns_rule, by_column, to, *stream_);
            ASSERT_TRUE(made.ok()) << made.error().message();
            const std::string where = fmt::format("{} x {}, numbers {}", rows, cols, worst);
            expect_values(to.rows, of_rows, false, "rows of " + where);
            expect_values(to.columns, of_columns, true, "columns of " + where);
            // Memory after the results is unchanged.
            for (const auto& [at, count] :
                 {std::pair{to.rows, rows * of_rows.cols}, std::pair{to.columns, cols * of_columns.cols}})
                for (const uint16_t guard : fetch<uint16_t>(at + 2 * count, 128)) EXPECT_EQ(guard, 0xA5A5) << where;
            if (c.rule.format != CastFormat::mxfp8) {
                const auto scales = fetch<float>(to.scales, 2);
                EXPECT_EQ(float_bits(scales[0]), float_bits(of_rows.scale[0])) << where;
                EXPECT_EQ(float_bits(scales[1]), float_bits(of_columns.scale[0])) << where;
                expect_factor(to.factor, of_rows.scale, where);
            }
            arena_->release(mark);
        }
}
INSTANTIATE_TEST_SUITE_P(All, CudaCastBoth,
                         testing::Values(Casting{"nvfp4", {.format = CastFormat::nvfp4}},
                                         Casting{"nvfp4_stochastic", {.format = CastFormat::nvfp4, .stochastic = true}},
                                         Casting{"nvfp4_rotated", {.format = CastFormat::nvfp4, .rotate = true}},
                                         Casting{"nvfp4_rotated_stochastic",
                                                 {.format = CastFormat::nvfp4, .rotate = true, .stochastic = true}},
                                         Casting{"mxfp8", {.format = CastFormat::mxfp8}}),
                         [](const auto& info) { return std::string(info.param.name); });

class CudaCodes : public CudaCast {};

// Codes of rows, of columns, and of both in one call equal the host's values, padded with zeros to groups of 128; rows
// also in tiles.
TEST_P(CudaCodes, EqualThoseOfTheHost) {
    const CastRule& rule = GetParam().rule;
    const bool tensor = rule.format == CastFormat::fp8 || rule.format == CastFormat::fp8_e5m2;
    const auto value = [&](uint8_t code) {
        return rule.format == CastFormat::fp8_e5m2 ? e5m2_to_float(code) : e4m3_to_float(code);
    };
    const auto groups = [](int64_t n) { return (n + fp8_group - 1) / fp8_group; };
    int64_t not_zero = 0;
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{64, 128}, {1, 64}, {333, 208}, {200, 1040}}) {
        const DeviceArena::Mark mark = arena_->mark();
        std::vector<float> x = cast_numbers(rows, cols, 12);
        if (rows * cols > 1000) x[77] = 3e38f;  // saturates
        // Groups whose scales are near the smallest numbers, and below the smallest divisor that needs no special case.
        for (int64_t r = fp8_group; r < rows; ++r)
            for (int64_t c = 0; c < cols; ++c) {
                float& v = x[static_cast<size_t>(r * cols + c)];
                v = bf16_to_float(bf16_from_float(v * (r < 2 * fp8_group ? 0x1p-80f : 0x1p-118f)));
            }
        std::vector<float> turned(x.size());
        std::vector<uint16_t> narrow(x.size());
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = 0; c < cols; ++c) {
                const auto at = static_cast<size_t>(r * cols + c);
                narrow[at] = bf16_from_float(x[at]);
                turned[static_cast<size_t>(c * rows + r)] = x[at];
            }
        std::byte* source = room(2 * rows * cols);
        ASSERT_TRUE(
            copy_to_device(source, reinterpret_cast<std::byte*>(narrow.data()), 2 * rows * cols, *stream_).ok());
        // A given scale, and one computed from the source.
        for (const bool delayed : {false, true}) {
            if (delayed && !tensor) continue;
            const std::optional<float> scale = delayed ? std::optional(37.25f) : std::nullopt;
            auto* given = reinterpret_cast<float*>(room(4));
            const float number = 37.25f;
            ASSERT_TRUE(copy_to_device(reinterpret_cast<std::byte*>(given),
                                       reinterpret_cast<std::byte*>(const_cast<float*>(&number)), 4, *stream_)
                            .ok());
            const CastOperand of_rows = cast_rows(x.data(), rows, cols, cols, rule, {}, scale, pool_);
            const CastOperand of_columns = cast_rows(turned.data(), cols, rows, rows, rule, {}, scale, pool_);
            const int64_t across = groups(cols), down = groups(rows), tiles = (rows + 7) / 8;
            for (const int wanted : {1, 2, 3, 5, 7}) {
                const bool in_tiles = wanted & 4;
                cuda::CastCodes to{.tiles = in_tiles};
                if (wanted & 1) to.rows = room((in_tiles ? 8 * tiles : rows) * 128 * across);
                if (wanted & 2) to.columns = room(cols * 128 * down);
                to.scale = reinterpret_cast<float*>(room(4)), to.amax = reinterpret_cast<float*>(room(4));
                to.seen = reinterpret_cast<float*>(room(4));
                ASSERT_TRUE(fill_device(reinterpret_cast<std::byte*>(to.seen), 0, 4, *stream_).ok());
                if (tensor) to.factor = factor(rows);
                // Layouts that differ from the usual ones.
                const int64_t pitch = (cols + 3) / 4 * 4;
                to.row_scales = {reinterpret_cast<float*>(room(4 * rows * across)), across, 1};
                to.column_scales = {reinterpret_cast<float*>(room(4 * pitch * down)), 1, pitch};
                const Status made = cuda::cast_codes({.x = source, .rows = rows, .cols = cols}, rule,
                                                     delayed ? given : nullptr, to, *stream_);
                ASSERT_TRUE(made.ok()) << made.error().message();
                const auto see = [&](const CastOperand& want, const std::vector<uint8_t>& got, int64_t outer,
                                     int64_t padded, bool tiled, const char* what) {
                    int64_t wrong = 0;
                    for (int64_t o = 0; o < outer; ++o)
                        for (int64_t i = 0; i < padded; ++i) {
                            const float w = i < want.cols ? want.values[static_cast<size_t>(o * want.cols + i)] : 0.0f;
                            const int64_t at = tiled ? (o / 8 * (padded / 128) + i / 128) * 1024 + o % 8 * 128 +
                                                           ((i % 128 / 16) ^ (o % 8)) * 16 + i % 16
                                                     : o * padded + i;
                            not_zero += w != 0;
                            if (value(got[static_cast<size_t>(at)]) != w && wrong++ < 3)
                                ADD_FAILURE() << what << " of " << rows << "x" << cols << " at " << o << ", " << i
                                              << ": " << value(got[static_cast<size_t>(at)]) << " for " << w;
                        }
                    EXPECT_EQ(wrong, 0) << what << " of " << rows << "x" << cols;
                };
                const auto see_scales = [&](const CastOperand& want, const cuda::CodeScales& at, int64_t outer,
                                            int64_t length, int64_t count) {
                    const auto got = fetch<float>(at.at, count);
                    for (int64_t o = 0; o < outer; o += rule.square ? fp8_group : 1)
                        for (int64_t g = 0; g < length; ++g)
                            EXPECT_EQ(
                                got[static_cast<size_t>((rule.square ? o / fp8_group : o) * at.outer + g * at.group)],
                                want.block_scales[static_cast<size_t>(o * length + g)])
                                << o << ", " << g;
                };
                if (to.rows) {
                    see(of_rows, fetch<uint8_t>(to.rows, (in_tiles ? 8 * tiles : rows) * 128 * across), rows,
                        128 * across, in_tiles, "rows");
                    if (!tensor) see_scales(of_rows, to.row_scales, rows, across, rows * across);
                }
                if (to.columns) {
                    see(of_columns, fetch<uint8_t>(to.columns, cols * 128 * down), cols, 128 * down, false, "columns");
                    if (!tensor) see_scales(of_columns, to.column_scales, cols, down, pitch * down);
                }
                if (!tensor) continue;
                expect_factor(to.factor, of_rows.scale, "codes");
                EXPECT_EQ(fetch<float>(to.scale, 1)[0], of_rows.scale[0]);
                EXPECT_EQ(fetch<float>(to.seen, 1)[0], of_rows.amax);
            }
        }
        arena_->release(mark);
    }
    EXPECT_GT(not_zero, 10000);
}
INSTANTIATE_TEST_SUITE_P(
    All, CudaCodes,
    testing::Values(Casting{"fp8", {.format = CastFormat::fp8}}, Casting{"fp8_e5m2", {.format = CastFormat::fp8_e5m2}},
                    Casting{"fp8_block", {.format = CastFormat::fp8_block}},
                    Casting{"fp8_block_square", {.format = CastFormat::fp8_block, .square = true}},
                    Casting{"fp8_block2", {.format = CastFormat::fp8_block2}},
                    Casting{"fp8_block2_square", {.format = CastFormat::fp8_block2, .square = true}}),
    [](const auto& info) { return std::string(info.param.name); });

class CudaDirections : public CudaCast {};

// Splits x along its directions, for a rank that is a multiple of eight and one that is not.
TEST_P(CudaDirections, SplitLikeTheHost) {
    const auto rank = static_cast<int64_t>(GetParam().rule.format == CastFormat::nvfp4 ? 16 : 5);
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{33, 200}, {1, 64}, {100, 768}}) {
        const InputDirections host(cols, rank, {.id = 7, .draw = 1});
        const std::vector<float> x = cast_numbers(rows, cols, 5);
        const int64_t pitch = (rank + 7) / 8 * 8;
        std::vector<float> a(static_cast<size_t>(rows * rank)), rest(x.size());
        host.split(x.data(), rows, a.data(), rest.data(), pool_);
        std::vector<uint16_t> narrow(x.size());
        for (size_t i = 0; i < x.size(); ++i) narrow[i] = bf16_from_float(x[i]);
        std::byte* source = room(2 * rows * cols);
        std::byte* p = room(4 * cols * rank);
        const auto* of_p = reinterpret_cast<const std::byte*>(host.p());
        ASSERT_TRUE(
            copy_to_device(source, reinterpret_cast<std::byte*>(narrow.data()), 2 * rows * cols, *stream_).ok());
        ASSERT_TRUE(copy_to_device(p, of_p, 4 * cols * rank, *stream_).ok());
        std::byte *to_a = room(2 * rows * pitch), *to_rest = room(2 * rows * cols);
        const Status made = cuda::split_rows({.x = source,
                                              .n = rows,
                                              .cols = cols,
                                              .p = reinterpret_cast<const float*>(p),
                                              .rank = rank,
                                              .pitch = pitch,
                                              .a = to_a,
                                              .rest = to_rest},
                                             *stream_);
        ASSERT_TRUE(made.ok()) << made.error().message();
        const auto got_a = fetch<uint16_t>(to_a, rows * pitch), got_rest = fetch<uint16_t>(to_rest, rows * cols);
        int64_t wrong = 0;
        for (int64_t r = 0; r < rows; ++r) {
            for (int64_t j = 0; j < pitch; ++j)
                wrong += got_a[static_cast<size_t>(r * pitch + j)] !=
                         (j < rank ? bf16_from_float(a[static_cast<size_t>(r * rank + j)]) : 0);
            for (int64_t c = 0; c < cols; ++c)
                wrong += got_rest[static_cast<size_t>(r * cols + c)] !=
                         bf16_from_float(rest[static_cast<size_t>(r * cols + c)]);
        }
        EXPECT_EQ(wrong, 0) << rows << "x" << cols;
    }
}
INSTANTIATE_TEST_SUITE_P(All, CudaDirections,
                         testing::Values(Casting{"rank_16", {.format = CastFormat::nvfp4}}, Casting{"rank_5", {}}),
                         [](const auto& info) { return std::string(info.param.name); });

constexpr CastRule nv{.format = CastFormat::nvfp4};
constexpr CastRule with(bool rotate, bool stochastic, bool square, bool four_over_six, bool row_scaled) {
    return {.format = CastFormat::nvfp4,
            .rotate = rotate,
            .stochastic = stochastic,
            .square = square,
            .four_over_six = four_over_six,
            .row_scaled = row_scaled};
}

INSTANTIATE_TEST_SUITE_P(
    All, CudaCast,
    testing::Values(Casting{"nvfp4", nv}, Casting{"nvfp4_down", nv, true},
                    Casting{"nvfp4_stochastic", with(false, true, false, false, false)},
                    Casting{"nvfp4_stochastic_down", with(false, true, false, false, false), true},
                    Casting{"nvfp4_rotated", with(true, false, false, false, false)},
                    Casting{"nvfp4_rotated_down", with(true, false, false, false, false), true},
                    Casting{"nvfp4_both_down", with(true, true, false, false, false), true},
                    Casting{"nvfp4_square", with(false, false, true, false, false)},
                    Casting{"nvfp4_four_over_six", with(false, false, false, true, false)},
                    Casting{"nvfp4_four_over_six_down", with(false, false, false, true, false), true},
                    Casting{"nvfp4_rows", with(false, false, false, false, true)},
                    Casting{"nvfp4_rows_four_over_six", with(false, false, false, true, true)},
                    Casting{"mxfp8", {.format = CastFormat::mxfp8}},
                    Casting{"mxfp8_down", {.format = CastFormat::mxfp8}, true},
                    Casting{"fp8", {.format = CastFormat::fp8}}, Casting{"fp8_down", {.format = CastFormat::fp8}, true},
                    Casting{"fp8_e5m2", {.format = CastFormat::fp8_e5m2}},
                    Casting{"fp8_e5m2_down", {.format = CastFormat::fp8_e5m2}, true},
                    Casting{"fp8_block", {.format = CastFormat::fp8_block}},
                    Casting{"fp8_block_down", {.format = CastFormat::fp8_block}, true},
                    Casting{"fp8_block_square", {.format = CastFormat::fp8_block, .square = true}},
                    Casting{"fp8_block_square_down", {.format = CastFormat::fp8_block, .square = true}, true},
                    Casting{"fp8_block2", {.format = CastFormat::fp8_block2}},
                    Casting{"fp8_block2_square_down", {.format = CastFormat::fp8_block2, .square = true}, true},
                    Casting{"bf16_down", {.format = CastFormat::bf16}, true}, Casting{"eden", {}, false, true},
                    Casting{"eden_down", {}, true, true}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace nibble::test
