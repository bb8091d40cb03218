// Sampling (kernels/sampling_cuda.h) with one thread block per row, or for few rows a cluster of eight. Block 0 of a
// cluster decides; the others count and collect for it. Loads of logits bypass the first-level cache, because penalties
// change logits during the kernel. Masked tokens are skipped only where a token could be chosen: the log-probability is
// over all tokens.
#include "kernels/cuda/primitives/elementwise.cuh"
#include "kernels/cuda/sampling/sampling_launch.h"

#include <cooperative_groups.h>

#include <climits>

namespace nibble::cuda {
namespace {

namespace cg = cooperative_groups;
using u64 = unsigned long long;

constexpr int threads = 1024, warps = threads / 32;
// A multiprocessor holds one block, so 16 clusters run at once: 512 rows of 49,152 logits took 0.96 ms. More rows use
// one block each: llama-8b in FP8 at 1,024 sequences of 128 + 128 tokens 18,310 to 19,050 tokens/s.
constexpr int cluster_blocks = 8, most_clusters = 16;
constexpr int bins = 1024;  // bins of width 1/32; more than 32 below the largest logit, weights are 0
constexpr int run = 4096;   // run length of log_softmax
constexpr int most_runs = (1 << 19) / run;
constexpr int stages = 3;  // the end of top-k, the end of top-p, the draw
static_assert(bins == threads && most_candidates == 4 * threads);

struct Candidates {
    u64 keys[most_candidates];  // ascending: likeliest first, lower id of equal ones first
    u64 sums[most_candidates];  // inclusive running sums of weights
};
struct Shared {
    Candidates list;
    u64 weights[bins], weights_through[bins];
    uint32_t counts[bins], counts_through[bins];
    u64 run_weights[most_runs];
    float run_totals[most_runs];
    u64 best[2], of_warp[warps];
    u64 mass;
    int want[stages], candidates, found, chosen;
    float log_total;
};

__device__ float value_of(uint32_t order) {
    return __uint_as_float(order & 0x80000000u ? order ^ 0x80000000u : ~order);
}
__device__ u64 weight_of(float logit, float largest) {
    const float share = exp_of(logit - largest) * sampling_unit;
    return share > 0.0f ? static_cast<u64>(share) : 0;
}

// Called by all threads of a block.
__device__ u64 block_scan(u64 value, Shared& s, bool inclusive) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    u64 through = value;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const u64 other = __shfl_up_sync(0xFFFFFFFFu, through, step);
        if (lane >= step) through += other;
    }
    __syncthreads();
    if (lane == 31) s.of_warp[warp] = through;
    __syncthreads();
    u64 before = 0;
    for (int w = 0; w < warp; ++w) before += s.of_warp[w];
    return before + through - (inclusive ? 0 : value);
}
// Returns the least `index` with `hit`, or INT_MAX. Called by all threads of a block.
__device__ int first_hit(bool hit, int index, Shared& s) {
    __syncthreads();
    if (threadIdx.x == 0) s.found = INT_MAX;
    __syncthreads();
    if (hit) atomicMin(&s.found, index);
    __syncthreads();
    return s.found;
}

// `blocks` is the size of a cluster. Masked: rows may have masks.
template <int blocks, bool Masked>
struct Row {
    const SampleArgs& args;
    Shared& s;
    cg::cluster_group cluster;
    SampleRow p;
    float* x;
    const uint32_t* mask;  // null: all tokens are allowed
    int rank, thread;

    __device__ bool allowed(int64_t i) const {
        return !Masked || !mask || (__ldg(mask + i / 32) >> (i % 32) & 1u) != 0;
    }

    // Issues eight loads before f, which may store, gets the first value.
    template <class Each>
    __device__ void each(Each f) const {
        constexpr int ahead = 8, step = blocks * threads;
        for (int64_t first = rank * threads + thread; first < args.width; first += ahead * step) {
            float logits[ahead];
#pragma unroll
            for (int k = 0; k < ahead; ++k)
                if (const int64_t i = first + k * step; i < args.width) logits[k] = __ldcg(x + i);
#pragma unroll
            for (int k = 0; k < ahead; ++k)
                if (const int64_t i = first + k * step; i < args.width) f(i, logits[k]);
        }
    }
    __device__ Shared& of(int block) const {
        if constexpr (blocks == 1)
            return s;
        else
            return *cluster.map_shared_rank(&s, block);
    }
    __device__ void sync() const {
        if constexpr (blocks == 1)
            __syncthreads();
        else
            cluster.sync();
    }

