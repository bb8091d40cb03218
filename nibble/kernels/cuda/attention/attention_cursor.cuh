// The work items of a thread block of the attention kernel, and the addresses of their tiles.
#pragma once

#include "kernels/cuda/attention/attention_order.cuh"
#include "kernels/cuda/primitives/ptx.cuh"

namespace nibble::cuda {

inline constexpr int attention_warps = 8;  // warps that compute
inline constexpr int asking_warps = 4;     // a warpgroup that loads keys and values

// Iterates over units times KV heads with step `stride`, without divisions.
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

// The tiles [first, last] of a sequence that a unit's columns see.
struct UnitTiles {
    int first = 0, last = -1;
    __device__ UnitTiles() = default;
    __device__ UnitTiles(int first_group, int groups, int first_seen, int last_seen)
        : first(max(first_seen, first_group * group_tokens) / kv_tile_tokens),
          last(min(last_seen, (first_group + groups) * group_tokens - 1) / kv_tile_tokens) {}
};

// The key tiles and then the value tiles that a loading warp handles: `Own` tiles of every pass over asking_warps * Own
// tiles, pass after pass, unit after unit. Lane i has tile i. Units and pages are read ahead of their use.
template <class Kv, KvDims Dims, int Own>
struct TileCursor {
    static constexpr int k_bytes = k_tile_bytes(Kv::type, Dims), v_bytes = v_tile_bytes(Kv::type, Dims);
    static constexpr int pass_tiles = asking_warps * Own;
    struct Span {  // the part of a unit used here
        int table = 0, fresh = 0;
        UnitTiles tiles;
    };
    struct Pass {
        int begin = 0, end = 0;  // existing tiles of the warp
        bool fresh = false;      // the previous kernel may still write one of them
    };
    const AttentionArgs& args;
    int own, lane;  // own: the warp's first tile in a pass
    ItemCursor item;
    Span unit, ahead;
    int pass_at = -1;  // pass of `next`
    Pass now, next;
    const uint8_t* place = nullptr;
    // For the next pass. The page is still being loaded, so its address is not computed yet.
    int next_page = 0, next_offset = 0;
    bool values = false, done = false;

    __device__ TileCursor(const AttentionArgs& a, int warp, int l, const ItemCursor& first)
        : args(a), own(warp * Own), lane(l), item(first), unit(read(first)), ahead(read(first.next())) {
        pass_at = unit.tiles.first / pass_tiles - 1;
        find_next();
        go_on();
    }
    __device__ Span read(const ItemCursor& at) const {
        if (!at.more()) return {};
        const int4 a = __ldg(unit_at(args, at.unit));
        const int2 b = __ldg(reinterpret_cast<const int2*>(unit_at(args, at.unit) + 1));
        return {a.x, a.y, UnitTiles(a.z, a.w, b.x, b.y)};
    }
    // item.more() is false after the last item.
    __device__ void find_next() {
        if (++pass_at > unit.tiles.last / pass_tiles) {
            item = item.next();
            unit = ahead;
            ahead = read(item.next());
            pass_at = unit.tiles.first / pass_tiles;
        }
        if (!item.more()) return;
        const int tile = pass_at * pass_tiles + own;
        next.begin = max(0, unit.tiles.first - tile), next.end = min(Own, unit.tiles.last + 1 - tile);
        next.fresh = (tile + next.end) * kv_tile_tokens > unit.fresh;
        if (lane < next.begin || lane >= next.end) return;
        const int page_tiles = args.page_tokens / kv_tile_tokens, at = tile + lane;
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
        values = false;
        find_next();
    }
    // Loads the warp's next keys or values to tiles at `to` and every `pitch` bytes after it. Every warp arrives at
    // `barrier`. Called by all lanes.
    __device__ void ask(uint32_t to, int pitch, uint32_t barrier) {
        const int bytes = values ? v_bytes : k_bytes;
        if (lane == 0) barrier_expect(barrier, max(0, now.end - now.begin) * bytes);
        __syncwarp();
        if (lane >= now.begin && lane < now.end)
            bulk_copy(to + lane * pitch, place + (values ? k_bytes : 0), bytes, barrier);
        if (values)
            go_on();
        else
            values = true;
    }
};

}  // namespace nibble::cuda
