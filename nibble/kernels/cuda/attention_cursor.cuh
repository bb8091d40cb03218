// What a thread block of the attention kernel has to do, and where the tiles of it lie.
#pragma once

#include "kernels/cuda/attention_run.cuh"

namespace nibble::cuda {

inline constexpr int attention_warps = group_runs;

// Units times KV heads, one in `stride`: without divisions.
struct ItemCursor {
    int unit, head, units, heads, unit_step, head_step;

    __device__ ItemCursor(int first, int step, int unit_count, int kv_heads)
        : unit(first / kv_heads),
          head(first % kv_heads),
          units(unit_count),
          heads(kv_heads),
          unit_step(step / kv_heads),
          head_step(step % kv_heads) {}
    __device__ bool more() const { return unit < units; }
    __device__ ItemCursor next() const {
        ItemCursor n = *this;
        n.unit += unit_step, n.head += head_step;
        if (n.head >= heads) n.head -= heads, ++n.unit;
        return n;
    }
};

__device__ inline const int4* unit_at(const AttentionArgs& args, int unit) {
    return reinterpret_cast<const int4*>(args.work + counts_words + unit * unit_words);
}
__device__ inline AttentionUnit read_unit(const AttentionArgs& args, const ItemCursor& item) {
    if (!item.more()) return {};
    const int4* at = unit_at(args, item.unit);
    const int4 a = __ldg(at), b = __ldg(at + 1), c = __ldg(at + 2);
    return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w};
}

// Tiles [x, y) of the run at `position` that hold one of the positions [first, last].
__device__ inline int2 seen_tiles(int first, int last, int position) {
    const int begin = max(0, (first - position) / kv_tile_tokens);
    const int end = min(run_tiles, (last - position + kv_tile_tokens) / kv_tile_tokens);
    return first >= position + run_tokens || last < position ? int2{0, 0} : int2{begin, end};
}

// The halves of tiles that a warp asks for, group after group, unit after unit: where the next one lies. Units and
// pages are read ahead of their use.
template <class Kv, KvDims Dims>
struct TileCursor {
    static constexpr int k_bytes = k_tile_bytes(Kv::type, Dims), v_bytes = v_tile_bytes(Kv::type, Dims);
    struct Span {  // of a unit, what this needs
        int table = 0, fresh = 0, first_group = 0, groups = 0, first_seen = 0, last_seen = 0;
    };
    struct Run {
        int begin = 0, end = 0, position = 0;
        int fresh = 0;  // the first position that the kernel before may still write
    };
    const AttentionArgs& args;
    int warp, lane;
    ItemCursor item;
    Span unit, ahead;
    int group = -1;
    Run now{}, next{};
    // Lane t: page and place in it of tile t. The page of the next run is on its way, so nothing is made of it yet.
    const uint8_t* place = nullptr;
    int next_page = 0, next_offset = 0;
    int half = 0;  // of now: K tiles, then V tiles
    bool done = false;

    __device__ TileCursor(const AttentionArgs& a, int w, int l, const ItemCursor& first)
        : args(a), warp(w), lane(l), item(first), unit(read(first)), ahead(read(first.next())) {
        find_next();
        go_on();
    }
    __device__ Span read(const ItemCursor& at) const {
        if (!at.more()) return {};
        const int4 a = __ldg(unit_at(args, at.unit));
        const int2 b = __ldg(reinterpret_cast<const int2*>(unit_at(args, at.unit) + 1));
        return {a.x, a.y, a.z, a.w, b.x, b.y};
    }
    // The next run of this warp that has tiles; item.more() is false after the last.
    __device__ void find_next() {
        while (item.more()) {
            if (++group >= unit.groups) {
                item = item.next();
                unit = ahead;
                ahead = read(item.next());
                group = -1;
                continue;
            }
            const int position = (unit.first_group + group) * group_tokens + warp * run_tokens;
            const int2 tiles = seen_tiles(unit.first_seen, unit.last_seen, position);
            next = {tiles.x, tiles.y, position, unit.fresh};
            if (tiles.y > tiles.x) break;
        }
        if (!item.more() || lane < next.begin || lane >= next.end) return;
        const int page_tiles = args.page_tokens / kv_tile_tokens, at = next.position / kv_tile_tokens + lane;
        const int in_row = args.page_shift >= 0 ? at >> args.page_shift : at / page_tiles;
        next_page = __ldg(args.table + unit.table * args.table_pitch + in_row);
        next_offset = (item.head * page_tiles + at - in_row * page_tiles) * (k_bytes + v_bytes);
    }
    __device__ void go_on() {
        if (!item.more()) {
            done = true;
            return;
        }
        now = next;
        place = args.pages + next_page * args.page_stride + next_offset;
        half = 0;
        find_next();
    }
    __device__ int count() const { return now.end - now.begin; }
    __device__ int tile() const { return now.begin + (half < count() ? half : half - count()); }
    // Whether the kernel before this one may still write the tile.
    __device__ bool fresh() const { return now.position + (tile() + 1) * kv_tile_tokens > now.fresh; }
    // The next half and its size; then goes on. All lanes together.
    __device__ const uint8_t* take(int& bytes) {
        const auto found = __shfl_sync(all_lanes, reinterpret_cast<unsigned long long>(place), tile());
        const bool values = half >= count();
        bytes = values ? v_bytes : k_bytes;
        if (++half == 2 * count()) go_on();
        return reinterpret_cast<const uint8_t*>(found) + (values ? k_bytes : 0);
    }
};

}  // namespace nibble::cuda
