// Compares short convolutions with the CPU's kernels, bit for bit: outputs and states, for whole texts, chunks and
// single tokens; and multipliers of columns and rows.
#include "cuda/device.h"
#include "formats/minifloat.h"
#include "kernels/elementwise_cuda.h"
#include "kernels/short_conv_cuda.h"
#include "kernels/ssm.h"

#include <algorithm>

namespace nibble::bench {
namespace {

struct ShortConvCase {
    int64_t width;
    int taps;
    std::vector<int32_t> lengths;
    bool bias = false;
};

float near_bf16(float x) { return bf16_to_float(bf16_from_float(x)); }

// The inputs of a case, and what the CPU computes from them with every text in one piece.
struct ShortConvExpected {
    std::vector<float> projected, weight, bias, states;
    std::vector<uint16_t> out;

    static Result<ShortConvExpected> make(Kit& kit, const ShortConvCase& c, int64_t tokens) {
        NIBBLE_TRY(const SsmKernels* kernels, select_ssm_kernels("ref"));
        ShortConvExpected e{.projected = kit.normal(tokens * 3 * c.width, 1.0f),
                            .weight = kit.normal(c.taps * c.width, 0.5f),
                            .bias = kit.normal(c.width, c.bias ? 0.3f : 0.0f),
                            .states = {},
                            .out = {}};
        int64_t row = 0;
        for (const int32_t n : c.lengths) {
            std::vector<float> products(static_cast<size_t>((c.taps - 1) * c.width)), sums(size_t(c.width));
            for (int64_t t = row; t < row + n; ++t)
                for (int64_t j = 0; j < c.width; ++j) {
                    const float* at = e.projected.data() + t * 3 * c.width + j;
                    products.push_back(near_bf16(near_bf16(at[0]) * near_bf16(at[2 * c.width])));
                }
            for (int64_t t = 0; t < n; ++t) {
                const float* inputs[16];
                for (int64_t j = 0; j < c.taps; ++j) inputs[j] = products.data() + (t + j) * c.width;
                kernels->convolve(inputs, c.taps, e.weight.data(), e.bias.data(), c.width, sums.data());
                for (int64_t j = 0; j < c.width; ++j) {
                    const float gate = near_bf16(e.projected[size_t(((row + t) * 3 + 1) * c.width + j)]);
                    e.out.push_back(bf16_from_float(gate * near_bf16(sums[size_t(j)])));
                }
            }
            e.states.insert(e.states.end(), products.end() - (c.taps - 1) * c.width, products.end());
            row += n;
        }
        return e;
    }
};

Result<Check> check_short_conv(Kit& kit, const ShortConvCase& c) {
    Check check{fmt::format("short convolution of {} channels, {} taps, {} texts", c.width, c.taps, c.lengths.size())};
    const DeviceArena::Mark mark = kit.arena.mark();
    int64_t tokens = 0;
    for (const int32_t n : c.lengths) tokens += n;
    NIBBLE_TRY(const ShortConvExpected want, ShortConvExpected::make(kit, c, tokens));
    cuda::ShortConvStep s{.width = c.width, .taps = c.taps, .tokens = tokens};
    NIBBLE_TRY(s.projected, kit.upload(want.projected));
    NIBBLE_TRY(s.weight, kit.upload(want.weight));
    if (c.bias) {
        NIBBLE_TRY(s.bias, kit.upload(want.bias));
    }
    NIBBLE_TRY(s.out, kit.poisoned(tokens * c.width * 2));
    const int64_t state_bytes = std::max<int64_t>(std::ssize(want.states), 1) * 4;
    NIBBLE_TRY(std::byte * states, kit.arena.allocate(state_bytes));
    const int32_t longest = *std::ranges::max_element(c.lengths);
    // Whole texts without a state; whole texts with one; cut after 3 and 9 tokens; token by token.
    for (const int cut : {0, -1, 3, 9, 1}) {
        NIBBLE_CHECK(fill_device(states, 0, state_bytes, kit.stream));
        NIBBLE_CHECK(fill_device(s.out, Kit::poison, tokens * c.width * 2, kit.stream));
        for (int32_t done = 0; done < longest; done += cut < 1 ? longest : cut) {
            std::vector<cuda::StateSegment> list;
            int32_t first = 0;
            s.longest = 0;
            for (size_t i = 0; i < c.lengths.size(); first += c.lengths[i++]) {
                const int32_t here = cut < 1 ? c.lengths[i] : std::min(cut, c.lengths[i] - done);
                if (here < 1) continue;
                float* state = reinterpret_cast<float*>(states) + int64_t(i) * s.state_floats();
                list.push_back({first + done, here, cut == 0 ? nullptr : state, done});
                s.longest = std::max(s.longest, here);
            }
            s.segments = static_cast<int>(list.size());
            NIBBLE_TRY(s.list, kit.upload(list));
            NIBBLE_CHECK(cuda::short_conv_step(s, true, kit.stream));
            NIBBLE_CHECK(kit.stream.synchronize());
        }
        NIBBLE_TRY(const auto out, kit.download<uint16_t>(s.out, tokens * c.width));
        for (size_t i = 0; i < out.size(); ++i, ++check.compared)
            if (out[i] != want.out[i])
                check.note(fmt::format("cut {}: token {} channel {}: {} instead of {}", cut, i / size_t(c.width),
                                       i % size_t(c.width), bf16_to_float(out[i]), bf16_to_float(want.out[i])));
        if (cut == 0 || want.states.empty()) continue;
        NIBBLE_TRY(const auto kept, kit.download<float>(states, std::ssize(want.states)));
        for (size_t i = 0; i < kept.size(); ++i, ++check.compared)
            if (kept[i] != want.states[i])
                check.note(fmt::format("cut {}: state {}: {} instead of {}", cut, i, kept[i], want.states[i]));
    }
    kit.arena.release(mark);
    return check;
}

Result<std::vector<Check>> check_short_convs(const Kit& given) {
    Kit kit = given;
    std::vector<Check> results;
    for (const ShortConvCase& c :
         {ShortConvCase{64, 3, {1, 7, 20}}, ShortConvCase{200, 3, {33, 2}, true}, ShortConvCase{72, 1, {5, 9}},
          ShortConvCase{130, 16, {40, 3, 17}, true}, ShortConvCase{2048, 3, {100, 1}},
          ShortConvCase{96, 4, {3, 2, 2, 2, 1, 2, 2, 2, 9}}}) {
        NIBBLE_TRY(auto check, check_short_conv(kit, c));
        results.push_back(std::move(check));
    }
    return results;
}

Result<std::vector<Check>> check_multipliers(const Kit& given) {
    Kit kit = given;
    Check columns{"multipliers of columns"}, rows{"a multiplier of rows"};
    const DeviceArena::Mark mark = kit.arena.mark();
    const int64_t tokens = 37, stride = 700, first = 40;
    const std::vector<float> x = kit.normal(tokens * stride, 1.0f);
    cuda::ScaleColumns s{.tokens = tokens, .stride = stride, .first = first};
    s.parts = {{{200, 0.7f}, {1, 1.3f}, {300, 1.0f}, {10, -2.0f}, {64, 0.3f}}};
    NIBBLE_TRY(s.x, kit.upload(x));
    NIBBLE_CHECK(cuda::scale_columns(s, true, kit.stream));
    NIBBLE_TRY(const auto scaled, kit.download<float>(s.x, tokens * stride));
    for (int64_t i = 0; i < tokens * stride; ++i, ++columns.compared) {
        int64_t at = i % stride - first;
        float want = x[size_t(i)];
        for (const auto& part : s.parts) {
            if (at >= 0 && at < part.columns) want = near_bf16(near_bf16(want) * part.by);
            at -= part.columns;
        }
        if (scaled[size_t(i)] != want) columns.note(fmt::format("{}: {} instead of {}", i, scaled[size_t(i)], want));
    }
    std::vector<uint16_t> narrow;
    for (const float value : x) narrow.push_back(bf16_from_float(value));
    NIBBLE_TRY(const uint16_t* device_rows, kit.upload(narrow));
    NIBBLE_TRY(std::byte * y, kit.poisoned(tokens * stride * 2));
    NIBBLE_CHECK(
        cuda::scale_rows(reinterpret_cast<const std::byte*>(device_rows), tokens * stride, 0.9f, y, true, kit.stream));
    NIBBLE_TRY(const auto got, kit.download<uint16_t>(y, tokens * stride));
    for (size_t i = 0; i < got.size(); ++i, ++rows.compared)
        if (got[i] != bf16_from_float(bf16_to_float(narrow[i]) * 0.9f)) rows.note(fmt::format("{}", i));
    kit.arena.release(mark);
    return std::vector<Check>{columns, rows};
}

TEST(CudaKernels, ShortConvolutionsHaveTheBitsOfTheCpu) { expect_all(check_short_convs(kit())); }

TEST(CudaKernels, MultipliersOfColumnsAndRowsHaveTheBitsOfTheCpu) { expect_all(check_multipliers(kit())); }

}  // namespace
}  // namespace nibble::bench
