// NVFP4 with static scales chosen by squared error: multipliers of the block maximum, or the 126 E4M3 values.
//
// Two multipliers (four over six) are ranked by exact integer sums, see two_candidates.cuh.
//
// Otherwise there are two steps. Every thread ranks its block's candidates with a cheap loss (six fused operations per
// element) whose difference from the defined loss is bounded; if the bounds leave one possible winner, it wins. For the
// remaining blocks (near ties, one block in thousands, and scales outside the safe range) the whole warp computes the
// losses with the functions of formats/, sixteen lanes per candidate. The winner is therefore the same as in
// kernels/ref.
//
// The sweep does not try all 126. Candidate values double every eight, so block scales do, and with s unclipped (amax
// <= 6 s) loss(2s) >= loss(s) holds in FP32 and not only in real numbers: the grid of 2s is part of the grid of s;
// where both pick a neighbour of the same midpoint they pick the same one (quotients are exactly halved, ties go to the
// same value); where only s has the nearer point, 1.5 s being the only one that rounds, the half ulp that keeps a
// quotient off the midpoint covers that rounding; and FP32 addition is monotone. Ties go to the smaller candidate, as
// in the full sweep. So one octave of unclipped candidates is enough, and of the clipped ones those whose error at the
// maximum alone, (amax - 6 s)^2, does not exceed the best loss.
#include "kernels/cuda/quantize/chunk_kernel.cuh"
#include "kernels/cuda/quantize/nvfp4_scale.cuh"
#include "kernels/cuda/quantize/quantize_launch.h"
#include "kernels/cuda/quantize/two_candidates.cuh"

#include <cuda_runtime.h>

namespace nibble::cuda {
namespace {

constexpr int candidates = e4m3_max_code;  // 1 ... 126
constexpr int search_min_blocks = 8;

struct Magnitudes {
    float x[16];

    template <class In>
    __device__ explicit Magnitudes(const Chunk<In>& w) {
#pragma unroll
        for (int i = 0; i < 16; ++i) x[i] = w.magnitude(i);
    }
};

// ---- Ranking ------------------------------------------------------------------------------------------------------

// Squared error in units of the scale squared, r = 1 / scale. A float c in [2^22, 2^23) times the binade of q is a
// multiple of the grid's step there, so c - q is c minus q rounded to the grid (in either direction for ties, whose
// errors are equal). If c - q falls out of c's binade, q is slightly above a power of two and any step finds it; c + q
// would leave the grid. Difference from the defined loss: q is off by q * 2^-24, and products and differences there by
// as much again, so by Cauchy's inequality the sums differ by less than 1.4e-5 * sqrt(L) + 2e-6 * L, which is less than
// rough_bound * (1 + L).
constexpr float rough_bound = 1e-5f;

template <bool Clip>
__device__ float rough_loss(const Magnitudes& w, float r) {
    constexpr float magic = 4194304.0f;  // 2^22
    const float r_magic = r * magic;
    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const float c = fmaxf(w.x[i] * r_magic, magic + 16.0f);
        float minus_value = fmaf(-w.x[i], r, c) - c;
        if (Clip) minus_value = fmaxf(minus_value, -6.0f);
        const float e = fmaf(w.x[i], r, minus_value);
        sum[i % 2] = fmaf(e, e, sum[i % 2]);
    }
    return sum[0] + sum[1];
}

// The winning candidate, as far as the bounds determine it.
struct Ranking {
    float least_upper = INFINITY, least_lower = INFINITY, second_lower = INFINITY;
    int best = 0;

