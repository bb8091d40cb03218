#include "kernels/cpu/matmul_cpu.h"

#include "kernels/cpu/panel_job.h"

#include <algorithm>

namespace nibble::cpu {
namespace {

using Panels = PackedMatrix::Panels;

constexpr int64_t strip_k = 256;    // 32 KiB of F32: fits the first-level cache
constexpr int64_t few_rows = 32;    // rows that use a shorter strip, so that they stay in that cache together with it
constexpr int64_t word_k = 1024;    // factors of this many k are decoded ahead: 8 KiB
constexpr int64_t integer_k = 512;  // 16 KiB
constexpr int64_t row_group = 518;  // rows whose strip_k inputs stay in the second-level cache

class Job : public PanelJob {
public:
    using PanelJob::PanelJob;

    // For few rows: decodes words directly into registers. For a group of two panels a single row uses both at once.
    void from_words(const FloatInputs& in, const RowTiles& tiles, const Group& group) const {
        alignas(64) float room[2 * word_k / 16 * panel_rows];
        const int64_t step = w_.block_scales.size() ? word_k : in.k, in_rows = tiles.rows;
        const int64_t together = in_rows == 1 && isa_.pair[index()] ? group.count : 1;
        const int64_t apart = std::max<int64_t>(group.half, 1) * w_.panel_bytes();  // bytes between the two panels
        expect_scales({group.first + (group.half ? 1 : group.count), group.count, group.half});
        alignas(64) float acc[2 * 2 * most_word_rows * panel_rows];  // [panels][rows][32]
        const auto sums = [&](int64_t p, int64_t m) { return acc + (p * in_rows + m) * panel_rows; };
        for (int64_t p = 0; p < group.count; p += together) {
            const int64_t panel = group.panel(p);
            for (int64_t t = 0; t < tiles.tiles; ++t) {
                const int64_t m = tiles.begin(t);
                const int rows = tiles.count(t);
                const Tile tile = together == 2 ? isa_.pair[index()] : isa_.words[index()][rows];
                for (int64_t k = 0; k < in.k; k += step) {
                    const int64_t count = std::min(step, in.k - k);
                    const Factors c = factors(group, p, together, k, count, room);
                    tile({.words = words(panel, k),
                          .words_panel = apart,
                          .words_end = words(panel, 0) + w_.panel_bytes(),
                          .words_skip = group.half ? 0 : (together - 1) * w_.panel_bytes(),
                          .x = in.x + m * in.x_row + k,
                          .x_row = in.x_row,
                          .c = c.c,
                          .c_step = c.step,
                          .c_panel = c.panel,
                          .g = in.g ? in.g + m * in.blocks + k / block_ : nullptr,
                          .g_row = in.blocks,
                          .k = count,
                          .block = block_,
                          .first = k == 0,
                          .acc = sums(p, m)});
                }
            }
        }
        for (int64_t p = 0; p < group.count; ++p)
            for (int64_t t = 0; t < tiles.tiles; ++t)
                finish(group, p, sums(p, tiles.begin(t)), in_rows * panel_rows, in.scales.data(), tiles.begin(t),
                       tiles.count(t));
    }

    // For many rows: decodes a strip of each panel to F32, which all row tiles of the group use. A tile's outputs are
    // written right after its last strip, and their lines are prefetched one tile ahead; without this, cache misses
    // took a quarter of the time of 3072 x 576 on integers.
    void from_strips(const FloatInputs& in, const RowTiles& tiles, int64_t first_tile, int64_t end_tile,
                     const Group& group) const {
        const int64_t m0 = tiles.begin(first_tile), rows = tiles.begin(end_tile) - m0;
        alignas(64) float acc[most_panel_group * row_group * panel_rows];
        alignas(64) float strip[strip_k * panel_rows];
        alignas(64) float room[strip_k / 16 * panel_rows];
        const int64_t step = strip_step(in.k, rows);
        for (int64_t k = 0; k < in.k; k += step) {
            const int64_t count = std::min(step, in.k - k);
            const bool last = k + count == in.k;
            for (int64_t p = 0; p < group.count; ++p) {
                const std::byte* at = words(group.panel(p), k);
                if (w_.code != WeightCode::f32) {
                    isa_.unpack[index()](at, count / codes_per_word(w_.code), strip);
                    at = reinterpret_cast<const std::byte*>(strip);
                }
                const Factors c = factors(group, p, 1, k, count, room);
                Ahead next = ahead(group, p, k, step, in.k, end_tile - first_tile);
                if (last) expect(group, p, tiles, first_tile);
                for (int64_t t = first_tile; t < end_tile; ++t) {
                    next.ask();
                    const int64_t m = tiles.begin(t);
                    const int r = tiles.count(t);
                    float* sums = acc + (p * rows + m - m0) * panel_rows;
                    if (last && t + 1 < end_tile) expect(group, p, tiles, t + 1);
                    isa_.strip[r]({.words = at,
                                   .words_panel = 0,
                                   .words_end = nullptr,
                                   .words_skip = 0,
                                   .x = in.x + m * in.x_row + k,
                                   .x_row = in.x_row,
                                   .c = c.c,
                                   .c_step = c.step,
                                   .c_panel = 0,
                                   .g = in.g ? in.g + m * in.blocks + k / block_ : nullptr,
                                   .g_row = in.blocks,
                                   .k = count,
                                   .block = block_,
                                   .first = k == 0,
                                   .acc = sums});
                    if (last) finish(group, p, sums, rows * panel_rows, in.scales.data(), m, r);
                }
            }
        }
    }

