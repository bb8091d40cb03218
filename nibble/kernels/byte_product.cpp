#include "kernels/byte_product.h"

#include "base/large_pages.h"
#include "formats/minifloat.h"
#include "kernels/cpu/byte_product_cpu.h"
#include "kernels/cpu/features.h"
#include "kernels/ref/byte_product_ref.h"
#include "kernels/unpack.h"

#include <algorithm>
#include <atomic>
#include <vector>

namespace nibble {
namespace {

constexpr ByteKernels entries[] = {
#if defined(__x86_64__)
    {"avx512", cpu::has_avx512, avx512::byte_pack_rows, avx512::byte_pack_columns, avx512::byte_prepare,
     avx512::byte_tile, avx512::byte_put},
    {"avx2", cpu::has_avx2, avx2::byte_pack_rows, avx2::byte_pack_columns, avx2::byte_prepare, avx2::byte_tile,
     avx2::byte_put},
#endif
    {"ref", cpu::always, ref::byte_pack_rows, ref::byte_pack_columns, ref::byte_prepare, ref::byte_tile, ref::byte_put},
};

constexpr int64_t row_group = 160;  // rows of a; their sums with one panel of b take 20 KiB
constexpr int64_t strip = 3;        // blocks of b prepared at once: 18 KiB

// Multiplies rows [begin, end) of a, whole tiles, by one panel of b: acc [end - begin][32].
void panel_product(const ByteKernels& k, const ByteMatrix& a, const ByteMatrix& b, int64_t begin, int64_t end,
                   int64_t panel, float* acc) {
    alignas(64) uint32_t prepared[strip * byte_words * byte_panel];
    const int64_t blocks = a.blocks(), block_words = byte_words * byte_panel;
    std::fill_n(acc, (end - begin) * byte_panel, 0.0f);
    for (int64_t at = 0; at < blocks; at += strip) {
        const int64_t count = std::min(strip, blocks - at);
        const int64_t from = panel * b.room + at;
        k.prepare(b.words.data() + from * block_words, count * block_words, prepared);
        for (int64_t i = begin; i < end; i += byte_tile_rows) {
            const int64_t block = i / byte_panel * a.room + at, lane = i % byte_panel;
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

// Calls pack(panel number, kernel argument without input) for the panels of a matrix, from block `at` on.
template <class Pack>
void pack_panels(ByteMatrix& m, int64_t at, int64_t cols, ThreadPool& pool, Pack pack) {
    pool.parallel_for(m.panels(), [&](int64_t p) {
        const int64_t block = p * m.room + at;
        pack(p, BytePanel{.rows = std::min(byte_panel, m.rows - p * byte_panel),
                          .cols = cols,
                          .words = m.words.data() + block * byte_words * byte_panel,
                          .sums = m.sums.data() + block * byte_panel,
                          .scales = m.scales.data() + block * byte_panel});
    });
}

template <class T>
void grow(AlignedArray<T>& array, int64_t size) {
    if (array.size() >= size) return;
    array = AlignedArray<T>();  // frees the old array before the new one is allocated
    array = AlignedArray<T>(size, false);
    prefer_large_pages(array.data(), size * int64_t{sizeof(T)});
}

}  // namespace

void ByteMatrix::resize(int64_t r, int64_t c) {
    rows = r, cols = c, room = blocks();
    const int64_t lanes = panels() * room * byte_panel;
    grow(words, lanes * byte_words);
    grow(sums, lanes);
    grow(scales, lanes);
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

void byte_rows(const ByteKernels& k, const float* x, int64_t rows, int64_t cols, int64_t stride, ThreadPool& pool,
               ByteMatrix& m) {
    m.resize(rows, cols);
    pack_panels(m, 0, cols, pool, [&](int64_t p, BytePanel panel) {
        panel.x = x + p * byte_panel * stride, panel.stride = stride;
        k.pack_rows(panel);
    });
}

void byte_columns(const ByteKernels& k, const float* x, int64_t rows, int64_t cols, int64_t stride, ThreadPool& pool,
                  ByteMatrix& m) {
    m.resize(cols, rows);
    append_byte_columns(k, x, rows, stride, nullptr, pool, m, 0);
}

bool append_byte_columns(const ByteKernels& k, const float* x, int64_t rows, int64_t stride, const float* factor,
                         ThreadPool& pool, ByteMatrix& m, int64_t at) {
    m.cols = at + rows;
    std::atomic<bool> finite{true};
    pack_panels(m, at / byte_block, rows, pool, [&](int64_t p, BytePanel panel) {
        panel.x = x + p * byte_panel, panel.stride = stride, panel.factor = factor;
        k.pack_columns(panel);
        const int64_t scales = (rows + byte_block - 1) / byte_block * byte_panel;
        if (!std::all_of(panel.scales, panel.scales + scales, [](float s) { return is_finite(s); })) finite = false;
    });
    return finite;
}

void byte_weight(const ByteKernels& k, const PackedMatrix& weight, ThreadPool& pool, ByteMatrix& m) {
    m.resize(weight.rows(), weight.cols());
    pack_panels(m, 0, weight.cols(), pool, [&](int64_t p, BytePanel panel) {
        std::vector<float> values(static_cast<size_t>(weight.cols() * byte_panel));
        decode_panel(weight, p, values.data());
        panel.x = values.data(), panel.stride = byte_panel;
        k.pack_columns(panel);
    });
}

void byte_product(const ByteKernels& k, const ByteMatrix& a, const ByteMatrix& b, const MatmulOutput& out,
                  ThreadPool& pool) {
    const int64_t half = out.gated ? b.panels() / 2 : 0;  // number of gate panels
    const int64_t groups = (a.rows + row_group - 1) / row_group, panels = half ? half : b.panels();
    pool.parallel_for(groups * panels, [&](int64_t job) {
        const int64_t begin = job / panels * row_group, panel = job % panels;
        const int64_t rows = std::min(row_group, a.rows - begin), n = panel * byte_panel;
        const int64_t end = begin + (rows + byte_tile_rows - 1) / byte_tile_rows * byte_tile_rows;
        float* y = out.y + begin * out.stride + n;
        for (int64_t i = 0; i < rows; ++i) {  // prefetches the lines of y during the computation
            __builtin_prefetch(y + i * out.stride, 1);
            __builtin_prefetch(y + i * out.stride + 16, 1);
        }
        alignas(64) float acc[row_group * byte_panel], gate[row_group * byte_panel];
        panel_product(k, a, b, begin, end, panel + half, acc);
        if (half) panel_product(k, a, b, begin, end, panel, gate);
        const int64_t other = n + half * byte_panel;
        k.put({.acc = acc,
               .gate = half ? gate : nullptr,
               .activation = out.gated ? static_cast<int>(*out.gated) : 0,
               .rows = rows,
               .count = std::min(byte_panel, b.rows - other),
               .bias = out.bias ? out.bias + other : nullptr,
               .gate_bias = half && out.bias ? out.bias + n : nullptr,
               .bf16 = out.bf16,
               .y = y,
               .stride = out.stride});
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
                    // NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign): panel_product wrote rows [begin, end)
                    sums[i * n + j] += double{acc[(i - begin) * byte_panel + j - panel * byte_panel]};
        }
    });
}

}  // namespace nibble
