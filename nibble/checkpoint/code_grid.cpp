#include "checkpoint/code_grid.h"

#include "checkpoint/scale_values.h"
#include "formats/fp8.h"
#include "formats/minifloat.h"

#include <algorithm>
#include <array>
#include <cstring>

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

// Returns the code at (row, c) of codes in this order.
uint8_t code_in(const std::byte* codes, CodeOrder order, int bits, int64_t row_bytes, int64_t row, int64_t c) {
    const auto half = [&](int64_t byte, int64_t place) {
        const auto code = static_cast<uint8_t>(codes[byte]);
        return static_cast<uint8_t>(bits == 8 ? code : place % 2 ? code >> 4 : code & 15);
    };
    const int64_t in_word = 32 / bits, in_byte = 8 / bits;
    switch (order) {
        case CodeOrder::bytes:
            return half(row * row_bytes + c / in_byte, c);
        case CodeOrder::pairs_down:
            return half(row / 2 * row_bytes + c, row);
        case CodeOrder::words_down:
            return half(row / in_word * row_bytes + 4 * c + row % in_word / in_byte, row);
        case CodeOrder::awq: {
            const int64_t column = c % 8, place = column % 2 * 4 + column / 2;  // 4 bits
            return half(row * row_bytes + c / 8 * 4 + place / 2, place);
        }
    }
    __builtin_unreachable();
}

uint8_t code_at(const CodeGrid& g, int64_t expert, int64_t row, int64_t c) {
    return code_in(g.codes.data() + expert * g.expert_bytes(), g.order, g.bits, g.row_bytes, row, c);
}

// Returns the row of the scales that belongs to a row of codes.
int64_t scale_row(const CodeGrid& g, int64_t row) {
    if (g.row_groups.empty()) return row / g.block_rows;
    int32_t group = 0;
    std::memcpy(&group, g.row_groups.data() + row * int64_t{sizeof group}, sizeof group);
    return group;
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
    const int64_t group = scale_row(g, row),
                  at = ((g.scales_per_expert ? expert : 0) * g.scale_rows + group) * g.scale_cols + first;
    widen_scales(g.scale_dtype, g.scales.data() + at * dtype_bytes(g.scale_dtype), scales);
    const float factor = g.factors[g.factors.size() == 1 ? 0 : static_cast<size_t>(expert)];
    for (float& scale : scales) {
        scale *= factor;
        if (!raw && !is_finite(scale)) return fail("row {}: a scale is {}", row, scale);
    }
    const ZeroPoints& z = g.zeros;
    for (int64_t i = c; i < end; ++i) {
        const uint8_t code = code_at(g, expert, row, i);
        const int64_t block = i / g.block_cols;
        const float value =
            z.codes.empty() ? g.values[code]
                            : static_cast<float>(
                                  code - code_in(z.codes.data(), z.order, g.bits, z.row_bytes, group, block) - z.added);
        out[static_cast<size_t>(i - c)] = bf16_from_float(value * scales[static_cast<size_t>(block - first)]);
    }
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
