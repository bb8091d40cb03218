// Rotary embedding of BF16 rows. A team, a few lanes of a warp, processes a head in pieces of 16 bytes. The pairs of
// columns that rotate together are determined once per piece, and no lane needs another lane's columns.
#pragma once

#include "kernels/cuda/primitives/rope.cuh"
#include "kernels/cuda/primitives/rows8.cuh"

namespace nibble::cuda {

constexpr int rope_threads = 256;

// V: columns that a lane moves at once; Times: number of times it processes 2 V columns. A head has at most 2 V Lanes
// Times columns.
template <int V, int Lanes, int Times>
struct RopeTeam {
    static constexpr int v = V, lanes = Lanes, times = Times, in_block = rope_threads / Lanes;

    // Calls each(k, part) for the lane's parts of 2 V columns; k < Times.
    template <class Each>
    static __device__ void visit(int dim, Each each) {
#pragma unroll
        for (int k = 0; k < Times; ++k)
            if (const int part = static_cast<int>(threadIdx.x) % Lanes + k * Lanes; 2 * V * part < dim) each(k, part);
    }
    static __device__ float sum(float x) {
#pragma unroll
        for (int step = Lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
        return x;
    }
};

// Calls launch(team) with the team for heads of `dim` columns, at most 256, of which `turned` rotate.
template <class Launch>
cudaError_t with_rope_team(int dim, int turned, Launch launch) {
    if (dim % 16 || turned % 16) return launch(RopeTeam<1, 16, 8>{});
    if (dim <= 64) return launch(RopeTeam<8, 4, 1>{});
    if (dim <= 128) return launch(RopeTeam<8, 8, 1>{});
    return launch(RopeTeam<8, 16, 1>{});
}

// 2 V columns of a head that rotate together: V from column `low` on, V from `high` on.
template <int V>
struct RopePart {
    int low, high, angle;  // angle: index of the first of V; -1 if no column rotates
    float x[2][V];

    __device__ RopePart(const RotaryArgs& r, int part) {
        const bool turns = 2 * V * part < r.dims, halves = turns && !r.interleaved;
        low = halves ? V * part : 2 * V * part;
        high = halves ? low + r.dims / 2 : low + V;
        angle = turns ? V * part : -1;
    }
    __device__ void load(const uint16_t* head) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint16_t* from = head + (i ? high : low);
            if constexpr (V == 8)
                unpack8(*reinterpret_cast<const uint4*>(from), x[i]);
            else
                x[i][0] = bf16_to_float(*from);
        }
    }
    __device__ void store(uint16_t* head) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            uint16_t* to = head + (i ? high : low);
            if constexpr (V == 8)
                pack8(reinterpret_cast<std::byte*>(to), x[i]);
            else
                *to = bf16_from_float(x[i][0]);
        }
    }
    // Calls each(column, its value, 0 ... 2 V - 1).
    template <class Each>
    __device__ void visit(Each each) {
#pragma unroll
        for (int e = 0; e < 2 * V; ++e) each((e < V ? low : high - V) + e, x[e / V][e % V], e);
    }
    // way: 1, or -1 for the backward pass. The bits of rotated().
    __device__ void turn(const RotaryArgs& r, int64_t token, float way) {
        if (angle < 0) return;
        const int64_t at = int64_t{r.positions[token]} * (r.dims / 2) + angle;
        float cosine[V], sine[V];
        angles(r.cos + at, cosine);
        angles(r.sin + at, sine);
        const auto pair = [&](float& first, float& second, int i) {
            const float a = first, b = second, s = way * sine[i];
            first = fmaf(a, cosine[i], -(b * s));
            second = fmaf(b, cosine[i], a * s);
        };
        if (r.interleaved) {
#pragma unroll
            for (int i = 0; i < V; ++i) pair(x[2 * i / V][2 * i % V], x[(2 * i + 1) / V][(2 * i + 1) % V], i);
        } else {
#pragma unroll
            for (int i = 0; i < V; ++i) pair(x[0][i], x[1][i], i);
        }
    }

private:
    static __device__ void angles(const float* from, float (&to)[V]) {
        if constexpr (V == 8) {
            const float4 a = reinterpret_cast<const float4*>(from)[0], b = reinterpret_cast<const float4*>(from)[1];
            to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w, to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
        } else {
            to[0] = *from;
        }
    }
};

// head_scale() of the team's head. Its order needs 16 lanes, so the heads of a warp are processed two at a time. Called
// by all lanes of the warp.
template <class Team>
__device__ float team_scale(const uint16_t* head, int dim, float eps) {
    const int lane = static_cast<int>(threadIdx.x) % 32, team = lane / Team::lanes;
    float own = 0.0f;
#pragma unroll
    for (int first = 0; first < 32 / Team::lanes; first += 2) {
        const auto address =
            __shfl_sync(0xFFFFFFFFu, reinterpret_cast<unsigned long long>(head), (first + lane / 16) * Team::lanes);
        const auto* x = reinterpret_cast<const uint16_t*>(address);
        const float scale = head_scale([&](int d) { return bf16_to_float(x[d]); }, dim, eps, lane);
        const float of_team = __shfl_sync(0xFFFFFFFFu, scale, team % 2 * 16);
        if (team / 2 == first / 2) own = of_team;
    }
    return own;
}

}  // namespace nibble::cuda
