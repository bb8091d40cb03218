// One token's products of records. A thread block's work is a list of units; a unit is one chunk of K of 16 rows. Warps
// alternate over units, so their number does not depend on the tiles of a thread block or on the empty chunks of a
// short row. Every warp has a ring buffer of records that continues from one unit to the next.
#pragma once

#include "kernels/cuda/matmul/w4a16/w4a16_experts.cuh"
#include "kernels/cuda/primitives/ptx.cuh"

namespace nibble::cuda::token {

// i / divisor for 0 <= i < 4096, 1 <= divisor <= matmul_chunks.
struct Divisor {
    int divisor;
    uint32_t factor;
    __device__ explicit Divisor(int d) : divisor(d), factor(65536u / static_cast<uint32_t>(d) + 1) {}
    __device__ int quotient(int i) const { return static_cast<int>(static_cast<uint32_t>(i) * factor >> 16); }
};

// The tiles [first, first + count) of thread block `block`: `all` tiles distributed as evenly as whole tiles allow.
struct Share {
    int first, count;
    __device__ Share(int all, int block, int blocks)
        : first(all / blocks * block + min(block, all % blocks)), count(all / blocks + (block < all % blocks)) {}
};

// The address of a chunk of a tile.
struct Unit {
    const uint8_t* from;
    int records;
    uint32_t x;  // byte offset of x in shared memory
};

template <int Slots>
struct Ring {
    static constexpr int bytes = Slots * (w4a16::record_bytes + 8);  // per warp

    uint32_t at, barrier;
    __device__ Ring(uint32_t rings, int warp, int warps)
        : at(rings + warp * Slots * w4a16::record_bytes),
          barrier(rings + warps * Slots * w4a16::record_bytes + warp * Slots * 8) {}
    __device__ void init() const {
        for (int s = 0; s < Slots; ++s) barrier_init(barrier + 8 * s, 1);
        barrier_init_done();
    }
    __device__ void request(const uint8_t* from, uint32_t slot) const {
        barrier_expect(barrier + 8 * slot, w4a16::record_bytes);
        bulk_copy(at + slot * w4a16::record_bytes, from, w4a16::record_bytes, barrier + 8 * slot);
    }
};

// The next record that the warp's first lane requests.
struct Cursor {
    int unit, left = 0;
    const uint8_t* from = nullptr;
    __device__ Cursor(int warp, int warps) : unit(warp - warps) {}

    // Moves on among units before `end`; returns false if there is none.
    template <class Locate>
    __device__ __forceinline__ bool find(int warps, int end, Locate locate) {
        if (left > 0) return true;
        if (unit + warps >= end) return false;
        unit += warps;
        const Unit u = locate(unit);
        from = u.from, left = u.records;
        return true;
    }
    template <int Slots>
    __device__ __forceinline__ void request(const Ring<Slots>& ring, uint32_t slot) {
        ring.request(from, slot);
        from += w4a16::record_bytes, --left;
    }
};

// Computes sums [unit][16] of all units; each is a chain from zero.
template <int Slots, class Locate>
__device__ __forceinline__ void multiply_units(const Ring<Slots>& ring, Cursor& cursor, const uint8_t* shared,
                                               uint32_t base, int warp, int warps, int units, Locate locate,
                                               const ScaleBits& scale_bits, float* sums) {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
    uint32_t at = 0, parity = 0;
#pragma unroll 1
    for (int unit = warp; unit < units; unit += warps) {
        const Unit u = locate(unit);
        const uint8_t* x = shared + u.x + 32 * c;
        float acc[1][4] = {};
#pragma unroll 1
        for (int i = 0; i < u.records; ++i) {
            barrier_wait(ring.barrier + 8 * at, parity);
            const uint8_t* record = shared + (ring.at - base) + at * w4a16::record_bytes;
            const LaneRecord held(record, lane);
            loads_done();
            __syncwarp();
            if (lane == 0 && cursor.find(warps, units, locate)) cursor.request(ring, at);
            if (++at == Slots) at = 0, parity ^= 1;
            experts::multiply_record<1>(acc, held.codes, held.scales, scale_bits, x);
            x += 2 * w4a16::record_cols;
        }
        // Every column has them.
        if (c == 0) sums[16 * unit + g] = acc[0][0], sums[16 * unit + g + 8] = acc[0][2];
    }
}

// Returns the sum of a row of a tile whose `active` first chunks are the units from `first` on; the others are empty.
__device__ inline float row_sum(const float* sums, int first, int active, int row) {
    float v[matmul_chunks];
#pragma unroll
    for (int p = 0; p < matmul_chunks; ++p) v[p] = p < active ? sums[16 * (first + p) + row] : 0.0f;
    return tree_sum(v);
}

}  // namespace nibble::cuda::token
