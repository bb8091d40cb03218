#include "kernels/byte_product.h"

#include "kernels/cpu/byte_product_cpu.h"
#include "kernels/cpu/features.h"
#include "kernels/ref/byte_product_ref.h"
#include "kernels/unpack.h"

#include <algorithm>

namespace nibble {
namespace {

constexpr ByteKernels entries[] = {
#if defined(__x86_64__)
    {"avx512", cpu::has_avx512, avx512::byte_pack_rows, avx512::byte_pack_columns, avx512::byte_prepare,
     avx512::byte_tile},
    {"avx2", cpu::has_avx2, avx2::byte_pack_rows, avx2::byte_pack_columns, avx2::byte_prepare, avx2::byte_tile},
#endif
    {"ref", cpu::always, ref::byte_pack_rows, ref::byte_pack_columns, ref::byte_prepare, ref::byte_tile},
};

constexpr int64_t row_group = 160;  // of a, whose sums with one panel of b are 20 KiB
constexpr int64_t strip = 8;        // blocks of b that are prepared at once: 16 KiB

// Rows [begin, end) of a, whole tiles, by one panel of b: acc [end - begin][32].
void panel_product(const ByteKernels& k, const ByteMatrix& a, const ByteMatrix& b, int64_t begin, int64_t end,
                   int64_t panel, float* acc) {
    alignas(64) uint32_t prepared[strip * byte_words * byte_panel];
    const int64_t blocks = a.blocks(), block_words = byte_words * byte_panel;
    std::fill_n(acc, (end - begin) * byte_panel, 0.0f);
    for (int64_t at = 0; at < blocks; at += strip) {
        const int64_t count = std::min(strip, blocks - at);
        const int64_t from = panel * blocks + at;
        k.prepare(b.words.data() + from * block_words, count * block_words, prepared);
        for (int64_t i = begin; i < end; i += byte_tile_rows) {
            const int64_t block = i / byte_panel * blocks + at, lane = i % byte_panel;
            k.tile({.a = a.words.data() + block * block_words + lane,
                    .a_sums = a.sums.data() + block * byte_panel + lane,
                    .a_scales = a.scales.data() + block * byte_panel + lane,
                    .b = prepared,
                    .b_scales = b.scales.data() + from * byte_panel,
                    .blocks = count,
                    .acc = acc + (i - begin) * byte_panel});
        }
    }
}

// pack(panel's number, kernel's argument without its input) over the panels of a matrix.
template <class Pack>
ByteMatrix packed(int64_t rows, int64_t cols, ThreadPool& pool, Pack pack) {
    ByteMatrix m(rows, cols);
    const int64_t blocks = m.blocks();
    pool.parallel_for(m.panels(), [&](int64_t p) {
        pack(p, BytePanel{.rows = std::min(byte_panel, rows - p * byte_panel),
                          .cols = cols,
                          .words = m.words.data() + p * blocks * byte_words * byte_panel,
                          .sums = m.sums.data() + p * blocks * byte_panel,
                          .scales = m.scales.data() + p * blocks * byte_panel});
    });
    return m;
}

}  // namespace

ByteMatrix::ByteMatrix(int64_t r, int64_t c) : rows(r), cols(c) {
    const auto lanes = static_cast<size_t>(panels() * blocks() * byte_panel);
    words.resize(lanes * byte_words);
    sums.resize(lanes);
    scales.resize(lanes);
}

std::span<const ByteKernels> byte_kernels() { return entries; }

Result<const ByteKernels*> select_byte_kernels(std::string_view force) {
    std::string choices;
    for (const ByteKernels& k : entries) {
        const bool supported = k.supported();
        if (supported && (force.empty() || force == k.name)) return &k;
        if (supported) choices += fmt::format("{}{}", choices.empty() ? "" : ", ", k.name);
    }
    return fail("byte kernels '{}': unknown or not supported by this CPU, choose one of: {}", force, choices);
}

ByteMatrix byte_rows(const ByteKernels& k, const float* x, int64_t rows, int64_t cols, int64_t stride,
                     ThreadPool& pool) {
    return packed(rows, cols, pool, [&](int64_t p, BytePanel panel) {
        panel.x = x + p * byte_panel * stride, panel.stride = stride;
        k.pack_rows(panel);
    });
}

ByteMatrix byte_columns(const ByteKernels& k, const float* x, int64_t rows, int64_t cols, int64_t stride,
                        ThreadPool& pool) {
    return packed(cols, rows, pool, [&](int64_t p, BytePanel panel) {
        panel.x = x + p * byte_panel, panel.stride = stride;
        k.pack_columns(panel);
    });
}

ByteMatrix byte_weight(const ByteKernels& k, const PackedMatrix& weight, ThreadPool& pool) {
    return packed(weight.rows(), weight.cols(), pool, [&](int64_t p, BytePanel panel) {
        std::vector<float> values(static_cast<size_t>(weight.cols() * byte_panel));
        decode_panel(weight, p, values.data());
        panel.x = values.data(), panel.stride = byte_panel;
        k.pack_columns(panel);
    });
}

void byte_product(const ByteKernels& k, const ByteMatrix& a, const ByteMatrix& b, float* y, int64_t y_stride,
                  ThreadPool& pool) {
    const int64_t groups = (a.rows + row_group - 1) / row_group, panels = b.panels();
    pool.parallel_for(groups * panels, [&](int64_t job) {
        const int64_t begin = job / panels * row_group, panel = job % panels;
        const int64_t rows = std::min(row_group, a.rows - begin), n = panel * byte_panel;
        for (int64_t i = 0; i < rows; ++i) {  // lines of y are under way while they are computed
            __builtin_prefetch(y + (begin + i) * y_stride + n, 1);
            __builtin_prefetch(y + (begin + i) * y_stride + n + 16, 1);
        }
        alignas(64) float acc[row_group * byte_panel];
        panel_product(k, a, b, begin, begin + (rows + byte_tile_rows - 1) / byte_tile_rows * byte_tile_rows, panel,
                      acc);
        const int64_t count = std::min(byte_panel, b.rows - n);
        for (int64_t i = 0; i < rows; ++i) std::copy_n(acc + i * byte_panel, count, y + (begin + i) * y_stride + n);
    });
}

void add_byte_gram(const ByteKernels& k, const ByteMatrix& a, double* sums, ThreadPool& pool) {
    const int64_t n = a.rows, panels = a.panels();
    pool.parallel_for(panels, [&](int64_t job) {
        const int64_t panel = panels - 1 - job, last = std::min((panel + 1) * byte_panel, n);  // longest first
        alignas(64) float acc[row_group * byte_panel];
        for (int64_t begin = 0; begin < last; begin += row_group) {
            const int64_t end = std::min(begin + row_group, (panel + 1) * byte_panel);
            panel_product(k, a, a, begin, end, panel, acc);
            for (int64_t i = begin; i < std::min(end, n); ++i)
                for (int64_t j = std::max(i, panel * byte_panel); j < last; ++j)
                    sums[i * n + j] += double{acc[(i - begin) * byte_panel + j - panel * byte_panel]};
        }
    });
}

}  // namespace nibble