    // `loss` is in units of scale^2.
    __device__ void add(int candidate, float loss, float scale) {
        const float unit = scale * scale;
        const float lower = unit * fmaf(loss, 1.0f - rough_bound, -rough_bound);
        const float upper = unit * fmaf(loss, 1.0f + rough_bound, rough_bound);
        if (lower < least_lower) {
            second_lower = least_lower;
            least_lower = lower;
            best = candidate;
        } else {
            second_lower = fminf(second_lower, lower);
        }
        least_upper = fminf(least_upper, upper);
    }
    __device__ bool certain() const { return second_lower > least_upper; }
};

// One element's term of nvfp4_fake_loss, summed by sum16's tree over sixteen adjacent lanes.
__device__ float lane_loss(float x, float scale) {
    const float e = x - nvfp4_fake_value(x, scale);
    float sum = e * e;
#pragma unroll
    for (int half = 8; half > 0; half /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, half);
    return sum;
}

// Calls visit(lane) with the whole warp for every lane that requests it.
template <class Visit>
__device__ void for_each_asking(bool asks, Visit visit) {
    for (unsigned todo = __ballot_sync(0xFFFFFFFFu, asks); todo; todo &= todo - 1)
        visit(__ffs(static_cast<int>(todo)) - 1);
}

// Returns element lane % 16 of the chunk of lane `owner`.
template <class In>
__device__ float lane_element(const uint8_t* at, int owner) {
    const auto bits = __shfl_sync(0xFFFFFFFFu, reinterpret_cast<unsigned long long>(at), owner);
    return element_at<In>(reinterpret_cast<const uint8_t*>(bits), threadIdx.x % 16);
}

// ---- Multipliers --------------------------------------------------------------------------------------------------

struct SearchState {
    StaticScale store;
    FakeScale fake;
    bool safe;
    int raised;
};

// Profile: args.arithmetic as a compile-time constant.
template <class In, Arithmetic Profile>
struct Nvfp4Multipliers {
    using Input = In;
    using State = SearchState;
    // Limited by instructions, not by memory: fewer loads in flight allow more warps (4 chunks per thread: 47 % of copy
    // speed, 2: 51 %).
    static constexpr int per_thread = usual_per_thread<In> / 2, min_blocks = search_min_blocks;
    static constexpr bool shared_state = true;

    Nvfp4Args args;
    ScaleStore store;
    Multipliers multipliers;

    __device__ State begin(bool first) const {
        State s{StaticScale(args), nvfp4_fake_scale(*args.search_amax, args.normalization, args.arithmetic), false, 0};
        s.safe = safe_factor(s.fake.down);
        if (first && args.tensor_scale) *args.tensor_scale = s.store.tensor_scale;
        return s;
    }

    // nvfp4_fake_block_scale; a maximum that overflows saturates in both. Precondition: finite factors (State::safe).
    __device__ float block_scale(const State& s, float amax, float m) const {
        return e4m3_value(e4m3_code(div_const(amax * m, e2m1_max, Profile) * s.fake.up)) * s.fake.down;
    }

    // Returns the winning multiplier, or 0 if the bounds do not decide.
    __device__ float rank(const State& s, const Magnitudes& x, float amax) const {
        Ranking ranking;
        bool zero = false;
#pragma unroll 1
        for (int c = 0; c < multipliers.count; ++c) {
            const float scale = block_scale(s, amax, multipliers.value[c]);
            const Divisor by(scale);
            zero = zero || scale == 0.0f;
            ranking.add(c, amax <= 6.5f * scale ? rough_loss<false>(x, by.r) : rough_loss<true>(x, by.r), scale);
        }
        return zero || !ranking.certain() ? 0.0f : multipliers.value[ranking.best];
    }

    // The same with exact losses by a whole warp: `x` is element lane % 16 of the block.
    __device__ float decide(const State& s, float x, float amax) const {
        int best = 0;
        float least = 0.0f;
        for (int c = 0; c < multipliers.count; c += 2) {
            const int mine = min(c + static_cast<int>(threadIdx.x % 32 / 16), multipliers.count - 1);
            const float loss =
                lane_loss(x, nvfp4_fake_block_scale(amax * multipliers.value[mine], s.fake, args.arithmetic));
            const float first = __shfl_sync(0xFFFFFFFFu, loss, 0), second = __shfl_sync(0xFFFFFFFFu, loss, 16);
            if (c == 0 || first < least) best = c, least = first;
            if (c + 1 < multipliers.count && second < least) best = c + 1, least = second;
        }
        return multipliers.value[best];
    }

    __device__ void chunk(State& s, Chunk<In>& w, const uint8_t* at, int64_t index, bool valid) const {
        const float amax = w.amax();
        const Magnitudes x(w);
        float m = multipliers.value[0];  // for a zero block
        if (amax != 0.0f) m = s.safe && amax >= tiny_amax ? rank(s, x, amax) : 0.0f;
        for_each_asking(m == 0.0f, [&](int lane) {
            const float decided = decide(s, lane_element<In>(at, lane), __shfl_sync(0xFFFFFFFFu, amax, lane));
            if (threadIdx.x % 32 == lane) m = decided;
        });
        if (!valid) return;
        s.raised += m > 1.0f;
        StaticScale scales = s.store;
        scales.arithmetic = Profile;
        const Nvfp4Block block = nvfp4_block(scales, w, at, amax, amax * m);
        __stcs(reinterpret_cast<uint2*>(args.codes) + index, block.codes);
        store(index, block.scale);
    }