    void from_integers(const IntegerInputs& in, const float* input_scales, const RowTiles& tiles, int64_t first_tile,
                       int64_t end_tile, const Group& group) const {
        const int64_t m0 = tiles.begin(first_tile), rows = tiles.begin(end_tile) - m0;
        alignas(64) float acc[most_panel_group * row_group * panel_rows];
        alignas(64) uint32_t strip[integer_k / 4 * panel_rows];
        alignas(64) float room[integer_k / 16 * panel_rows];
        for (int64_t k = 0; k < w_.cols; k += integer_k) {
            const int64_t count = std::min(integer_k, w_.cols - k), b = k / 16;
            const bool last = k + count == w_.cols;
            for (int64_t p = 0; p < group.count; ++p) {
                isa_.unpack_integer(words(group.panel(p), k), count / 8, strip);
                const Factors c = factors(group, p, 1, k, count, room);
                Ahead next = ahead(group, p, k, integer_k, w_.cols, end_tile - first_tile);
                if (last) expect(group, p, tiles, first_tile);
                for (int64_t t = first_tile; t < end_tile; ++t) {
                    next.ask();
                    const int64_t m = tiles.begin(t), at = m * in.blocks + b * tiles.count(t);
                    float* sums = acc + (p * rows + m - m0) * panel_rows;
                    if (last && t + 1 < end_tile) expect(group, p, tiles, t + 1);
                    isa_.integer[tiles.count(t)]({.w = strip,
                                                  .x = in.x.data() + at * 4,
                                                  .offset = in.offset.data() + at,
                                                  .sx = in.sx.data() + at,
                                                  .c = c.c,
                                                  .blocks = count / 16,
                                                  .first = k == 0,
                                                  .acc = sums});
                    if (last) finish(group, p, sums, rows * panel_rows, input_scales, m, tiles.count(t));
                }
            }
        }
    }

private:
    // Strips of nearly equal length, of whole blocks.
    int64_t strip_step(int64_t k, int64_t rows) const {
        const int64_t most = rows <= few_rows ? strip_k / 3 : strip_k;
        const int64_t strips = (k + most - 1) / most, step = (k + strips - 1) / strips;
        return (step + block_ - 1) / block_ * block_;
    }
};

}  // namespace

void matmul(const MatmulTiles& isa, const RowKernels& kernels, const PackedMatrix& packed, const MatmulInput& in,
            const MatmulOutput& out, ThreadPool& pool) {
    const Panels& w = packed.panels();
    if (in.rows == 0 || w.rows == 0) return;
    const bool groups = in.activation == ActivationFormat::fp8_group128;
    const int64_t block = groups ? std::min(w.block, fp8_tile) : w.block;
    const int64_t half = out.gated ? w.panels() / 2 : 0;
    const Job job(isa, w, block, out);
    if (in.activation == ActivationFormat::nvfp4 && w.format == Format::nvfp4) {
        const RowTiles tiles(in.rows, isa.integer_rows);
        const IntegerInputs x = integer_inputs(isa, kernels, in, tiles, w.cols, pool);
        const std::vector<float> scales(static_cast<size_t>(in.rows), in.input_scale);
        return over_tiles_and_panels(tiles, row_group, w.panels(), half, pool,
                                     [&](int64_t t, int64_t end, const Job::Group& g) {
                                         job.from_integers(x, scales.data(), tiles, t, end, g);
                                     });
    }
    // Decoding plain weights twice on the fly costs less than a strip (16 rows of the BF16 model: 4.9 times the time of
    // one row, against 6.6 times).
    if (in.rows <= isa.word_rows * (w.format == Format::none ? 2 : 1)) {
        const RowTiles tiles(in.rows, isa.word_rows);
        const float factor = w.code == WeightCode::e4m3 ? 256.0f : 1.0f;
        const FloatInputs x = float_inputs(kernels, in, w, block, factor, pool);
        const bool pairs = isa.pair[static_cast<int>(w.code)] && in.rows == 1 && w.panels() >= 4 * pool.threads();
        const int64_t together = pairs || half ? 2 : 1, units = half ? half : (w.panels() + together - 1) / together;
        return pool.parallel_for(units, [&](int64_t i) {
            if (half) return job.from_words(x, tiles, {i, 2, half});
            const int64_t panel = i * together;
            job.from_words(x, tiles, {panel, std::min(together, w.panels() - panel), 0});
        });
    }
    const RowTiles tiles(in.rows, isa.strip_rows);
    const FloatInputs x = float_inputs(kernels, in, w, block, 1.0f, pool);
    over_tiles_and_panels(tiles, row_group, w.panels(), half, pool,
                          [&](int64_t t, int64_t end, const Job::Group& g) { job.from_strips(x, tiles, t, end, g); });
}

}  // namespace nibble::cpu
