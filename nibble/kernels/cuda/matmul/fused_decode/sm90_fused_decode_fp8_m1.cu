// Products of one token in W8A8 with one thread block per multiprocessor for all of them
// (kernels/fused_decode_cuda.h).
//
// A warp fills a ring buffer of slots of 32 KB with W, product after product. Four warpgroups multiply: 64 rows of W
// are the rows of wgmma, the token is the only column in use. (B has no swizzle: the eight columns start 16 bytes
// apart, so x is in shared memory only once; columns 1 ... 7 are shifted copies of x whose sums are not used.) If a
// thread block has 64 rows or fewer, the warpgroups share the groups of 128 columns. A group's four k-steps are one
// chain from zero, as in sm90_matmul_fp8.cu, and one thread per row adds them in order.
//
// Rows of a tile of 64 beyond the block's rows have any contents; their sums are not read.
#include "kernels/cuda/matmul/fused_decode/decode_steps.cuh"
#include "kernels/cuda/matmul/matmul_epilogue.cuh"
#include "kernels/cuda/primitives/block16.cuh"
#include "kernels/cuda/primitives/tensor_map.cuh"

#include <algorithm>

namespace nibble::cuda {
namespace {

constexpr int all_bytes = 227 * 1024, group_cols = 128, most_rows = 256, most_slots = 8;
// Slots of a thread block in flight. With more, some multiprocessors get much more bandwidth than others (six: 71.4 us
// per layer, two: 68.7, one: 75.8).
constexpr int most_asked = 2;
// Shared memory of arguments and barriers.
constexpr int args_bytes = 1024;
static_assert(sizeof(FusedDecodeArgs) % 8 == 0 && sizeof(FusedDecodeArgs) + 16 * most_slots <= args_bytes);

struct WeightMaps {
    CUtensorMap of[fused_decode_steps];
};

// d[64, 8] (+)= a[64, 32] b[8, 32]^T of E4M3: a in the layout of swizzled_operand(), b in eight rows that start 16
// bytes apart. Lane 4 g of warp w has column 0 in d[0] and d[2]: rows 16 w + g and 8 further.
__device__ __forceinline__ void multiply_codes(float (&d)[4], uint32_t left, uint32_t right, int more) {
    NIBBLE_WGMMA_ASM(
        "{\n\t.reg .pred p;\n\t.reg .b64 left, right;\n\tsetp.ne.b32 p, %6, 0;\n\tmov.b64 left, "
        "{%4, " NIBBLE_SWIZZLED_UPPER
        "};\n\tmov.b64 right, {%5, 1};\n\twgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, "
        "left, right, p, 1, 1;\n\t}"
        : NIBBLE_D4(d, 0)
        : "r"(left), "r"(right), "r"(more));
}

// Writes the sums of a block's rows to `sums`. Parts warpgroups share 64 rows, each with Chains groups of a slot.
template <int Accumulators, int Parts>
__device__ void multiply(const ProductStep& step, fused::Ring& ring, uint32_t x_at, float* of_groups, float* sums) {
    constexpr int tiles = 4 / Parts;
    const int warpgroup = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 128, 0);
    const int tile = warpgroup % tiles, part = warpgroup / tiles, rows = step.rows_each;
    const int lane = static_cast<int>(threadIdx.x) % 32,
              row = 64 * tile + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
    const uint32_t w_at = (part * Accumulators * rows + 64 * tile) * group_cols;
    const bool holds = lane % 4 == 0;
    float acc[Accumulators][4] = {}, total[2] = {};
#pragma unroll 1
    for (int group = part * Accumulators; group < step.groups + part * Accumulators; group += Accumulators * Parts) {
        barrier_wait(ring.full + 8 * ring.slot, ring.parity);
        const uint32_t left = ring.base + ring.slot * product_slot_bytes + w_at;
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int i = 0; i < Accumulators; ++i)
                multiply_codes(acc[i], swizzled_operand(left + i * rows * group_cols) + 2 * j,
                               swizzled_operand(x_at + (group + i) * group_cols) + 2 * j, j > 0);
        wgmma_commit();
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < Accumulators; ++i)
#pragma unroll
            for (float& v : acc[i]) asm volatile("" : "+f"(v)::"memory");
        barrier_arrive_if(ring.empty + 8 * ring.slot, threadIdx.x % 128 == 0);
        ring.next();
        if constexpr (Parts == 1) {
            total[0] = acc[0][0] + total[0], total[1] = acc[0][2] + total[1];
        } else if (holds) {
#pragma unroll
            for (int i = 0; i < Accumulators; ++i) {
                if (group + i >= step.groups) continue;
                float* to = of_groups + (group + i) * rows + row;
                if (row < rows) to[0] = acc[i][0];
                if (row + 8 < rows) to[8] = acc[i][2];
            }
        }
    }
    if (Parts == 1 && holds) {
        if (row < rows) sums[row] = total[0];
        if (row + 8 < rows) sums[row + 8] = total[1];
    }
    meet_warps<fused_decode_threads>();
    if constexpr (Parts > 1) {
        const int own = static_cast<int>(threadIdx.x);
        if (own < rows) {
            float sum = 0.0f;
#pragma unroll 16
            for (int g = 0; g < step.groups; ++g) sum = of_groups[g * rows + own] + sum;
            sums[own] = sum;  // read by the same thread first
        }
    }
}

