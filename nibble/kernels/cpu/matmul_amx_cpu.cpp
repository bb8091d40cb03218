#include "kernels/cpu/amx.h"
#include "kernels/cpu/matmul_cpu.h"
#include "kernels/cpu/panel_job.h"

namespace nibble::cpu {
namespace {

using Panels = PackedMatrix::Panels;

constexpr int64_t strip_k = 512;         // 32 KiB of pairs: fits the first-level cache
constexpr int64_t few_k = 1024;          // factors of this many k are decoded ahead: 8 KiB
constexpr int64_t tile_row_group = 512;  // rows whose strip_k inputs stay in the second-level cache

struct TileInputs {
    AlignedArray<uint16_t> tiles;  // [tiles of 16 rows][steps][16][32]
    int64_t steps = 0;             // number of tiles along k
    const FloatInputs& floats;

    const uint16_t* at(int64_t tile, int64_t k) const {
        return tiles.data() + (tile * steps + k / tile_k) * tile_values;
    }
};

class TileJob : public PanelJob {
public:
    // block: size of the blocks whose factors BF16 weights cannot hold; 0: none.
    TileJob(const Panels& w, int64_t block, const MatmulOutput& out) : PanelJob(matmul_avx512, w, block, out) {}

    // For up to 16 rows: decodes words while summing.
    void from_words(const TileInputs& in, const RowTiles& tiles, const Group& group) const {
        alignas(64) float acc[2 * tile_rows * panel_rows];  // [panels][16][32]
        alignas(64) float room[(few_k / 16 + 1) * panel_rows];
        const int64_t step = block_ ? block_ : w_.block_scales.size() ? few_k : w_.cols;
        expect_scales({group.first + (group.half ? 1 : group.count), group.count, group.half});
        for (int64_t p = 0; p < group.count; ++p)
            for (int64_t k = 0; k < w_.cols; k += step) {
                const AmxWeights run = weights(group, p, k, std::min(step, w_.cols - k), room);
                float* total = acc + p * tile_rows * panel_rows;
                if (!block_) {
                    amx_kernels.few[index()]({in.at(0, k), 0}, run, k == 0, total);
                    continue;
                }
                alignas(64) float t[tile_rows * panel_rows];
                amx_kernels.few[index()]({in.at(0, k), 0}, run, true, t);
                add_block(in.floats, group, p, k, 0, tiles.rows, t, total);
            }
        for (int64_t p = 0; p < group.count; ++p)
            finish(group, p, acc + p * tile_rows * panel_rows, tile_rows * panel_rows, in.floats.scales.data(), 0,
                   tiles.rows);
    }

    // For more rows: all tiles of the group use the same strips of pairs, two tiles at a time.
    void from_strips(const TileInputs& in, const RowTiles& tiles, int64_t first_tile, int64_t end_tile,
                     const Group& group) const {
        alignas(64) float acc[most_panel_group * tile_row_group * panel_rows];
        alignas(64) uint32_t strip[strip_k / 2 * panel_rows];
        alignas(64) float room[(strip_k / 16 + 1) * panel_rows];
        const int64_t sums = (end_tile - first_tile) * tile_rows * panel_rows, step = strip_step();
        for (int64_t k = 0; k < w_.cols; k += step) {
            const int64_t count = std::min(step, w_.cols - k);
            const bool last = k + count == w_.cols;
            for (int64_t p = 0; p < group.count; ++p) {
                const AmxWeights run = weights(group, p, k, count, room);
                const auto* pairs = reinterpret_cast<const uint32_t*>(run.words);
                if (w_.code != WeightCode::bf16 || count % tile_k) {
                    amx_kernels.pairs[index()](run, strip);
                    pairs = strip;
                }
                Ahead next = ahead(group, p, k, step, w_.cols, (end_tile - first_tile + 1) / 2);
                if (last) expect(group, p, tiles, first_tile);
                for (int64_t t = first_tile; t < end_tile; t += 2) {
                    next.ask();
                    const int64_t together = std::min<int64_t>(2, end_tile - t);
                    float* total = acc + p * sums + (t - first_tile) * tile_rows * panel_rows;
                    if (last)
                        for (int64_t i = t + 2; i < std::min(t + 4, end_tile); ++i) expect(group, p, tiles, i);
                    add_strip(in, tiles, group, p, t, together, k, count, pairs, total);
                    if (!last) continue;
                    for (int64_t i = t; i < t + together; ++i)
                        finish(group, p, total + (i - t) * tile_rows * panel_rows, sums, in.floats.scales.data(),
                               tiles.begin(i), tiles.count(i));
                }
            }
        }
    }

private:
    AmxWeights weights(const Group& group, int64_t p, int64_t k, int64_t count, float* room) const {
        const Factors c =
            block_ && w_.block_scales.size() == 0 ? Factors{ones.data(), 0, 0} : factors(group, p, 1, k, count, room);
        return {words(group.panel(p), k), words_k(k, count), c.c, c.step, w_.block};
    }
    // Returns the k of `count` values including the padding of words.
    int64_t words_k(int64_t k, int64_t count) const {
        const int64_t per_word = codes_per_word(w_.code), end = (k + count + per_word - 1) / per_word * per_word;
        return end - k;
    }