    // Returns the largest key over all threads of the cluster. Consecutive calls need different slots.
    __device__ u64 largest_key(u64 best, int slot) const {
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            const u64 other = __shfl_xor_sync(0xFFFFFFFFu, best, step);
            best = other > best ? other : best;
        }
        if (thread % 32 == 0) s.of_warp[thread / 32] = best;
        __syncthreads();
        if (thread == 0) {
            for (int w = 1; w < warps; ++w) best = s.of_warp[w] > best ? s.of_warp[w] : best;
            s.best[slot] = best;
        }
        sync();
        best = 0;
        for (int b = 0; b < blocks; ++b) best = of(b).best[slot] > best ? of(b).best[slot] : best;
        return best;
    }

    // Returns true if the weights of runs are those of the log_softmax pass: later steps change, drop and sort nothing.
    __device__ bool weighs_all() const {
        return p.temperature > 0.0f && p.seen == 0 && !mask && p.top_k <= 0 && p.top_p >= 1.0f;
    }

    // Computes log(sum of exp(x - largest)) in the order of log_softmax to block 0's log_total. If weighs_all(), also
    // writes the weights of runs to its run_weights. A warp processes a run: thread t has elements t, t + 32 ..., which
    // belong to lane t % 16 of the sum; the two half-warps alternate.
    __device__ void sum_exponentials(float largest) const {
        constexpr int ahead = 8;
        const int runs = static_cast<int>((args.width + run - 1) / run), lane = thread % 32;
        const bool weigh = weighs_all(), low_half = lane < sum_lanes;
        const float top = weigh ? largest / p.temperature : 0.0f, lowest = top + p.lowest;
        for (int r = rank + blocks * (thread / 32); r < runs; r += blocks * warps) {
            const float* const from = x + int64_t{r} * run;
            const int count = static_cast<int>(min(int64_t{run}, args.width - int64_t{r} * run));
            float sum = 0.0f;
            u64 weight = 0;
            for (int base = lane; base - lane < count; base += 32 * ahead) {
                float logits[ahead];
#pragma unroll
                for (int k = 0; k < ahead; ++k) logits[k] = base + 32 * k < count ? __ldcg(from + base + 32 * k) : 0.0f;
#pragma unroll
                for (int k = 0; k < ahead; ++k) {
                    const bool inside = base + 32 * k < count;
                    const float own = inside ? exp_of(logits[k] - largest) : 0.0f;
                    const float other = __shfl_xor_sync(0xFFFFFFFFu, own, sum_lanes);
                    sum += low_half ? own : other;
                    sum += low_half ? other : own;
                    if (!weigh || !inside) continue;
                    const float v = p.temperature == 1.0f ? logits[k] : logits[k] / p.temperature;
                    const float share = (p.temperature == 1.0f ? own : exp_of(v - top)) * sampling_unit;
                    if (v >= lowest && share > 0.0f) weight += static_cast<u64>(share);
                }
            }
#pragma unroll
            for (int half = sum_lanes / 2; half > 0; half /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, half);
#pragma unroll
            for (int step = 16; step > 0; step /= 2) weight += __shfl_xor_sync(0xFFFFFFFFu, weight, step);
            if (lane == 0) of(0).run_totals[r] = sum, of(0).run_weights[r] = weight;
        }
        sync();
        if (rank == 0 && thread < 32) {
            double total = 0.0;
            for (int base = 0; base < runs; base += 32) {
                const float own = base + thread < runs ? s.run_totals[base + thread] : 0.0f;
                for (int k = 0; k < 32; ++k) total += static_cast<double>(__shfl_sync(0xFFFFFFFFu, own, k));
            }
            if (thread == 0) s.log_total = static_cast<float>(log(total));
        }
    }

    __device__ void penalize() const {
        for (int e = rank * threads + thread; e < p.seen; e += blocks * threads) {
            SeenSlot& slot = args.seen[p.first_seen + e];
            const SeenToken token = slot.token;
            if (token.id < 0 || token.id >= args.width) continue;
            const float logit = __ldcg(x + token.id);
            slot.saved = logit;
            x[token.id] = penalized(logit, p.repetition, p.presence, p.frequency, token.answer);
        }
        sync();
    }
    __device__ void restore() const {
        sync();
        for (int e = rank * threads + thread; e < p.seen; e += blocks * threads)
            if (const SeenSlot slot = args.seen[p.first_seen + e]; slot.token.id >= 0 && slot.token.id < args.width)
                x[slot.token.id] = slot.saved;
        sync();
    }

    // Draws by id if nothing is sorted. Returns the token in block 0.
    __device__ int draw_by_id(float largest, float lowest, u64 bits) const {
        const auto weight = [&](int64_t i) -> u64 {
            if (i >= args.width || !allowed(i)) return 0;
            const float v = __ldcg(x + i) / p.temperature;
            return v < lowest ? 0 : weight_of(v, largest);
        };
        const int runs = static_cast<int>((args.width + run - 1) / run);
        static_assert(most_runs <= threads && run == 4 * threads);
        if (!weighs_all()) {
            for (int r = rank + blocks * (thread / 32); r < runs; r += blocks * warps) {
                u64 sum = 0;
#pragma unroll 4
                for (int k = thread % 32; k < run; k += 32) sum += weight(int64_t{r} * run + k);
#pragma unroll
                for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
                if (thread % 32 == 0) of(0).run_weights[r] = sum;
            }
            sync();
        }
        if (rank != 0) return -1;
        const u64 mine = thread < runs ? s.run_weights[thread] : 0, through = block_scan(mine, s, true);
        if (thread == threads - 1) s.mass = through;
        __syncthreads();
        const u64 target = __umul64hi(bits, s.mass);
        const int r = first_hit(through > target, thread, s);
        if (r == INT_MAX) return -1;
        if (thread == r) s.mass = through - mine;
        __syncthreads();
        const u64 before = s.mass;
        u64 own[run / threads], sum = 0;
        for (int k = 0; k < run / threads; ++k) {
            own[k] = weight(int64_t{r} * run + thread * (run / threads) + k);
            sum += own[k];
        }
        u64 at = before + block_scan(sum, s, false);
        int hit = INT_MAX;
        for (int k = 0; k < run / threads; ++k) {
            at += own[k];
            if (at > target && hit == INT_MAX) hit = r * run + thread * (run / threads) + k;
        }
        const int id = first_hit(hit != INT_MAX, hit, s);
        return id == INT_MAX ? -1 : id;
    }

    __device__ void count(float largest, float lowest) const {
        s.counts[thread] = 0, s.weights[thread] = 0;
        if (thread == 0) s.candidates = 0;
        __syncthreads();
        each([&](int64_t i, float logit) {
            const float v = logit / p.temperature, below = largest - v;
            if (v < lowest || !(below < 32.0f) || !allowed(i)) return;
            const int bin = static_cast<int>(below * 32.0f);
            atomicAdd(&s.counts[bin], 1u);
            atomicAdd(&s.weights[bin], weight_of(v, largest));
        });
        sync();
        if (rank != 0) return;
        u64 tokens = 0, weight = 0;
        for (int b = 0; b < blocks; ++b) tokens += of(b).counts[thread], weight += of(b).weights[thread];
        s.counts_through[thread] = static_cast<uint32_t>(block_scan(tokens, s, true));
        s.weights_through[thread] = block_scan(weight, s, true);
        __syncthreads();
    }

    // Collects the tokens of a bin in block 0, sorted, with running sums.
    __device__ void collect(int bin, float largest, float lowest) const {
        Shared& to = of(0);
        each([&](int64_t i, float logit) {
            const float v = logit / p.temperature, below = largest - v;
            if (v < lowest || !(below < 32.0f) || static_cast<int>(below * 32.0f) != bin || !allowed(i)) return;
            const int place = atomicAdd(&to.candidates, 1);
            // ~key_of is smaller for likelier tokens; ~index becomes the index.
            if (place < most_candidates) to.list.keys[place] = ~key_of(v, static_cast<uint32_t>(i));
        });
        sync();
        if (rank != 0 || s.candidates > most_candidates) return;
        int size = 1;
        while (size < s.candidates) size *= 2;
        u64* keys = s.list.keys;
        for (int i = s.candidates + thread; i < size; i += threads) keys[i] = ~u64{0};
        for (int merge = 2; merge <= size; merge *= 2)
            for (int apart = merge / 2; apart > 0; apart /= 2) {
                __syncthreads();
                for (int pair = thread; pair < size / 2; pair += threads) {
                    const int low = pair / apart * 2 * apart + pair % apart, high = low + apart;
                    const u64 a = keys[low], b = keys[high];
                    if ((a > b) == ((low & merge) == 0)) keys[low] = b, keys[high] = a;
                }
            }
        __syncthreads();
        u64 own[most_candidates / threads], sum = 0;
        for (int k = 0; k < most_candidates / threads; ++k) {
            const int i = thread * (most_candidates / threads) + k;
            own[k] = i < s.candidates ? weight_of(value_of(static_cast<uint32_t>(~keys[i] >> 32)), largest) : 0;
            sum += own[k];
        }
        u64 at = block_scan(sum, s, false);
        for (int k = 0; k < most_candidates / threads; ++k) {
            at += own[k];
            s.list.sums[thread * (most_candidates / threads) + k] = at;
        }
        __syncthreads();
    }

    // In block 0: returns the first candidate for which hit(inclusive running sum) holds.
    template <class Hit>
    __device__ int first_candidate(u64 before, Hit hit) const {
        int least = INT_MAX;
        for (int k = most_candidates / threads - 1; k >= 0; --k) {
            const int i = thread * (most_candidates / threads) + k;
            if (i < s.candidates && hit(before + s.list.sums[i])) least = i;
        }
        return first_hit(least != INT_MAX, least, s);
    }

    // Draws likeliest first. Returns the token in block 0.
    __device__ int draw_sorted(float largest, float lowest, u64 bits) const {
        count(largest, lowest);
        // In block 0 `kept` is the weight that top-k and top-p keep; it ends in bin `last`.
        u64 kept = rank == 0 ? s.weights_through[bins - 1] : 0, target = 0;
        double enough = 0.0;
        int last = bins, loaded = -1, id = -1;
        bool failed = false;
        const auto through = [&](int bin) { return bin < last ? s.weights_through[bin] : kept; };
#pragma unroll 1
        for (int stage = 0; stage < stages; ++stage) {
            const bool has_k = rank == 0 && p.top_k > 0 && static_cast<u64>(p.top_k) < s.counts_through[bins - 1];
            if (rank == 0) {
                int bin = -1;
                if (stage == 0 && has_k)
                    bin = first_hit(s.counts_through[thread] >= static_cast<uint32_t>(p.top_k), thread, s);
                if (stage == 1 && p.top_p < 1.0f) {
                    enough = top_p_mass(p.top_p, kept);
                    bin = first_hit(static_cast<double>(through(thread)) >= enough, thread, s);
                }
                if (stage == 2) {
                    target = __umul64hi(bits, kept);
                    bin = first_hit(through(thread) > target, thread, s);
                }
                failed = failed || bin == INT_MAX;
                if (thread == 0) s.want[stage] = failed ? -1 : bin;
            }
            sync();
            const int bin = of(0).want[stage];
            if (bin < 0) continue;
            if (bin != loaded) {
                if (rank == 0 && thread == 0) s.candidates = 0;
                sync();
                collect(bin, largest, lowest);
                loaded = bin;
            }
            if (rank != 0) continue;
            if (s.candidates > most_candidates) {
                failed = true;
                continue;
            }
            const u64 before = bin > 0 ? s.weights_through[bin - 1] : 0;
            if (stage == 0) {
                const int rest = p.top_k - static_cast<int>(bin > 0 ? s.counts_through[bin - 1] : 0);
                kept = before + s.list.sums[rest - 1];
                last = bin;
            } else if (stage == 1) {
                const int i = first_candidate(before, [&](u64 sum) { return static_cast<double>(sum) >= enough; });
                failed = failed || i == INT_MAX;
                if (!failed) kept = before + s.list.sums[i];
                last = bin;
            } else {
                const int i = first_candidate(before, [&](u64 sum) { return sum > target; });
                failed = failed || i == INT_MAX;
                if (!failed) id = static_cast<int>(static_cast<uint32_t>(s.list.keys[i]));
            }
        }
        return failed ? -1 : id;
    }
};