__device__ void multiply(const ProductStep& step, fused::Ring& ring, uint32_t x_at, float* of_groups, float* sums) {
    switch (step.stage_groups) {
        case 8:
            return multiply<2, 4>(step, ring, x_at, of_groups, sums);
        case 4:
            return multiply<1, 4>(step, ring, x_at, of_groups, sums);
        case 2:
            return multiply<1, 2>(step, ring, x_at, of_groups, sums);
        default:
            return multiply<1, 1>(step, ring, x_at, of_groups, sums);
    }
}

__device__ __noinline__ uint8_t divided_code(float x, float scale) { return e4m3_code(x / scale); }

// Returns the E4M3 code of x / scale, without a division if that is exact (block16.cuh).
struct Coder {
    Divisor by;
    bool safe;

    __device__ explicit Coder(float scale) : by(scale), safe(safe_divisor(scale)) {}
    __device__ uint8_t code(float x) const {
        if (!safe) return divided_code(x, by.d);
        const float most = 512.0f * by.d, size = fabsf(x);  // beyond it every quotient becomes 448; NaN stays
        return e4m3_code(copysignf(by.quotient(size > most ? most : size), x));
    }
    __device__ uint32_t pair(uint32_t bf16) const {
        const float2 v = fused::floats_of(bf16);
        return code(v.x) | uint32_t{code(v.y)} << 8;
    }
};

// Inputs of a product without a norm: codes in shared memory, for the tensor cores.
__device__ void quantize_rows(const ProductStep& step, uint8_t* codes) {
    const Coder coder(step.input_scale);
    for (int i = static_cast<int>(threadIdx.x); i < step.k / 8; i += fused_decode_threads) {
        const uint4 v = __ldcg(reinterpret_cast<const uint4*>(step.rows) + i);
        const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
        uint32_t word[2] = {};
#pragma unroll
        for (int p = 0; p < 4; ++p) word[p / 2] |= coder.pair(pairs[p]) << (16 * (p % 2));
        reinterpret_cast<uint2*>(codes)[i] = {word[0], word[1]};
    }
}
// A thread's row, and the data loaded for it before the sums are complete.
struct Output {
    int place, row;  // index in the block; row of W
    bool present;
    float scale = 0, bias = 0;

    __device__ Output(const ProductStep& s, int work) : place(static_cast<int>(threadIdx.x)) {
        const int half = s.gated ? s.rows_each / 2 : s.rows_each, count = s.gated ? s.n / 2 : s.n;
        const bool upper = s.gated && place >= half;
        const int at = work * half + place - (upper ? half : 0);
        present = place < s.rows_each && at < count;
        row = at + (upper ? count : 0);
        if (!present) return;
        scale = (s.row_scales ? s.row_scales[row] : s.scale) * s.input_scale;
        bias = s.bias ? s.bias[row] : 0.0f;
    }
    __device__ void store(const FusedDecodeArgs& args, const ProductStep& s, float* sums) const {
        const float v = present ? product_output(sums[place], scale, bias) : 0.0f;
        if (!s.activated) {
            if (present && s.y) s.y[row] = v;
            if (present && s.handed) hand(reinterpret_cast<float*>(s.handed) + row, v);
            return;
        }
        if (s.gated) {
            const int half = s.rows_each / 2;
            if (present && place >= half) sums[place] = rounded(v);
            meet_warps<fused_decode_threads>();
            if (!present || place >= half) return;
            hand(s.handed + row, code(act(args.activation, rounded(v)) * sums[place + half], s));
        } else if (present) {
            hand(s.handed + row, code(act(args.activation, rounded(v)), s));
        }
    }
    static __device__ uint8_t code(float v, const ProductStep& s) { return Coder(s.code_scale).code(rounded(v)); }
};