    void add_block(const FloatInputs& in, const Group& group, int64_t p, int64_t k, int64_t m, int64_t rows,
                   const float* t, float* total) const {
        const int64_t b = k / block_;
        const float* c =
            w_.tile_scales.size() != 0 ? w_.panel_tile_scales(group.panel(p)) + b * panel_rows : ones.data();
        amx_kernels.add_block(t, rows, c, in.g ? in.g + m * in.blocks + b : nullptr, in.blocks, k == 0, total);
    }

    void add_strip(const TileInputs& in, const RowTiles& tiles, const Group& group, int64_t p, int64_t t,
                   int64_t together, int64_t k, int64_t count, const uint32_t* pairs, float* total) const {
        const auto sum = together == 2 ? amx_kernels.two : amx_kernels.one;
        const int64_t apart = in.steps * tile_values;
        if (!block_) return sum({in.at(t, k), apart}, pairs, (count + tile_k - 1) / tile_k, k == 0, total);
        alignas(64) float block[2 * tile_rows * panel_rows];
        for (int64_t b = 0; b < count; b += block_) {
            const int64_t steps = (std::min(block_, count - b) + tile_k - 1) / tile_k;
            sum({in.at(t, k + b), apart}, pairs + b / 2 * panel_rows, steps, true, block);
            for (int64_t i = 0; i < together; ++i)
                add_block(in.floats, group, p, k + b, tiles.begin(t + i), tiles.count(t + i),
                          block + i * tile_rows * panel_rows, total + i * tile_rows * panel_rows);
        }
    }

    // Strips of nearly equal length, of whole blocks and tiles.
    int64_t strip_step() const {
        const int64_t strips = (w_.cols + strip_k - 1) / strip_k, step = (w_.cols + strips - 1) / strips;
        const int64_t whole = std::max<int64_t>(block_, tile_k);
        return (step + whole - 1) / whole * whole;
    }
};

TileInputs tile_inputs(const FloatInputs& floats, const RowTiles& tiles, ThreadPool& pool) {
    const int64_t steps = (floats.k + tile_k - 1) / tile_k;
    TileInputs in{AlignedArray<uint16_t>(tiles.tiles * steps * tile_values, false), steps, floats};
    pool.parallel_for(tiles.tiles, [&](int64_t t) {
        amx_kernels.round(floats.x + tiles.begin(t) * floats.x_row, floats.x_row, tiles.count(t), floats.k,
                          in.tiles.data() + t * steps * tile_values);
    });
    return in;
}

// Holds the tile registers of this thread for its lifetime.
class Tiles {
public:
    explicit Tiles(int64_t rows) { amx_kernels.configure(static_cast<int>(rows)); }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;
    ~Tiles() { amx_kernels.release(); }
};

}  // namespace

void matmul_amx(const PackedMatrix& packed, const MatmulInput& in, const MatmulOutput& out, ThreadPool& pool) {
    const Panels& w = packed.panels();
    if (in.rows == 0 || w.rows == 0) return;
    if (!sums_in_tiles(packed)) return matmul(matmul_avx512, rows_avx512, packed, in, out, pool);
    const bool groups = in.activation == ActivationFormat::fp8_group128;
    const int64_t block = groups || w.tile_scales.size() != 0 ? fp8_tile : 0;
    const int64_t half = out.gated ? w.panels() / 2 : 0;
    const FloatInputs floats = float_inputs(rows_avx512, in, w, block ? block : w.block, 1.0f, pool);
    const RowTiles tiles(in.rows, tile_rows);
    const TileInputs x = tile_inputs(floats, tiles, pool);
    const TileJob job(w, block, out);
    if (tiles.tiles == 1)
        return pool.parallel_for(half ? half : w.panels(), [&](int64_t i) {
            const Tiles registers(in.rows);
            job.from_words(x, tiles, {i, half ? 2 : 1, half});
        });
    over_tiles_and_panels(tiles, tile_row_group, w.panels(), half, pool,
                          [&](int64_t t, int64_t end, const PanelJob::Group& g) {
                              const Tiles registers(tile_rows);
                              job.from_strips(x, tiles, t, end, g);
                          });
}

}  // namespace nibble::cpu
