#include "kernels/cpu/matmul_cpu.h"

#include "formats/fp8.h"
#include "kernels/cpu/matmul_input.h"
#include "kernels/panels.h"

#include <algorithm>
#include <array>

namespace nibble::cpu {
namespace {

using Panels = PackedMatrix::Panels;

constexpr int64_t strip_k = 256;         // 32 KiB of F32: the first-level cache
constexpr int64_t few_rows = 32;         // that share a shorter strip, so that they stay in that cache with it
constexpr int64_t word_k = 1024;         // factors of that many k are decoded ahead: 8 KiB
constexpr int64_t integer_k = 512;       // 16 KiB
constexpr int64_t row_group = 518;       // rows whose strip_k inputs stay in the second-level cache
constexpr int64_t most_panel_group = 4;  // panels that share them
constexpr std::array<float, panel_rows> ones = [] {
    std::array<float, panel_rows> a{};
    a.fill(1.0f);
    return a;
}();

// Factors of the weight's blocks from one on.
struct Factors {
    const float* c;
    int64_t step, panel;
};

// GCC takes a function that only prefetches for one without effect and drops its calls; a volatile statement stays.
[[gnu::always_inline]] inline void prefetch(const void* p) {
    asm volatile("");
    __builtin_prefetch(p);
}

class Job {
public:
    Job(const MatmulTiles& isa, const Panels& w, int64_t block, const MatmulOutput& out)
        : isa_(isa), w_(w), block_(block), e8m0_(format_layout(w.format).e8m0_scales), out_(out) {}

    // A group of panels is a run of them; gated, of pairs: a panel of gates and the one it gates, half of all behind.
    struct Group {
        int64_t first, count, half;  // half: 0, or panels between the two of a pair
        int64_t panel(int64_t p) const { return half ? first + p / 2 + p % 2 * half : first + p; }
    };

    // Outputs of rows m ... of the group's p-th panel from their sums acc [rows][32]; gates only wait for those they
    // gate, whose sums lie `apart` floats behind.
    void finish(const Group& group, int64_t p, const float* acc, int64_t apart, const float* input_scales, int64_t m,
                int64_t rows) const {
        const int64_t panel = group.panel(p), n = panel * panel_rows, count = std::min(panel_rows, w_.rows - n);
        if (group.half && p % 2 == 0) return;
        FinishRun run{.acc = acc,
                      .input_scales = input_scales + m,
                      .scales = w_.row_scales.data() + n,
                      .bias = out_.bias ? out_.bias + n : nullptr,
                      .bf16 = out_.bf16,
                      .y = out_.y + m * out_.stride + n,
                      .y_stride = out_.stride,
                      .rows = rows};
        if (group.half) {
            const int64_t back = group.half * panel_rows;
            run.y -= back;
            FinishGated gated{run, run, static_cast<int>(*out_.gated)};
            gated.gate.acc -= apart, gated.gate.scales -= back;
            if (run.bias) gated.gate.bias -= back;
            return isa_.finish_gated(gated);
        }
        if (count == panel_rows) return isa_.finish(run);
        float bias[panel_rows] = {}, whole[most_rows * panel_rows];
        if (run.bias) run.bias = std::copy_n(run.bias, count, bias) - count;
        run.y = whole, run.y_stride = panel_rows;
        isa_.finish(run);
        for (int64_t r = 0; r < rows; ++r)
            std::copy_n(whole + r * panel_rows, count, out_.y + (m + r) * out_.stride + n);
    }

    // Asks for the lines that finish will write.
    void expect(const Group& group, int64_t p, const RowTiles& tiles, int64_t t) const {
        if (group.half && p % 2 == 0) return;
        const int64_t panel = group.panel(p) - group.half;
        for (int64_t m = tiles.begin(t); m < tiles.begin(t + 1); ++m) {
            const float* y = out_.y + m * out_.stride + panel * panel_rows;
            prefetch(y);
            prefetch(y + 16);
        }
    }

    // Of panels [p, p + panels) of the group, k at `from` on; decoded block scales go to `room` [panels][blocks][32].
    Factors factors(const Group& group, int64_t p0, int64_t panels, int64_t from, int64_t count, float* room) const {
        const int64_t at = from / w_.block * panel_rows;
        if (w_.format == Format::fp8_block128)
            return {w_.panel_tile_scales(group.panel(p0)) + at, panel_rows,
                    std::max<int64_t>(group.half, 1) * w_.blocks() * panel_rows};
        if (w_.block_scales.size() == 0) return {ones.data(), 0, 0};
        const int64_t blocks = (count + w_.block - 1) / w_.block;
        for (int64_t p = 0; p < panels; ++p)
            isa_.block_factors[e8m0_](w_.panel_block_scales(group.panel(p0 + p)) + at, blocks,
                                      room + p * blocks * panel_rows);
        return {room, panel_rows, blocks * panel_rows};
    }

    const std::byte* words(int64_t panel, int64_t k) const {
        return w_.panel_words(panel) + k / codes_per_word(w_.code) * panel_rows * word_bytes(w_.code);
    }