// The part of W that fills one slot of the ring buffer; iterates over all of a thread block's slots in order.
struct Stage {
    const FusedDecodeArgs& args;
    int grid, step = 0, work, group = 0;

    __device__ Stage(const FusedDecodeArgs& a, int blocks) : args(a), grid(blocks), work(static_cast<int>(blockIdx.x)) {
        skip();
    }
    __device__ bool exists() const { return step < args.steps; }
    __device__ void next() {
        if (!exists()) return;
        const ProductStep& s = args.step[step];
        if ((group += s.stage_groups) < s.groups) return;
        group = 0, work += grid;
        skip();
    }
    __device__ void fetch(const WeightMaps& maps, uint32_t to, uint32_t barrier) const {
        const ProductStep& s = args.step[step];
        const int count = s.gated ? min(s.stage_groups, s.groups - group) : s.stage_groups;
        barrier_expect(barrier, count * s.rows_each * group_cols);
        each_box([&](int row, int g, int bytes) {
            load_3d(to, &maps.of[step], 0, row / 8, g, barrier);
            to += bytes;
        });
    }

private:
    __device__ void skip() {
        while (exists() && work >= args.step[step].works) ++step, work = static_cast<int>(blockIdx.x);
    }
    // Gated: a box has the rows of one half of one group.
    template <class Each>
    __device__ void each_box(Each each) const {
        const ProductStep& s = args.step[step];
        if (!s.gated) return each(work * s.rows_each, group, 0);
        const int half = s.rows_each / 2, count = min(s.stage_groups, s.groups - group);
        for (int b = 0; b < 2 * count; ++b) each(work * half + b % 2 * (s.n / 2), group + b / 2, half * group_cols);
    }
};

template <int Pairs>
__global__ void __launch_bounds__(fused_decode_threads + 32, 1)
    sm90_fused_decode_fp8_m1_kernel(const __grid_constant__ FusedDecodeArgs given,
                                    const __grid_constant__ WeightMaps maps) {
    extern __shared__ __align__(128) uint8_t shared_bytes[];
    const uint32_t before = shared_address(shared_bytes), base = (before + 1023u) & ~1023u;
    uint8_t* const shared = shared_bytes + (base - before);
    const FusedDecodeArgs& args = fused::shared_arguments(shared, given);
    const uint32_t full = base + sizeof(FusedDecodeArgs), empty = full + 8 * most_slots;
    float* const sums = reinterpret_cast<float*>(shared + args_bytes);
    uint8_t* const slots = shared + args_bytes + 4 * most_rows;
    uint8_t* const x = slots + given.slots * product_slot_bytes;
    float* const of_groups = reinterpret_cast<float*>(x + given.x_bytes);
    fused::Ring ring{shared_address(slots), full, empty, given.slots};
    if (threadIdx.x == 0) {
        for (int s = 0; s < given.slots; ++s) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, fused_decode_threads / 128);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (args.overlap) overlap_next();
    const int grid = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    if (threadIdx.x >= fused_decode_threads) {
        if (threadIdx.x > fused_decode_threads) return;
        for (int i = 0; i < args.steps; ++i) prefetch_map(&maps.of[i]);
        Stage stage(args, grid);
        fused::Ring landed = ring;
        for (int i = 0; stage.exists(); stage.next(), ++i) {
            if (i >= args.asked) {
                barrier_wait(full + 8 * landed.slot, landed.parity);
                landed.next();
            }
            barrier_wait(empty + 8 * ring.slot, ring.parity ^ 1);
            stage.fetch(maps, ring.base + ring.slot * product_slot_bytes, full + 8 * ring.slot);
            ring.next();
        }
        return;
    }
    fused::Stream<Pairs, fused_decode_threads> stream{of_groups};
    // Loads data for the first norm from step i on.
    const auto load_weight = [&](int i) {
        while (i < args.steps && !args.step[i].norm) ++i;
        if (i < args.steps) stream.load_weight(args, args.step[i].norm);
    };
    load_weight(0);
    fused::Meeting<fused_decode_threads> meeting{args.meet};
    const float* update = args.update;
    for (int i = 0; i < args.steps; ++i) {
        const ProductStep& step = args.step[i];
        if (i == 0) {
            if (args.overlap) wait_for_previous();
            meeting.begin();
            fused::set_back<fused_decode_threads>(args);
        }
        if (step.rows)
            quantize_rows(step, x);
        else if (step.norm) {
            const Coder coder(step.input_scale);
            stream.norm(args, step, update, i > 0, [&](int pair, uint32_t bf16) {
                reinterpret_cast<uint16_t*>(x)[pair] = static_cast<uint16_t>(coder.pair(bf16));
            });
            load_weight(i + 1);
        } else
            fused::take_words<8, fused_decode_threads>(args.step[i - 1].handed, step.k / 16, x);
        update = reinterpret_cast<const float*>(step.handed);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        meet_warps<fused_decode_threads>();
        for (int work = block; work < step.works; work += grid) {
            const Output output(step, work);
            multiply(step, ring, shared_address(x), of_groups, sums);
            output.store(args, step, sums);
            meet_warps<fused_decode_threads>();  // sums may be overwritten only after they were read
        }
    }
    if (args.ropes) fused::rope_rows(args.rope, meeting);
}