template <int blocks, bool Masked>
__global__ void __cluster_dims__(blocks, 1, 1) __launch_bounds__(threads)
    sample_kernel(const __grid_constant__ SampleArgs args) {
    extern __shared__ __align__(16) uint8_t memory[];
    start(args.overlap);
    const SampleRow& request = args.requests[blockIdx.x / blocks];
    const int64_t at = Masked ? args.places[blockIdx.x / blocks] : blockIdx.x / blocks;
    const cg::cluster_group cluster = cg::this_cluster();
    const Row<blocks, Masked> row{
        args,
        *reinterpret_cast<Shared*>(memory),
        cluster,
        request,
        args.logits + at * args.width,
        Masked && request.mask >= 0 ? args.masks + request.mask * mask_pitch(args.width) : nullptr,
        static_cast<int>(cluster.block_rank()),
        static_cast<int>(threadIdx.x)};
    if (blockIdx.x == 0)
        for (int64_t i = threadIdx.x; i < args.word_count; i += threads) args.words_out[i] = args.words[i];
    if (!Masked && row.p.mask == deferred_row) {
        if (row.rank == 0 && row.thread == 0) args.out[at] = {-1, 0.0f};
        return;
    }
    u64 best = 0;
    row.each([&](int64_t i, float logit) {
        if (args.round) row.x[i] = logit = rounded(logit);
        const u64 key = is_finite(logit) ? key_of(logit, static_cast<uint32_t>(i)) : ~u64{0};
        best = key > best ? key : best;
    });
    best = row.largest_key(best, 0);
    const bool decides = row.rank == 0 && row.thread == 0;
    if (best == ~u64{0}) {
        if (decides) args.out[at] = {-2, 0.0f};
        row.sync();  // keeps shared memory alive until all blocks have read it
        return;
    }
    const float largest = value_of(static_cast<uint32_t>(best >> 32));
    row.sum_exponentials(largest);
    if (row.p.seen > 0) row.penalize();
    if (row.p.seen > 0 || row.mask) {
        u64 again = 0;
        row.each([&](int64_t i, float logit) {
            const u64 key = key_of(logit, static_cast<uint32_t>(i));
            if (key > again && row.allowed(i)) again = key;
        });
        best = row.largest_key(again, 1);
    }
    int id = best == 0 ? -1 : static_cast<int>(~static_cast<uint32_t>(best));
    if (row.p.temperature > 0.0f && best != 0) {
        const float top = value_of(static_cast<uint32_t>(best >> 32)) / row.p.temperature, lowest = top + row.p.lowest;
        const u64 bits = sampling_bits(row.p.seed, row.p.sequence, row.p.position);
        id = row.p.top_k > 0 || row.p.top_p < 1.0f ? row.draw_sorted(top, lowest, bits)
                                                   : row.draw_by_id(top, lowest, bits);
    }
    if (row.p.seen > 0) row.restore();
    __syncthreads();  // log_total
    if (decides) args.out[at] = {id, id < 0 ? 0.0f : (__ldcg(row.x + id) - largest) - row.s.log_total};
    row.sync();
}

