// Tests K, V and Q with an FP8 cache against the definitions in formats/: the values that attention reads, values
// without gradient, and the maxima for scales.
#include "cuda/device.h"
#include "kernels/cache_rows_cuda.h"

#include <cmath>

namespace nibble::bench {
namespace {

std::vector<float> plain(const std::vector<uint16_t>& bits) {
    std::vector<float> x(bits.size());
    for (size_t i = 0; i < bits.size(); ++i) x[i] = bf16_to_float(bits[i]);
    return x;
}

Result<Check> cached_rows(Kit& k, int64_t rows, int64_t row_tokens, int64_t k_width, int64_t v_width, int64_t q_width,
                          float shrink) {
    Check check{fmt::format("cache of {} x {} tokens of {}, {} and {}, scales times {}", rows, row_tokens, k_width,
                            v_width, q_width, shrink)};
    const DeviceArena::Mark mark = k.arena.mark();
    const int64_t tokens = rows * row_tokens, stride = k_width + v_width + q_width + 16;
    const int count = q_width > 0 ? 3 : 2;
    std::vector<std::vector<uint16_t>> x{k.normal_bf16(tokens * k_width, 1.5f), k.normal_bf16(tokens * v_width, 0.02f),
                                         k.normal_bf16(tokens * q_width, 3.0f)};
    x[0][3] = 0x7FC0, x[1][5] = 0xFF80;  // a NaN, an infinity
    const float scales[] = {shrink * 6.0f / 448, shrink * 0.09f / 448, shrink * 12.0f / 448};
    const int64_t widths[] = {k_width, v_width, q_width}, places[] = {0, k_width + 8, k_width + v_width + 16};
    cuda::RoundCache round{.tokens = tokens, .count = count};
    for (int side = 0; side < count; ++side) {
        const auto at = static_cast<size_t>(side);
        NIBBLE_TRY(const std::byte* values, k.upload_bytes(x[at]));
        NIBBLE_TRY(const float* scale, k.upload(std::vector<float>{scales[side]}));
        round.sides[side] = {values, widths[side], scale};
        NIBBLE_TRY(round.out[side], k.poisoned(2 * tokens * widths[side]));
    }
    NIBBLE_CHECK(cuda::round_cache(round, k.stream));
    const std::vector<uint16_t> gradient = k.normal_bf16(tokens * stride, 1.0f);
    NIBBLE_TRY(const std::byte* d, k.upload_bytes(gradient));
    cuda::ClearClipped clear{.tokens = tokens, .count = count, .stride = stride};
    cuda::SeeCache see{.rows = rows, .row_tokens = row_tokens, .count = count};
    for (int side = 0; side < count; ++side) {
        clear.sides[side] = see.sides[side] = round.sides[side];
        clear.d[side] = const_cast<std::byte*>(d) + 2 * places[side];
    }
    NIBBLE_CHECK(cuda::clear_clipped(clear, k.stream));
    const int64_t apart = 6, numbers = apart * rows;
    std::vector<float> maxima(static_cast<size_t>(numbers), 0.0f);
    maxima[2] = 99;  // an earlier maximum
    NIBBLE_TRY(float* device_maxima, k.upload(maxima));
    NIBBLE_TRY(uint64_t * clipped, k.upload(std::vector<uint64_t>{7, 5}));
    see.maxima = device_maxima + 2, see.apart = apart, see.clipped = clipped;
    NIBBLE_CHECK(cuda::see_cache(see, k.stream));
    NIBBLE_TRY(const auto got_maxima, k.download<float>(device_maxima, numbers));
    NIBBLE_TRY(const auto got_clipped, k.download<uint64_t>(clipped, 2));
    NIBBLE_TRY(const auto got_gradient, k.download<uint16_t>(d, tokens * stride));
    std::vector<uint16_t> want_gradient = gradient;
    std::vector<uint64_t> above{7, 5};
    for (size_t side = 0; side < static_cast<size_t>(count); ++side) {
        const int64_t width = widths[side];
        NIBBLE_TRY(const auto got, k.download<uint16_t>(round.out[side], tokens * width));
        const std::vector<float> values = plain(x[side]);
        for (int64_t i = 0; i < tokens * width; ++i, ++check.compared) {
            const float v = values[static_cast<size_t>(i)];
            const uint16_t want =
                bf16_from_float(e4m3_to_float(e4m3_from_float_saturating(v / scales[side])) * scales[side]);
            if (got[static_cast<size_t>(i)] != want && !std::isnan(v))
                check.note(
                    fmt::format("side {}, element {}: {} instead of {}", side, i, got[static_cast<size_t>(i)], want));
            if (!(std::abs(v) > 448.0f * scales[side])) continue;
            ++above[side / 2];
            want_gradient[static_cast<size_t>(i / width * stride + i % width + places[side])] = 0;
        }
        for (int64_t r = 0; r < rows; ++r, ++check.compared) {
            float most = side == 0 && r == 0 ? 99.0f : 0.0f;
            for (int64_t i = r * row_tokens * width; i < (r + 1) * row_tokens * width; ++i)
                most = std::max(most, std::abs(values[static_cast<size_t>(i)]));
            const float seen = got_maxima[static_cast<size_t>(2 + r * apart + int64_t(side))];
            if (seen != most) check.note(fmt::format("side {}, row {}: at most {}, not {}", side, r, seen, most));
        }
    }
    if (got_gradient != want_gradient) check.note("gradients of what was clipped");
    for (size_t i = 0; i < 2; ++i)
        if (got_clipped[i] != above[i]) check.note(fmt::format("{} clipped, not {}", got_clipped[i], above[i]));
    for (const int64_t i : {0, 1, 2 + count})
        if (got_maxima[static_cast<size_t>(i)] != 0) check.note("a neighbour's maximum");
    k.arena.release(mark);
    return check;
}

Result<std::vector<Check>> check_cached_rows(const Kit& kit) {
    Kit k = kit;
    std::vector<Check> checks;
    for (const auto& [rows, row_tokens, k_width, v_width, q_width, shrink] :
         {std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, float>{1, 1, 8, 8, 0, 1.0f},
          {1, 1000, 1024, 1024, 4096, 1.0f},
          {5, 333, 192, 128, 384, 0.3f},
          {16, 64, 64, 512, 0, 0.5f}}) {
        NIBBLE_TRY(Check c, cached_rows(k, rows, row_tokens, k_width, v_width, q_width, shrink));
        checks.push_back(std::move(c));
    }
    return checks;
}

}  // namespace

TEST(CudaKernels, CacheRows) { expect_all(check_cached_rows(kit())); }

}  // namespace nibble::bench