int stage_groups_for(int rows) { return rows <= 32 ? 8 : rows <= 64 ? 4 : rows <= 128 ? 2 : 1; }

}  // namespace

bool shape_code_decode(FusedDecodeArgs& args, int multiprocessors) {
    if (args.width > most_fused_width) return false;
    int x_bytes = 0, row_bytes = args.width ? norm_shared_bytes(args.width) + 16 : 0;
    for (int i = 0; i < args.steps; ++i) {
        ProductStep& s = args.step[i];
        // Chooses the number of rows that gives the busiest multiprocessor the fewest rows; of equal ones the largest.
        const int count = s.gated ? s.n / 2 : s.n, most = s.gated ? most_rows / 2 : most_rows;
        int best = 8;
        int64_t least = INT64_MAX;
        for (int rows = 8; rows <= most; rows += 8) {
            const int64_t works = (count + rows - 1) / rows;
            const int64_t busiest = (works + multiprocessors - 1) / multiprocessors * rows;
            if (busiest <= least) least = busiest, best = rows;
        }
        s.works = (count + best - 1) / best;
        s.rows_each = s.gated ? 2 * best : best;
        s.stage_groups = stage_groups_for(s.rows_each);
        const int stages = (s.groups + s.stage_groups - 1) / s.stage_groups;
        x_bytes = std::max(x_bytes, stages * s.stage_groups * group_cols + 256);
        if (s.stage_groups > 1) row_bytes = std::max(row_bytes, s.groups * s.rows_each * 4);
    }
    args.x_bytes = x_bytes;
    args.row_bytes = (row_bytes + 15) / 16 * 16;
    const int rest = all_bytes - 1024 - args_bytes - 4 * most_rows - args.x_bytes - args.row_bytes;
    args.slots = std::min(rest / product_slot_bytes, most_slots);
    args.asked = std::min(most_asked, args.slots);
    return args.slots >= 3;
}

cudaError_t launch_sm90_fused_decode_fp8_m1(const FusedDecodeArgs& args, int multiprocessors, cudaStream_t stream) {
    if (!map_encoder()) return cudaErrorNotSupported;
    WeightMaps maps{};
    for (int i = 0; i < args.steps; ++i) {
        const ProductStep& s = args.step[i];
        const auto groups = static_cast<cuuint64_t>(s.groups);
        // Groups are the outer dimension: eight rows of a group are 1 KB after the previous eight, as
        // swizzled_operand() requires.
        if (!encode_3d(maps.of[i], CU_TENSOR_MAP_DATA_TYPE_INT32, s.tiles,
                       {256, static_cast<cuuint64_t>((s.n + 7) / 8), groups}, {1024 * groups, 1024},
                       {256, static_cast<cuuint32_t>(s.rows_each / (s.gated ? 16 : 8)),
                        static_cast<cuuint32_t>(s.gated ? 1 : s.stage_groups)},
                       CU_TENSOR_MAP_SWIZZLE_NONE))
            return cudaErrorInvalidValue;
    }
    const auto kernel =
        args.width <= most_fused_width / 2 ? sm90_fused_decode_fp8_m1_kernel<4> : sm90_fused_decode_fp8_m1_kernel<8>;
    return fused::launch(kernel, fused_decode_threads, all_bytes, args.overlap, multiprocessors, stream, args, maps);
}

}  // namespace nibble::cuda