// `from` may be host memory: each token is read once.
__global__ void carry_tokens_kernel(const CarriedToken* list, int count, const ChosenToken* from, int32_t* tokens) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= count) return;
    const CarriedToken c = list[i];
    const int id = from[c.row].id;
    tokens[c.to] = id < 0 ? 0 : id;
}

}  // namespace

cudaError_t launch_carry(const CarriedToken* list, int64_t count, const ChosenToken* from, int32_t* tokens,
                         cudaStream_t stream) {
    constexpr int block = 256;
    carry_tokens_kernel<<<static_cast<unsigned>((count + block - 1) / block), block, 0, stream>>>(
        list, static_cast<int>(count), from, tokens);
    return cudaGetLastError();
}

template <int blocks>
cudaError_t launch_rows(const SampleArgs& args, cudaStream_t stream) {
    constexpr int bytes = sizeof(Shared);
    const auto kernel = args.places ? sample_kernel<blocks, true> : sample_kernel<blocks, false>;
    if (const cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
        return code;
    return launch_kernel(kernel, dim3(static_cast<unsigned>(args.rows * blocks)), threads, bytes, args, stream);
}

cudaError_t launch_sample(const SampleArgs& args, cudaStream_t stream) {
    return args.rows > most_clusters ? launch_rows<1>(args, stream) : launch_rows<cluster_blocks>(args, stream);
}

}  // namespace nibble::cuda
