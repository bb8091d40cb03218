#include "checkpoint/code_grid.h"

#include "checkpoint/scale_values.h"
#include "formats/fp8.h"
#include "formats/minifloat.h"

#include <algorithm>
#include <array>

namespace nibble {
namespace {

template <size_t N, class Value>
constexpr std::array<float, N> table_of(Value value) {
    std::array<float, N> values{};
    for (size_t code = 0; code < N; ++code) values[code] = value(static_cast<uint8_t>(code));
    return values;
}
constexpr auto e4m3_table = table_of<256>([](uint8_t code) { return e4m3_to_float(code); });
constexpr auto e2m1_table = table_of<16>([](uint8_t code) { return e2m1_to_float(code); });
constexpr auto int4_table = table_of<16>([](uint8_t code) { return static_cast<float>(code) - 8; });
constexpr auto uint8_table = table_of<256>([](uint8_t code) { return static_cast<float>(code) - 128; });
constexpr auto int8_table = table_of<256>([](uint8_t code) { return static_cast<float>(static_cast<int8_t>(code)); });

uint8_t code_at(const CodeGrid& g, int64_t expert, int64_t row, int64_t c) {
    const auto byte = [&](int64_t r, int64_t at) {
        return static_cast<uint8_t>(g.codes[static_cast<size_t>(expert * g.expert_bytes() + r * g.row_bytes + at)]);
    };
    if (g.bits == 8) return byte(row, c);
    const uint8_t pair = g.pairs_down ? byte(row / 2, c) : byte(row, c / 2);
    return (g.pairs_down ? row : c) % 2 ? pair >> 4 : pair & 15;
}

}  // namespace

std::span<const float> e4m3_code_values() { return e4m3_table; }
std::span<const float> e2m1_code_values() { return e2m1_table; }
std::span<const float> int4_code_values() { return int4_table; }
std::span<const float> uint8_code_values() { return uint8_table; }
std::span<const float> int8_code_values() { return int8_table; }

Status decode_grid(const CodeGrid& g, int64_t expert, int64_t row, int64_t c, std::span<uint16_t> out, bool raw) {
    if (out.empty()) return Ok{};
    const int64_t end = c + std::ssize(out), first = c / g.block_cols, last = (end - 1) / g.block_cols;
    std::vector<float> scales(static_cast<size_t>(last - first + 1));
    const int64_t at = ((g.scales_per_expert ? expert : 0) * g.scale_rows + row / g.block_rows) * g.scale_cols + first;
    widen_scales(g.scale_dtype, g.scales.data() + at * dtype_bytes(g.scale_dtype), scales);
    const float factor = g.factors[g.factors.size() == 1 ? 0 : static_cast<size_t>(expert)];
    for (float& scale : scales) {
        scale *= factor;
        if (!raw && !is_finite(scale)) return fail("row {}: a scale is {}", row, scale);
    }
    for (int64_t i = c; i < end; ++i)
        out[static_cast<size_t>(i - c)] = bf16_from_float(g.values[code_at(g, expert, row, i)] *
                                                          scales[static_cast<size_t>(i / g.block_cols - first)]);
    return Ok{};
}

Status decode_grid_rows(const CodeGrid& g, const GridMatrix& matrix, int64_t begin, int64_t cols,
                        std::span<uint16_t> out, bool raw) {
    const int64_t count = std::ssize(out) / cols, first = matrix.first + begin;
    if (!matrix.turned) {
        for (int64_t r = 0; r < count; ++r)
            NIBBLE_CHECK(decode_grid(g, matrix.expert, first + r, 0, out.subspan(size_t(r * cols), size_t(cols)), raw));
        return Ok{};
    }
    // The stored rows are columns of the result. A few are decoded at a time, so that whole cache lines are written.
    constexpr int64_t columns = 32;
    std::vector<uint16_t> lines(static_cast<size_t>(columns * count));
    for (int64_t c = 0; c < cols; c += columns) {
        const int64_t n = std::min(columns, cols - c);
        for (int64_t i = 0; i < n; ++i)
            NIBBLE_CHECK(decode_grid(g, matrix.expert, c + i, first,
                                     std::span(lines).subspan(size_t(i * count), size_t(count)), raw));
        for (int64_t r = 0; r < count; ++r)
            for (int64_t i = 0; i < n; ++i) out[size_t(r * cols + c + i)] = lines[size_t(i * count + r)];
    }
    return Ok{};
}

}  // namespace nibble
