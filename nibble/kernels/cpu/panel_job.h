// Shared by all orders of sums: groups of panels, their factors, prefetches, and the finishing of outputs.
#pragma once

#include "formats/fp8.h"
#include "kernels/cpu/matmul_input.h"
#include "kernels/cpu/matmul_tiles.h"
#include "kernels/panels.h"

#include <algorithm>
#include <array>

namespace nibble::cpu {

inline constexpr int64_t most_panel_group = 4;  // panels that share the inputs of a group of rows
inline constexpr std::array<float, panel_rows> ones = [] {
    std::array<float, panel_rows> a{};
    a.fill(1.0f);
    return a;
}();

// Factors of the weight's blocks, from a given block on.
struct Factors {
    const float* c;
    int64_t step, panel;
};

// GCC removes calls of a function that only prefetches; the volatile statement prevents this.
[[gnu::always_inline]] inline void prefetch(const void* p) {
    asm volatile("");
    __builtin_prefetch(p);
}

class PanelJob {
public:
    using Panels = PackedMatrix::Panels;

    PanelJob(const MatmulTiles& isa, const Panels& w, int64_t block, const MatmulOutput& out)
        : isa_(isa), w_(w), block_(block), e8m0_(format_layout(w.format).e8m0_scales), out_(out) {}

    // A group is a run of panels. Gated, it is a run of pairs: a panel of gates and the panel `half` panels later that
    // it gates.
    struct Group {
        int64_t first, count, half;  // half: 0, or the distance between the panels of a pair
        int64_t panel(int64_t p) const { return half ? first + p / 2 + p % 2 * half : first + p; }
    };

    // Writes the outputs of rows m ... of the group's p-th panel from their sums acc [rows][32]. A gate panel is
    // finished together with the panel it gates, whose sums are `apart` floats later.
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
        float bias[panel_rows] = {}, whole[most_finished_rows * panel_rows];
        if (run.bias) run.bias = std::copy_n(run.bias, count, bias) - count;
        run.y = whole, run.y_stride = panel_rows;
        isa_.finish(run);
        for (int64_t r = 0; r < rows; ++r)
            std::copy_n(whole + r * panel_rows, count, out_.y + (m + r) * out_.stride + n);
    }

    // Prefetches the lines that finish() will write.
    void expect(const Group& group, int64_t p, const RowTiles& tiles, int64_t t) const {
        if (group.half && p % 2 == 0) return;
        const int64_t panel = group.panel(p) - group.half;
        for (int64_t m = tiles.begin(t); m < tiles.begin(t + 1); ++m) {
            const float* y = out_.y + m * out_.stride + panel * panel_rows;
            prefetch(y);
            prefetch(y + 16);
        }
    }

    // Returns the factors of panels [p, p + panels) of the group from k = `from` on. Decoded block scales go to `room`
    // [panels][blocks][32].
    Factors factors(const Group& group, int64_t p0, int64_t panels, int64_t from, int64_t count, float* room) const {
        const int64_t at = from / w_.block * panel_rows;
        if (w_.tile_scales.size() != 0)
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

    // Prefetches the block scales of the next group.
    void expect_scales(const Group& group) const {
        if (w_.block_scales.size() == 0) return;
        const int64_t bytes = w_.blocks() * panel_rows;
        for (int64_t p = 0; p < group.count; ++p) {
            const int64_t panel = group.panel(p);
            if (panel >= w_.panels()) return;
            for (const uint8_t *at = w_.panel_block_scales(panel), *end = at + bytes; at < end; at += 64) prefetch(at);
        }
    }

    // Prefetches words and block scales of the strip after (panel, k), in `parts` parts while the current strip is
    // used. Without it a few rows wait for memory; prefetching more lines at once stalls the core.
    class Ahead {
    public:
        Ahead(const PanelJob& job, int64_t panel, int64_t k, int64_t count, int64_t parts) {
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
        // Prefetches the next part.
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
    // Returns the strip after the group's panel `p` at k, in the order of from_strips.
    Ahead ahead(const Group& group, int64_t p, int64_t k, int64_t step, int64_t end, int64_t parts) const {
        int64_t next = p + 1;
        if (next == group.count) {
            k += step;
            if (k < end)
                next = 0;
            else
                k = 0;  // the next group's first strip: pairs are adjacent, like panels
        }
        return {*this, group.panel(next), k, std::min(step, end - k), parts};
    }

protected:
    static constexpr int64_t most_finished_rows = 16;
    static_assert(most_finished_rows >= std::max({most_tile_rows, most_word_rows, most_integer_rows}));

    int index() const { return static_cast<int>(w_.code); }

    const MatmulTiles& isa_;
    const Panels& w_;
    int64_t block_;
    bool e8m0_;
    const MatmulOutput& out_;
};

// Calls run(first tile, end tile, group) for all row tiles and panels, in pieces that keep the pool busy: at most
// `row_group` rows, whose inputs stay in a cache. half: see Group.
template <class Run>
void over_tiles_and_panels(const RowTiles& tiles, int64_t row_group, int64_t panels, int64_t half, ThreadPool& pool,
                           Run run) {
    const RowTiles groups(tiles.tiles, row_group / tiles.count(0));  // the first tile is the highest
    const int64_t units = half ? half : panels, each = half ? 2 : 1;
    const int64_t wanted = groups.tiles * units / (pool.threads() * 6);
    const int64_t together = std::clamp<int64_t>(wanted, 1, most_panel_group / each);
    const int64_t unit_groups = (units + together - 1) / together;
    pool.parallel_for(groups.tiles * unit_groups, [&](int64_t i) {
        const int64_t g = i / unit_groups, unit = i % unit_groups * together;
        run(groups.begin(g), groups.begin(g + 1), PanelJob::Group{unit, each * std::min(together, units - unit), half});
    });
}

}  // namespace nibble::cpu
