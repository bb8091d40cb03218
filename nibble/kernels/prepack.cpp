#include "formats/minifloat.h"
#include "kernels/matmul.h"
#include "kernels/packed_memory.h"
#include "kernels/panels.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

namespace nibble {
namespace {

using Panels = PackedMatrix::Panels;

// The source of a row of a stack: the matrix and the row in it.
struct Place {
    size_t matrix;
    int64_t row;
};

template <class View>
class Stack {
public:
    explicit Stack(std::span<const View> views) : views_(views) {
        for (const View& v : views) rows_ += v.rows;
    }
    int64_t rows() const { return rows_; }
    const View& view(size_t i) const { return views_[i]; }
    Place at(int64_t row) const {
        size_t i = 0;
        while (row >= views_[i].rows) row -= views_[i++].rows;
        return {i, row};
    }

private:
    std::span<const View> views_;
    int64_t rows_ = 0;
};

std::unique_ptr<Panels> make_panels(int64_t rows, int64_t cols, Format format, DType dtype, WeightCode code,
                                    SharedPages* memory) {
    auto p = std::make_unique<Panels>();
    p->rows = rows, p->cols = cols, p->format = format, p->dtype = dtype, p->code = code;
    const FormatLayout layout = format_layout(format);
    const int layout_block = layout.block;
    p->block = layout_block ? layout_block : layout.scale_cols ? layout.scale_cols : 256;
    p->words = (cols + codes_per_word(code) - 1) / codes_per_word(code);
    p->data = AlignedArray<std::byte>(p->panels() * p->panel_bytes(), memory);
    p->row_scales = AlignedArray<float>(p->panels() * panel_rows, memory);
    if (layout_block) p->block_scales = AlignedArray<uint8_t>(p->panels() * p->blocks() * panel_rows, memory);
    if (layout.scale_cols) p->tile_scales = AlignedArray<float>(p->panels() * p->blocks() * panel_rows, memory);
    return p;
}

// Copies word w of row r to index w * 32 + r. Each row has `bytes` bytes.
template <class Word>
void interleave_words(const std::byte* const (&rows)[panel_rows], int64_t bytes, std::byte* words) {
    constexpr int64_t size = sizeof(Word);
    const int64_t whole = bytes / size * size;  // whole words are moves of a constant size
    constexpr int64_t line = 64;  // a cache line of a row at a time: lines of 32 rows can displace each other
    for (int64_t from = 0; from < bytes; from += line)
        for (int64_t r = 0; r < panel_rows; ++r) {
            if (!rows[r]) continue;
            std::byte* to = words + from * panel_rows + r * size;
            int64_t at = from;
            for (const int64_t end = std::min(from + line, whole); at < end; at += size, to += panel_rows * size)
                std::memcpy(to, rows[r] + at, size);
            if (at == whole) std::memcpy(to, rows[r] + whole, static_cast<size_t>(bytes - whole));
        }
}

void interleave(const std::byte* const (&rows)[panel_rows], int64_t bytes, WeightCode code, std::byte* words) {
    if (word_bytes(code) == 2)
        interleave_words<uint16_t>(rows, bytes, words);
    else
        interleave_words<uint32_t>(rows, bytes, words);
}

void widen_f16(const std::byte* const (&rows)[panel_rows], int64_t cols, std::byte* words) {
    for (int64_t k = 0; k < cols; ++k, words += panel_rows * 4)
        for (int64_t r = 0; r < panel_rows; ++r) {
            if (!rows[r]) continue;
            uint16_t code;
            std::memcpy(&code, rows[r] + 2 * k, sizeof code);
            const float value = fp16_to_float(code);
            std::memcpy(words + r * 4, &value, sizeof value);
        }
}

Result<WeightCode> plain_code(DType dtype) {
    if (dtype == DType::bf16) return WeightCode::bf16;
    if (dtype == DType::f16 || dtype == DType::f32) return WeightCode::f32;
    return fail("prepack: weights are BF16, F16 or F32, not {}", dtype_name(dtype));
}

DType packed_dtype(WeightCode code) { return code == WeightCode::bf16 ? DType::bf16 : DType::f32; }

bool is_e8m0(Format format) { return format_layout(format).e8m0_scales; }

// ---- Quantized rows -----------------------------------------------------------------------------------------------

// Rewrites the codes of one block of a row: word = (word & keep) ^ change.
void rewrite_codes(Panels& p, int64_t row, int64_t block, uint32_t keep, uint32_t change) {
    const int words = p.block / codes_per_word(p.code), bytes = word_bytes(p.code);
    std::byte* at = p.panel_words(row / panel_rows) + (block * words * panel_rows + row % panel_rows) * bytes;
    for (int w = 0; w < words; ++w, at += panel_rows * bytes) {
        uint32_t word = 0;
        std::memcpy(&word, at, static_cast<size_t>(bytes));
        word = (word & keep) ^ change;
        std::memcpy(at, &word, static_cast<size_t>(bytes));
    }
}

// The packed form of each non-negative E4M3 scale (panels.h).
constexpr std::array<uint8_t, 128> packed_scales = [] {
    std::array<uint8_t, 128> out{};
    for (uint32_t e4m3 = 1; e4m3 < 127; ++e4m3)
        out[e4m3] =
            static_cast<uint8_t>((float_bits(e4m3_to_float(static_cast<uint8_t>(e4m3))) - packed_scale_bias) >> 20);
    return out;
}();

// Returns true if all E4M3 scales are positive numbers.
bool all_usual(const uint8_t* scales, int64_t n) {
    bool usual = true;
    for (int64_t i = 0; i < n; ++i) usual &= static_cast<uint8_t>(scales[i] - 1) < e4m3_nan_code - 1;
    return usual;
}

// Writes the scales of one row to its lane. A negative E4M3 scale becomes positive and the codes of its block change
// sign; a zero scale becomes zero codes. Returns false if a scale is NaN.
bool put_scales(const Stack<QuantView>& stack, int64_t row, Panels& p) {
    const auto [i, r] = stack.at(row);
    const QuantView& v = stack.view(i);
    const int64_t panel = row / panel_rows, lane = row % panel_rows, blocks = p.blocks();
    p.row_scales[row] = v.format == Format::fp8_row ? v.float_scales[r] : v.tensor_scale;
    if (const FormatLayout layout = format_layout(p.format); layout.scale_cols)
        for (int64_t b = 0; b < blocks; ++b)
            p.tile_scales[(panel * blocks + b) * panel_rows + lane] =
                v.float_scales[layout.scale_index(r, b * layout.scale_cols, v.cols)];
    if (p.block_scales.size() == 0) return true;
    const uint8_t* scales = v.block_scales + r * blocks;
    uint8_t* lanes = p.block_scales.data() + panel * blocks * panel_rows + lane;
    if (!is_e8m0(p.format) && all_usual(scales, blocks)) {
        for (int64_t b = 0; b < blocks; ++b) lanes[b * panel_rows] = packed_scales[scales[b]];
        return true;
    }
    for (int64_t b = 0; b < blocks; ++b) {
        const uint8_t scale = v.block_scales[r * blocks + b];
        uint8_t& packed = p.block_scales[(panel * blocks + b) * panel_rows + lane];
        if (is_e8m0(p.format)) {
            if (scale == 255) return false;
            packed = scale;
            continue;
        }
        if ((scale & 0x7F) == e4m3_nan_code) return false;
        if ((scale & 0x7F) == 0) {
            rewrite_codes(p, row, b, 0, 0);
            continue;
        }
        if (scale >= 0x80) rewrite_codes(p, row, b, ~0u, 0x88888888u);
        packed = packed_scales[scale & 0x7F];
    }
    return true;
}

bool has_nan(const uint8_t* codes, int64_t n) {
    bool found = false;
    for (int64_t i = 0; i < n; ++i) found |= (codes[i] & 0x7F) == e4m3_nan_code;
    return found;
}

Status check_alike(std::span<const MatrixView> weights) {
    if (weights.empty()) return fail("prepack: no matrix");
    const DType dtype = weights[0].dtype;
    const int64_t cols = weights[0].cols;
    for (const MatrixView& w : weights)
        if (w.dtype != dtype || w.cols != cols)
            return fail("prepack: stacked matrices differ: {} x {} and {} x {}", cols, dtype_name(dtype), w.cols,
                        dtype_name(w.dtype));
    return Ok{};
}

// ---- Transposes: `count` elements of a source's row become a column, one in each lane of a panel ------------------

constexpr int64_t rows_ahead = 24;  // prefetch distance in rows

// Writes BF16 values to the lower (shift 0) or, after that, the upper halves of words.
void put_column(const std::byte* from, int shift, int64_t count, uint32_t* words) {
    uint16_t codes[panel_rows] = {};
    std::memcpy(codes, from, static_cast<size_t>(count) * 2);
    if (shift == 0)
        for (int64_t r = 0; r < panel_rows; ++r) words[r] = codes[r];
    else
        for (int64_t r = 0; r < panel_rows; ++r) words[r] |= uint32_t{codes[r]} << 16;
}
void widen_column(const std::byte* from, int64_t count, uint32_t* words) {
    for (int64_t r = 0; r < count; ++r) {
        uint16_t code;
        std::memcpy(&code, from + 2 * r, sizeof code);
        words[r] = float_bits(fp16_to_float(code));
    }
}

Result<PackedMatrix> stacked(std::span<const MatrixView> weights, ThreadPool& pool, SharedPages* memory) {
    NIBBLE_CHECK(check_alike(weights));
    const DType dtype = weights[0].dtype;
    const int64_t cols = weights[0].cols;
    NIBBLE_TRY(const WeightCode code, plain_code(dtype));
    const Stack<MatrixView> stack(weights);
    auto p = make_panels(stack.rows(), cols, Format::none, packed_dtype(code), code, memory);
    pool.parallel_for(p->panels(), [&](int64_t panel) {
        const std::byte* rows[panel_rows] = {};
        for (int64_t r = 0; r < panel_rows && panel * panel_rows + r < p->rows; ++r) {
            const Place at = stack.at(panel * panel_rows + r);
            rows[r] = weights[at.matrix].data + at.row * weights[at.matrix].row_bytes();
            p->row_scales[panel * panel_rows + r] = 1.0f;
        }
        if (dtype == DType::f16)
            widen_f16(rows, cols, p->panel_words(panel));
        else
            interleave(rows, cols * dtype_bytes(dtype), code, p->panel_words(panel));
    });
    return PackedMatrix(std::move(p));
}

Result<PackedMatrix> stacked(std::span<const QuantView> weights, ThreadPool& pool, SharedPages* memory) {
    if (weights.empty()) return fail("prepack: no matrix");
    const Format format = weights[0].format;
    const int64_t cols = weights[0].cols;
    if (format == Format::none) return fail("prepack: a quantized matrix has no format");
    if (!format_fits(format, cols))
        return fail("prepack: {} columns are not whole blocks of {}", cols, format_name(format));
    for (const QuantView& w : weights)
        if (w.format != format || w.cols != cols)
            return fail("prepack: stacked matrices differ: {} {} and {} {}", cols, format_name(format), w.cols,
                        format_name(w.format));
    const FormatLayout layout = format_layout(format);
    const WeightCode code = layout.integers         ? WeightCode::int4
                            : layout.code_bits == 4 ? WeightCode::e2m1
                                                    : WeightCode::e4m3;
    const Stack<QuantView> stack(weights);
    auto p = make_panels(stack.rows(), cols, format, DType::f32, code, memory);
    const int64_t row_bytes = code_bytes(format, 1, cols);
    std::atomic<int64_t> nan_row{-1};
    pool.parallel_for(p->panels(), [&](int64_t panel) {
        const std::byte* rows[panel_rows] = {};
        const int64_t first = panel * panel_rows, count = std::min(panel_rows, p->rows - first);
        for (int64_t r = 0; r < count; ++r) {
            const Place at = stack.at(first + r);
            const uint8_t* codes = weights[at.matrix].codes + at.row * row_bytes;
            if (code == WeightCode::e4m3 && has_nan(codes, row_bytes)) nan_row = first + r;
            rows[r] = reinterpret_cast<const std::byte*>(codes);
        }
        interleave(rows, row_bytes, p->code, p->panel_words(panel));
        for (int64_t r = 0; r < count; ++r)
            if (!put_scales(stack, first + r, *p)) nan_row = first + r;
    });
    if (nan_row >= 0) return fail("prepack: a code or block scale in row {} is NaN", nan_row.load());
    return PackedMatrix(std::move(p));
}

}  // namespace

Result<PackedMatrix> prepack_stacked(std::span<const QuantView> weights, ThreadPool& pool) {
    return stacked(weights, pool, nullptr);
}
Result<PackedMatrix> prepack_stacked(std::span<const MatrixView> weights, ThreadPool& pool) {
    return stacked(weights, pool, nullptr);
}
Result<PackedMatrix> prepack_stacked(std::span<const QuantView> weights, ThreadPool& pool, SharedPages& memory) {
    return stacked(weights, pool, &memory);
}
Result<PackedMatrix> prepack_stacked(std::span<const MatrixView> weights, ThreadPool& pool, SharedPages& memory) {
    return stacked(weights, pool, &memory);
}
Result<PackedMatrix> prepack(const MatrixView& weight, ThreadPool& pool) { return prepack_stacked({&weight, 1}, pool); }
Result<PackedMatrix> prepack(const QuantView& weight, ThreadPool& pool) { return prepack_stacked({&weight, 1}, pool); }

Result<PackedMatrix> prepack_transposed(const MatrixView& weight, ThreadPool& pool) {
    return prepack_transposed({&weight, 1}, pool);
}

Result<PackedMatrix> prepack_transposed(std::span<const MatrixView> parts, ThreadPool& pool) {
    NIBBLE_CHECK(check_alike(parts));
    const DType dtype = parts[0].dtype;
    NIBBLE_TRY(const WeightCode code, plain_code(dtype));
    auto p =
        make_panels(parts[0].cols, Stack<MatrixView>(parts).rows(), Format::none, packed_dtype(code), code, nullptr);
    pool.parallel_for(p->panels(), [&](int64_t panel) {
        const int64_t first = panel * panel_rows, count = std::min(panel_rows, p->rows - first);
        auto* words = reinterpret_cast<uint32_t*>(p->panel_words(panel));
        for (int64_t r = 0; r < count; ++r) p->row_scales[first + r] = 1.0f;
        int64_t k = 0;
        for (const MatrixView& part : parts) {
            const std::byte* from = part.data + first * dtype_bytes(dtype);
            for (int64_t row = 0; row < part.rows; ++row, ++k, from += part.row_bytes()) {
                // A panel's part of a row is one or two cache lines, too far from the next for the hardware prefetcher.
                for (int64_t line = 0; row + rows_ahead < part.rows && line < count * dtype_bytes(dtype); line += 64)
                    __builtin_prefetch(from + rows_ahead * part.row_bytes() + line);
                if (code == WeightCode::bf16)
                    put_column(from, k % 2 * 16, count, words + k / 2 * panel_rows);
                else if (dtype == DType::f32)
                    std::memcpy(words + k * panel_rows, from, static_cast<size_t>(count) * 4);
                else
                    widen_column(from, count, words + k * panel_rows);
            }
        }
    });
    return PackedMatrix(std::move(p));
}

}  // namespace nibble