    __device__ void end(const State& s) const {
        if (!args.raised) return;
        const int raised = __reduce_add_sync(0xFFFFFFFFu, s.raised);
        if (threadIdx.x % 32 == 0 && raised) atomicAdd(args.raised, static_cast<unsigned long long>(raised));
    }
};

// ---- Two multipliers ----------------------------------------------------------------------------------------------

// Finishes a block that the sums below cannot finish: its multiplier is known, the rest is computed again. Small, so
// that the code around it keeps its registers.
__device__ __noinline__ Nvfp4Block plain_block(const StaticScale& scales, const uint8_t* at, float amax,
                                               float scale_amax) {
    Chunk<Bf16> w;
    w.load(at);
    return nvfp4_block(scales, w, at, amax, scale_amax);
}

template <Arithmetic Profile>
using TwoMultipliers = Nvfp4Multipliers<Bf16, Profile>;

// Called by all lanes of a warp together.
template <Arithmetic Profile>
__device__ void chunk_of_two(const TwoMultipliers<Profile>& op, SearchState& s, const CandidateTable& table,
                             const Chunk<Bf16>& w, const uint8_t* at, int64_t index, bool valid) {
    const float amax = w.amax();
    int choice = 0;
    Candidate c[2];
    uint32_t code[2];
    if (amax >= tiny_amax) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
            code[i] = e4m3_code(div_const(amax * op.multipliers.value[i], e2m1_max, Profile) * s.fake.up);
        const float scale[2] = {table.scale[code[0]], table.scale[code[1]]};
        if (amax <= 6.5f * fminf(scale[0], scale[1])) {  // clipping is rare here
            const FixedBlock fixed(w, amax);
#pragma unroll
            for (int i = 0; i < 2; ++i) c[i] = candidate(w, fixed, scale[i], table.inverse[code[i]]);
            choice = compare(c[0], c[1], scale[0], scale[1]);
        }
    }
    float m = choice > 0 ? op.multipliers.value[1] : op.multipliers.value[0];  // a zero block uses the first
    for_each_asking(choice == 0 && amax != 0.0f, [&](int lane) {
        const float decided = op.decide(s, lane_element<Bf16>(at, lane), __shfl_sync(0xFFFFFFFFu, amax, lane));
        if (threadIdx.x % 32 == lane) m = decided;
    });
    if (!valid) return;
    s.raised += m > 1.0f;
    StaticScale scales = s.store;
    scales.arithmetic = Profile;
    const uint32_t stored = choice ? scales.fast(amax * m) : 0;
    Nvfp4Block block;
    const bool second = choice > 0;
    if (choice && stored == (second ? code[1] : code[0])) {
        block = {{(second ? c[1].half[0] : c[0].half[0]) | w.negative_nibbles(0),
                  (second ? c[1].half[1] : c[0].half[1]) | w.negative_nibbles(1)},
                 static_cast<uint8_t>(stored)};
    } else {
        block = plain_block(scales, at, amax, amax * m);
    }
    __stcs(reinterpret_cast<uint2*>(op.args.codes) + index, block.codes);
    op.store(index, block.scale);
}

template <Arithmetic Profile>
__global__ void __launch_bounds__(chunk_threads, search_min_blocks)
    search_two_multipliers_kernel(const uint8_t* __restrict__ data, int64_t chunks, int rounds,
                                  const __grid_constant__ TwoMultipliers<Profile> op) {
    __shared__ CandidateTable table;
    __shared__ alignas(16) unsigned char shared[sizeof(SearchState)];
    constexpr int64_t round_bytes = 2 * chunk_threads * Chunk<Bf16>::bytes;
    int64_t first = int64_t{blockIdx.x} * rounds * (2 * chunk_threads) + threadIdx.x;
    const uint8_t* at = data + first * Chunk<Bf16>::bytes;
    Chunk<Bf16> w[2];
    const auto load = [&] {
#pragma unroll
        for (int k = 0; k < 2; ++k)
            if (first + k * chunk_threads < chunks)
                w[k].load(at + k * chunk_threads * Chunk<Bf16>::bytes);
            else
                w[k].clear();
    };
    load();
    if (threadIdx.x == 0) *reinterpret_cast<SearchState*>(shared) = op.begin(first == 0);
    __syncthreads();
    SearchState state = *reinterpret_cast<const SearchState*>(shared);
    const bool exact = make_candidate_table(table, state.fake.down, state.store);
#pragma unroll 1
    for (int round = 0;;) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            const int64_t index = first + k * chunk_threads;
            const uint8_t* chunk_at = at + k * chunk_threads * Chunk<Bf16>::bytes;
            if (exact)
                chunk_of_two<Profile>(op, state, table, w[k], chunk_at, index, index < chunks);
            else
                op.chunk(state, w[k], chunk_at, index, index < chunks);
        }
        first += 2 * chunk_threads;
        at += round_bytes;
        if (++round == rounds || first - threadIdx.x >= chunks) break;
        load();
    }
    op.end(state);
}