    // Block scales of the group that comes next.
    void expect_scales(const Group& group) const {
        if (w_.block_scales.size() == 0) return;
        const int64_t bytes = w_.blocks() * panel_rows;
        for (int64_t p = 0; p < group.count; ++p) {
            const int64_t panel = group.panel(p);
            if (panel >= w_.panels()) return;
            for (const uint8_t *at = w_.panel_block_scales(panel), *end = at + bytes; at < end; at += 64) prefetch(at);
        }
    }

    // A few rows: words are decoded on the way into registers. Of a group of two a single row takes both at once.
    void from_words(const FloatInputs& in, const RowTiles& tiles, const Group& group) const {
        alignas(64) float room[2 * word_k / 16 * panel_rows];
        const int64_t step = w_.block_scales.size() ? word_k : in.k, in_rows = tiles.rows;
        const int64_t together = in_rows == 1 && isa_.pair[index()] ? group.count : 1;
        const int64_t apart = std::max<int64_t>(group.half, 1) * w_.panel_bytes();  // of the two, in words
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

    // Words and block scales of the strip that comes after (panel, k), asked for in `parts` parts while that one is
    // used: a few rows wait for memory otherwise, and more lines at once than the core has room for stall it.
    class Ahead {
    public:
        Ahead(const Job& job, int64_t panel, int64_t k, int64_t count, int64_t parts) {
            const Panels& w = job.w_;
            if (panel >= w.panels()) return;
            const auto run = [&](const void* at, int64_t bytes) {
                const auto* begin = static_cast<const std::byte*>(at);
                return Run{begin, begin + bytes, (bytes / 64 + parts) / parts * 64};
            };
            words_ = run(job.words(panel, k), count / codes_per_word(w.code) * panel_rows * word_bytes(w.code));
            if (w.block_scales.size())
                scales_ = run(w.panel_block_scales(panel) + k / w.block * panel_rows,
                              (count + w.block - 1) / w.block * panel_rows);
        }
        // The next part.
        void ask() {
            for (Run* run : {&words_, &scales_})
                for (const std::byte* part = run->at + run->part; run->at < std::min(part, run->end); run->at += 64)
                    prefetch(run->at);
        }

    private:
        struct Run {
            const std::byte* at = nullptr;
            const std::byte* end = nullptr;
            int64_t part = 0;  // bytes
        };
        Run words_, scales_;
    };
    // The strip after the group's panel `p` at k, in from_strips' order.
    Ahead ahead(const Group& group, int64_t p, int64_t k, int64_t step, int64_t end, int64_t parts) const {
        int64_t next = p + 1;
        if (next == group.count) {
            k += step;
            if (k < end)
                next = 0;
            else
                k = 0;  // the next group's first: pairs follow one another as panels do
        }
        return {*this, group.panel(next), k, std::min(step, end - k), parts};
    }

    // Many rows: a strip of each panel is decoded to F32 and used by all row tiles of the group. A tile's last strip
    // is followed by its outputs at once, their lines asked for a tile ahead: otherwise their cache misses took a
    // quarter of the time of 3072 x 576 on integers.
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
    static constexpr int64_t most_rows = std::max({most_tile_rows, most_word_rows, most_integer_rows});

    int index() const { return static_cast<int>(w_.code); }
    // Strips of nearly equal length, whole blocks each.
    int64_t strip_step(int64_t k, int64_t rows) const {
        const int64_t most = rows <= few_rows ? strip_k / 3 : strip_k;
        const int64_t strips = (k + most - 1) / most, step = (k + strips - 1) / strips;
        return (step + block_ - 1) / block_ * block_;
    }

    const MatmulTiles& isa_;
    const Panels& w_;
    int64_t block_;
    bool e8m0_;
    const MatmulOutput& out_;
};

// run(first tile, end tile, group) over all row tiles and panels, in pieces that keep the pool busy. half: as in Group.
template <class Run>
void over_tiles_and_panels(const RowTiles& tiles, int64_t panels, int64_t half, ThreadPool& pool, Run run) {
    const RowTiles groups(tiles.tiles, row_group / tiles.count(0));  // the first tile is the highest
    const int64_t units = half ? half : panels, each = half ? 2 : 1;
    const int64_t wanted = groups.tiles * units / (pool.threads() * 6);
    const int64_t together = std::clamp<int64_t>(wanted, 1, most_panel_group / each);
    const int64_t unit_groups = (units + together - 1) / together;
    pool.parallel_for(groups.tiles * unit_groups, [&](int64_t i) {
        const int64_t g = i / unit_groups, unit = i % unit_groups * together;
        run(groups.begin(g), groups.begin(g + 1), Job::Group{unit, each * std::min(together, units - unit), half});
    });
}

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
        return over_tiles_and_panels(tiles, w.panels(), half, pool, [&](int64_t t, int64_t end, const Job::Group& g) {
            job.from_integers(x, scales.data(), tiles, t, end, g);
        });
    }
    // Plain weights decoded twice on the way cost less than a strip (16 rows of the BF16 model: 6.6 times one
    // beside 4.9).
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
    over_tiles_and_panels(tiles, w.panels(), half, pool,
                          [&](int64_t t, int64_t end, const Job::Group& g) { job.from_strips(x, tiles, t, end, g); });
}

}  // namespace nibble::cpu
