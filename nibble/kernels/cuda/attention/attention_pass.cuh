// The computation of a thread block of the attention kernel for a pass over 8 * PerWarp tiles: every warp computes
// scores and exponentials of its own tiles, then the values of all tiles for a slice of the dimensions.
#pragma once

#include "kernels/cuda/attention/attention_cursor.cuh"

namespace nibble::cuda {

__device__ inline uint32_t transposed(uint32_t x) {
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// Shared memory. A slot has the keys or values of a pass, tiles in order. A pass has exponentials as operands for the
// values, [two tiles][8 columns][lane][tile]; each warp has the maxima of its scores and, for each of its eight classes
// of positions, the sums of its exponentials.
template <class Kv, KvDims Dims, int Columns>
struct AttentionLayout {
    static constexpr int columns = Columns, tiles = Columns > 8 ? Columns / 8 : 1;
    static constexpr int threads = 32 * (attention_warps + asking_warps);
    static constexpr int k_bytes = k_tile_bytes(Kv::type, Dims), v_bytes = v_tile_bytes(Kv::type, Dims);
    static constexpr int half_bytes = k_bytes > v_bytes ? k_bytes : v_bytes;
    // Bytes of a warp's tiles in a slot. With half of it, and passes half as long: BF16 65.5 us instead of 62.0 at 16 x
    // 4096, E4M3 34.4 instead of 33.2.
    static constexpr int warp_bytes = 8192;
    static constexpr int most_bytes = 227 * 1024;
    static constexpr int per_warp = 4 * half_bytes <= warp_bytes ? 4 : 2 * half_bytes <= warp_bytes ? 2 : 1;
    static constexpr int pass_tiles = attention_warps * per_warp, pass_tokens = pass_tiles * kv_tile_tokens;
    static constexpr int slot_bytes = pass_tiles * half_bytes;
    static constexpr int exponentials_bytes = pass_tiles * tiles * 256;
    static constexpr int classes_bytes = attention_warps * 8 * 8 * tiles * 4;
    static constexpr int tops_bytes = attention_warps * 8 * tiles * 4;
    static constexpr int room = most_bytes - exponentials_bytes - classes_bytes - tops_bytes - 16;
    static constexpr int slots = room / (slot_bytes + 16) < 8 ? room / (slot_bytes + 16) : 8;
    static constexpr int exponentials_at = slots * slot_bytes;
    static constexpr int classes_at = exponentials_at + exponentials_bytes;
    static constexpr int tops_at = classes_at + classes_bytes;
    static constexpr int last_at = tops_at + tops_bytes;  // place of the flag "this unit was the last of its columns"
    static constexpr int barriers_at = last_at + 16;
    static constexpr int bytes = barriers_at + slots * 16;  // barriers: full, empty
    static_assert(slots >= (half_bytes > 8192 ? 1 : 3) && bytes <= most_bytes && group_tokens % pass_tokens == 0);

    // A warp's part of the values in slices of 16 dimensions. Warps from `busy` on have none.
    static constexpr int all_slices = Dims.v / 16;
    static constexpr int slices = all_slices > attention_warps ? all_slices / attention_warps : 1;
    static constexpr int busy = all_slices / slices;
};

// A lane has columns 2 c and 2 c + 1 of each eight.
template <class L, class Kv, KvDims Dims>
struct AttentionSums {
    static constexpr int tiles = L::tiles, runs = L::pass_tokens / run_tokens, slices = L::slices;
    struct State {  // Softmax state of a group, then of all groups
        float top[tiles][2], sum[tiles][2], o[slices][tiles][4];

        __device__ void clear() {
#pragma unroll
            for (int n = 0; n < tiles; ++n) {
#pragma unroll
                for (int h = 0; h < 2; ++h) top[n][h] = -INFINITY, sum[n][h] = 0.0f;
#pragma unroll
                for (int s = 0; s < slices; ++s)
#pragma unroll
                    for (float& v : o[s][n]) v = 0.0f;
            }
        }
        __device__ void add(const State& group) {
#pragma unroll
            for (int n = 0; n < tiles; ++n)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const Weights w(top[n][h], group.top[n][h]);
                    sum[n][h] = fmaf(w.other, group.sum[n][h], w.own * sum[n][h]);
#pragma unroll
                    for (int s = 0; s < slices; ++s)
#pragma unroll
                        for (int e = h; e < 4; e += 2) o[s][n][e] = fmaf(w.other, group.o[s][n][e], w.own * o[s][n][e]);
                }
        }
    };
    uint8_t* memory;  // shared memory of the thread block
    int warp, lane;
    float scale;                     // factor of scores, includes log2(e)
    State group;                     // sum: of the class lane / 4 until end_group()
    float t[L::per_warp][tiles][4];  // scores, then exponentials
    float factors[runs][tiles][2];   // rescale the earlier sums when a run raises the maximum

    __device__ float* classes(int of_warp) const {
        return reinterpret_cast<float*>(memory + L::classes_at) + (of_warp * 8 + lane / 4) * 8 * tiles + lane % 4 * 2;
    }
    __device__ float* tops(int of_warp) const {
        return reinterpret_cast<float*>(memory + L::tops_at) + of_warp * 8 * tiles + lane % 4 * 2;
    }
    // Address of an exponential; with two tiles per warp, tiles are paired.
    __device__ uint2* exponential(int tile, int n) const {
        return reinterpret_cast<uint2*>(memory + L::exponentials_at) + ((tile / 2 * tiles + n) * 32 + lane) * 2 +
               tile % 2;
    }

    __device__ void score(const uint8_t* slot, const uint32_t (&q)[tiles][Dims.k / 8]) {
#pragma unroll
        for (auto& tile : t)
#pragma unroll
            for (auto& four : tile)
#pragma unroll
                for (float& v : four) v = 0.0f;
        Kv::template scores<Dims.k, tiles, L::per_warp>(t, slot + warp * L::per_warp * L::half_bytes, L::half_bytes, q,
                                                        lane);
    }
    // Replaces scores s by tanh(s * factor).
    __device__ void cap(float factor) {
#pragma unroll
        for (auto& tile : t)
#pragma unroll
            for (auto& four : tile)
#pragma unroll
                for (float& v : four) v = tanh_of(v * factor);
    }
    // position[column]: the query's position minus that of the warp's first tile; sees[column]: see keys_seen().
    __device__ void hide(const int (&position)[tiles][2], const int (&sees)[tiles][2]) {
        const int token = k_token(lane / 4);
#pragma unroll
        for (int i = 0; i < L::per_warp; ++i)
#pragma unroll
            for (int n = 0; n < tiles; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int distance = position[n][e % 2] - token - (i * kv_tile_tokens + k_token(e / 2 * 8));
                    if (distance < 0 || distance >= sees[n][e % 2]) t[i][n][e] = -INFINITY;
                }
    }
    __device__ void leave_tops() const {
#pragma unroll
        for (int n = 0; n < tiles; ++n) {
            float most[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                most[h] = fmaxf(t[0][n][h], t[0][n][h + 2]);
#pragma unroll
                for (int i = 1; i < L::per_warp; ++i) most[h] = fmaxf(most[h], fmaxf(t[i][n][h], t[i][n][h + 2]));
#pragma unroll
                for (int step = 4; step < 32; step *= 2)
                    most[h] = fmaxf(most[h], __shfl_xor_sync(all_lanes, most[h], step));
            }
            if (lane < 4) *reinterpret_cast<float2*>(tops(warp) + 8 * n) = {most[0], most[1]};
        }
    }
    // Called after all maxima are known: computes references of the pass's runs and exponentials of the warp's tiles.
    __device__ void exponentials() {
        constexpr int per_run = attention_warps / runs;
        float own[tiles][2];
#pragma unroll
        for (int n = 0; n < tiles; ++n)
#pragma unroll
            for (int r = 0; r < runs; ++r) {
                float2 most = *reinterpret_cast<const float2*>(tops(r * per_run) + 8 * n);
#pragma unroll
                for (int k = 1; k < per_run; ++k) {
                    const float2 other = *reinterpret_cast<const float2*>(tops(r * per_run + k) + 8 * n);
                    most = {fmaxf(most.x, other.x), fmaxf(most.y, other.y)};
                }
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float now = reference_of(group.top[n][h], h ? most.y : most.x, scale);
                    factors[r][n][h] = rescaling(group.top[n][h], now);
                    group.top[n][h] = now;
                    if (r == 0 || warp / per_run == r) own[n][h] = now;
                }
            }
        uint32_t operand[L::per_warp][tiles][2];
#pragma unroll
        for (int n = 0; n < tiles; ++n) {
            float total[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float base = own[n][h] == -INFINITY ? 0.0f : own[n][h];
                float of_tile[L::per_warp];
#pragma unroll
                for (int i = 0; i < L::per_warp; ++i) {
                    t[i][n][h] = exp2_of(fmaf(t[i][n][h], scale, -base));
                    t[i][n][h + 2] = exp2_of(fmaf(t[i][n][h + 2], scale, -base));
                    of_tile[i] = t[i][n][h] + t[i][n][h + 2];
                }
                if constexpr (L::per_warp == 4)
                    total[h] = (of_tile[0] + of_tile[1]) + (of_tile[2] + of_tile[3]);
                else if constexpr (L::per_warp == 2)
                    total[h] = of_tile[0] + of_tile[1];
                else
                    total[h] = of_tile[0];
            }
            *reinterpret_cast<float2*>(classes(warp) + 8 * n) = {total[0], total[1]};
#pragma unroll
            for (int i = 0; i < L::per_warp; ++i)
#pragma unroll
                for (int h = 0; h < 2; ++h) operand[i][n][h] = transposed(Kv::pack(t[i][n][2 * h], t[i][n][2 * h + 1]));
            if constexpr (L::per_warp > 1) {
#pragma unroll
                for (int i = 0; i < L::per_warp; i += 2)
                    *reinterpret_cast<uint4*>(exponential(warp * L::per_warp + i, n)) = {
                        operand[i][n][0], operand[i][n][1], operand[i + 1][n][0], operand[i + 1][n][1]};
            } else {
                *exponential(warp, n) = {operand[0][n][0], operand[0][n][1]};
            }
        }
    }
    // Returns the sums of half a run for a column.
    __device__ float2 class_sum(int half, int n) const {
        constexpr int per_half = attention_warps / runs / 2;
        const auto at = [&](int k) { return *reinterpret_cast<const float2*>(classes(half * per_half + k) + 8 * n); };
        float2 x = at(0);
        if constexpr (per_half >= 2) {
            const float2 y = at(1);
            x = {x.x + y.x, x.y + y.y};
        }
        if constexpr (per_half == 4) {
            const float2 y = at(2), z = at(3), u{y.x + z.x, y.y + z.y};
            x = {x.x + u.x, x.y + u.y};
        }
        return x;
    }
    // Called after all exponentials: adds the values of the pass to the group. Tiles [begin, end) have visible
    // positions, the last one `exist` of them; the others may have any contents.
    __device__ void add_values(const uint8_t* slot, int begin, int end, int exist) {
#pragma unroll
        for (int r = 0; r < runs; ++r)
#pragma unroll
            for (int n = 0; n < tiles; ++n) {
                const float2 a = class_sum(2 * r, n), b = class_sum(2 * r + 1, n);
                group.sum[n][0] = fmaf(group.sum[n][0], factors[r][n][0], a.x) + b.x;
                group.sum[n][1] = fmaf(group.sum[n][1], factors[r][n][1], a.y) + b.y;
            }
        if (warp >= L::busy) return;
        constexpr int run_tiles = run_tokens / kv_tile_tokens;
        const int first = warp * slices;
        const bool all = begin == 0 && end == L::pass_tiles && exist >= kv_tile_tokens;
#pragma unroll
        for (int r = 0; r < runs; ++r) {
#pragma unroll
            for (int n = 0; n < tiles; ++n)
#pragma unroll
                for (int s = 0; s < slices; ++s)
#pragma unroll
                    for (int e = 0; e < 4; ++e) group.o[s][n][e] *= factors[r][n][e % 2];
            if (all) {
#pragma unroll
                for (int i = r * run_tiles; i < (r + 1) * run_tiles; i += 2) {
                    uint2 p[2][tiles];
#pragma unroll
                    for (int n = 0; n < tiles; ++n) {
                        const uint4 both = *reinterpret_cast<const uint4*>(exponential(i, n));
                        p[0][n] = {both.x, both.y}, p[1][n] = {both.z, both.w};
                    }
#pragma unroll
                    for (int k = 0; k < 2; ++k) {
                        uint4 w[slices];
                        Kv::load_values(w, slot + (i + k) * L::half_bytes, first, lane);
                        Kv::values(group.o, w, p[k]);
                    }
                }
            } else {
#pragma unroll 1
                for (int i = max(begin, r * run_tiles); i < min(end, (r + 1) * run_tiles); ++i) {
                    uint2 p[tiles];
#pragma unroll
                    for (int n = 0; n < tiles; ++n) p[n] = *exponential(i, n);
                    uint4 w[slices];
                    Kv::load_values(w, slot + i * L::half_bytes, first, lane);
                    if (i + 1 == end) {
#pragma unroll
                        for (uint4& each : w) each = Kv::masked(each, exist - lane % 4 * 4);
                    }
                    Kv::values(group.o, w, p);
                }
            }
        }
    }
    // Sums the group's exponentials over all classes.
    __device__ void end_group() {
#pragma unroll
        for (int n = 0; n < tiles; ++n)
#pragma unroll
            for (int h = 0; h < 2; ++h)
#pragma unroll
                for (int step = 4; step < 32; step *= 2)
                    group.sum[n][h] += __shfl_xor_sync(all_lanes, group.sum[n][h], step);
    }
};

}  // namespace nibble::cuda