template <Arithmetic Profile>
cudaError_t two_multipliers(const uint8_t* data, int64_t chunks, const TwoMultipliers<Profile>& op,
                            cudaStream_t stream) {
    if (chunks == 0) return cudaSuccess;
    // Long blocks reuse a table more; short ones leave no multiprocessor idle at the end.
    const int rounds = chunks >= int64_t{1} << 23 ? 8 : 4;
    const int64_t per_block = int64_t{2} * rounds * chunk_threads;
    const auto blocks = static_cast<unsigned>((chunks + per_block - 1) / per_block);
    search_two_multipliers_kernel<Profile><<<blocks, chunk_threads, 0, stream>>>(data, chunks, rounds, op);
    return cudaGetLastError();
}

// ---- The 126 candidates -------------------------------------------------------------------------------------------

constexpr int sweep_threads = 128, sweep_chunks = 8;  // per thread, one after the other

struct SweepTable {
    float scale[candidates + 1];  // by candidate code; [0] is unused
    float inverse[candidates + 1];
};

// Candidates first ... last do not clip; those above `last` lose to their halves. Empty if all clip.
struct Octave {
    int first, last;
};

__device__ Octave unclipped_octave(float amax, const SweepTable& table) {
    const int nearest = e4m3_code(amax * table.inverse[8] * (0.015625f / 6.0f));  // [8] is 2^-6
    int first = max(nearest - 1, 1);
    while (first <= candidates && 6.0f * table.scale[first] < amax) ++first;
    // Below 16 only every other candidate's half is a candidate too; the others are tried as well.
    return {first, min(max(first + 7, 15), candidates)};
}

// Returns the winner, or 0 if the bounds do not decide.
__device__ uint8_t pruned_sweep(const Magnitudes& x, float amax, const Octave& octave, const SweepTable& table) {
    Ranking ranking;
#pragma unroll 1
    for (int v = octave.first; v <= octave.last; ++v)
        ranking.add(v, rough_loss<false>(x, table.inverse[v]), table.scale[v]);
#pragma unroll 1
    for (int v = octave.first - 1; v >= 1; --v) {
        const float scale = table.scale[v], clipped = amax - 6.0f * scale;
        if (clipped * clipped > ranking.least_upper) break;
        ranking.add(v, rough_loss<true>(x, table.inverse[v]), scale);
    }
    return ranking.certain() ? static_cast<uint8_t>(ranking.best) : 0;
}

// Returns the winner by exact losses with a whole warp: `x` is element lane % 16 of the block. Without `prune`, tries
// all candidates.
__device__ uint8_t close_sweep(float x, float amax, bool prune, const SweepTable& table) {
    const Octave octave = prune ? unclipped_octave(amax, table) : Octave{1, candidates};
    int best = 0;
    float least = 0.0f;
    const auto pair = [&](int first, int second) {  // `second` may repeat `first`
        const float loss = lane_loss(x, table.scale[threadIdx.x % 32 < 16 ? first : second]);
        const float a = __shfl_sync(0xFFFFFFFFu, loss, 0), b = __shfl_sync(0xFFFFFFFFu, loss, 16);
        if (!best || a < least || (a == least && first < best)) best = first, least = a;
        if (b < least || (b == least && second < best)) best = second, least = b;
    };
    for (int v = octave.first; v <= octave.last; v += 2) pair(v, min(v + 1, octave.last));
    for (int v = octave.first - 1; v >= 1; v -= 2) {
        const float clipped = amax - 6.0f * table.scale[v];
        if (best && clipped * clipped > least) break;
        pair(v, max(v - 1, 1));
    }
    return static_cast<uint8_t>(best);
}

template <class In>
__global__ void __launch_bounds__(sweep_threads, search_min_blocks)
    search_sweep_kernel(const uint8_t* __restrict__ data, int64_t chunks, Nvfp4Args args, ScaleStore store) {
    __shared__ SweepTable table;
    const float g = *args.search_amax;
    const FakeScale fake = nvfp4_fake_scale(g, args.normalization, args.arithmetic);
    const int v = static_cast<int>(threadIdx.x);
    if (v >= 1 && v <= candidates) {
        const Divisor by(nvfp4_sweep_scale(static_cast<uint8_t>(v), g, fake, args.arithmetic));
        table.scale[v] = by.d;
        table.inverse[v] = by.r;
    }
    __syncthreads();
    // Preconditions of pruning: safe, ascending, doubling.
    bool regular = true;
    if (v >= 1 && v <= candidates) {
        regular = safe_divisor(table.scale[v]) && (v == 1 || table.scale[v] > table.scale[v - 1]);
        if (v < 16 && v % 2 == 0) regular = regular && table.scale[v] == 2.0f * table.scale[v / 2];
        if (v >= 16) regular = regular && table.scale[v] == 2.0f * table.scale[v - 8];
    }
    regular = __syncthreads_and(regular);

    const StaticScale scales(args);
    const int64_t block_first = int64_t{blockIdx.x} * (sweep_threads * sweep_chunks) + threadIdx.x;
    if (block_first == 0 && args.tensor_scale) *args.tensor_scale = scales.tensor_scale;
#pragma unroll 1
    for (int k = 0; k < sweep_chunks; ++k) {
        const int64_t index = block_first + k * sweep_threads;
        const bool valid = index < chunks;
        const uint8_t* at = data + index * Chunk<In>::bytes;
        Chunk<In> w;
        if (valid)
            w.load(at);
        else
            w.clear();
        const float amax = w.amax();
        uint8_t best = 1;  // for a zero block
        if (amax != 0.0f)
            best = regular && amax >= tiny_amax
                       ? pruned_sweep(Magnitudes(w), amax, unclipped_octave(amax, table), table)
                       : 0;
        for_each_asking(best == 0, [&](int lane) {
            const float x = lane_element<In>(at, lane), block_amax = __shfl_sync(0xFFFFFFFFu, amax, lane);
            const uint8_t decided = close_sweep(x, block_amax, regular && block_amax >= tiny_amax, table);
            if (threadIdx.x % 32 == lane) best = decided;
        });
        if (!valid) continue;
        const Nvfp4Block block = nvfp4_block(scales, w, at, amax, nvfp4_sweep_amax(best, g, args.arithmetic));
        __stcs(reinterpret_cast<uint2*>(args.codes) + index, block.codes);
        store(index, block.scale);
    }
}

template <class In>
cudaError_t sweep(const Input& in, const Nvfp4Args& args, const ScaleStore& store, cudaStream_t stream) {
    const int64_t chunks = in.elements() / chunk;
    if (chunks == 0) return cudaSuccess;
    constexpr int64_t per_block = sweep_threads * sweep_chunks;
    search_sweep_kernel<In><<<static_cast<unsigned>((chunks + per_block - 1) / per_block), sweep_threads, 0, stream>>>(
        in.data, chunks, args, store);
    return cudaGetLastError();
}

}  // namespace

cudaError_t launch_nvfp4_multipliers(const Input& in, const Nvfp4Args& args, const Multipliers& multipliers,
                                     cudaStream_t stream) {
    const ScaleStore store{args.target.scales, static_cast<uint32_t>(in.cols / chunk), args.target.swizzled};
    const int64_t chunks = in.elements() / chunk;
    constexpr Arithmetic r = Arithmetic::reciprocal, t = Arithmetic::true_division;
    const bool reciprocal = args.arithmetic == r;
    const auto launch = [&](auto op) { return launch_chunks(in.data, chunks, op, stream); };
    if (in.f32)
        return reciprocal ? launch(Nvfp4Multipliers<F32, r>{args, store, multipliers})
                          : launch(Nvfp4Multipliers<F32, t>{args, store, multipliers});
    if (multipliers.count == 2)
        return reciprocal ? two_multipliers<r>(in.data, chunks, {args, store, multipliers}, stream)
                          : two_multipliers<t>(in.data, chunks, {args, store, multipliers}, stream);
    return reciprocal ? launch(Nvfp4Multipliers<Bf16, r>{args, store, multipliers})
                      : launch(Nvfp4Multipliers<Bf16, t>{args, store, multipliers});
}

cudaError_t launch_nvfp4_sweep(const Input& in, const Nvfp4Args& args, cudaStream_t stream) {
    const ScaleStore store{args.target.scales, static_cast<uint32_t>(in.cols / chunk), args.target.swizzled};
    return in.f32 ? sweep<F32>(in, args, store, stream) : sweep<Bf16>(in, args, store, stream);
}

}  // namespace nibble::cuda
