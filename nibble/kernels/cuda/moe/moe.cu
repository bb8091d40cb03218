// The choice of experts (the same code as model/cpu/router.cpp), the order of their rows, the sum of their outputs.
#include "kernels/cuda/moe/moe_launch.h"
#include "kernels/cuda/primitives/rows8.cuh"

#include <algorithm>

namespace nibble::cuda {
namespace {

constexpr int route_warps = 4, sort_threads = 256;
constexpr unsigned every_lane = 0xFFFFFFFFu;

// Returns the index of the largest value among those that `open` allows, the lower index on a tie. NaN is smallest, so
// that all lanes agree for any input.
template <class Open>
__device__ int largest(const float* values, int count, int lane, Open open) {
    float best = -INFINITY;
    int index = count;
    for (int i = lane; i < count; i += 32) {
        const float value = values[i] == values[i] ? values[i] : -INFINITY;
        if (open(i) && (index == count || value > best)) best = value, index = i;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(every_lane, best, step);
        const int at = __shfl_xor_sync(every_lane, index, step);
        if (at < count && (index == count || other > best || (other == best && at < index))) best = other, index = at;
    }
    return index;
}

__device__ float two_best(const float* values, int count) {
    if (count == 1) return values[0];
    float first = fmaxf(values[0], values[1]), second = fminf(values[0], values[1]);
    for (int i = 2; i < count; ++i) {
        if (values[i] > first)
            second = first, first = values[i];
        else
            second = fmaxf(second, values[i]);
    }
    return first + second;
}

// Gives the choices of lanes 0 ... top_k - 1 and their weights to the same lanes in ascending order.
__device__ int in_order(const RouteArgs& args, int mine, float& weight) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    int rank = 0, sorted = args.count;
    for (int k = 0; k < args.top_k; ++k) rank += __shfl_sync(every_lane, mine, k) < mine;
    float own = 0.0f;
    for (int k = 0; k < args.top_k; ++k) {
        const int expert = __shfl_sync(every_lane, mine, k), at = __shfl_sync(every_lane, rank, k);
        const float of_choice = __shfl_sync(every_lane, weight, k);
        if (at == lane) sorted = expert, own = of_choice;
    }
    weight = own;
    return sorted;
}

__device__ void store_choice(const RouteArgs& args, int64_t token, int expert, float weight) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane >= args.top_k) return;
    if (args.expert_scales && expert < args.count) weight = weight * args.expert_scales[expert];
    args.experts[token * args.top_k + lane] = expert;
    args.weights[token * args.top_k + lane] = weight;
}

// The router of phimoe. logits: those of the token, in shared memory.
__device__ int route_sparse_mixer(const RouteArgs& args, int64_t token, const float* logits) {
    const int lane = static_cast<int>(threadIdx.x) % 32, n = args.count;
    int taken = -1, mine = n;
    float weight = 0.0f;
    for (int k = 0; k < args.top_k; ++k) {
        const int best = largest(logits, n, lane, [&](int i) { return i != taken; });
        const float most = logits[best];
        double sum = 0;
        for (int i = 0; i < n; ++i) {
            const bool far = (most - logits[i]) / fmaxf(fabsf(logits[i]), most) > 2 * args.jitter;
            if (i != taken && !far) sum += exp_of(logits[i] - most);
        }
        if (lane == k) mine = best, weight = static_cast<float>(1.0 / sum) * args.scaling;
        taken = best;
    }
    const int sorted = in_order(args, mine, weight);
    store_choice(args, token, sorted, weight);
    return sorted;
}

// Routes one token with a warp and 3 x count floats of shared memory. Lanes below top_k get the choices in ascending
// order.
__device__ int route_token(const RouteArgs& args, int64_t token, float* scores) {
    const int lane = static_cast<int>(threadIdx.x) % 32, n = args.count;
    float* selection = scores + n;
    float* of_group = selection + n;  // [groups]
    const float* logits = args.logits + token * n;
    float most = -INFINITY;
    for (int i = lane; i < n; i += 32) {
        const float x = args.round ? rounded(logits[i]) : logits[i];
        scores[i] = x;
        most = fmaxf(most, x);
    }
    if (args.sparse_mixer) {
        __syncwarp();
        return route_sparse_mixer(args, token, scores);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(every_lane, most, step));
    for (int i = lane; i < n; i += 32)
        scores[i] = args.sigmoid ? 1.0f / (1.0f + exp_of(-scores[i])) : exp_of(scores[i] - most);
    __syncwarp();
    if (!args.sigmoid) {
        double sum = 0;
        for (int i = 0; i < n; ++i) sum += scores[i];
        const auto total = static_cast<float>(sum);
        __syncwarp();
        for (int i = lane; i < n; i += 32) scores[i] = scores[i] / total;
    }
    for (int i = lane; i < n; i += 32) selection[i] = args.bias ? scores[i] + args.bias[i] : scores[i];
    __syncwarp();
    const int size = n / args.groups;
    uint32_t kept = 0xFFFFFFFFu;
    if (args.groups > 1) {
        if (lane < args.groups) of_group[lane] = two_best(selection + lane * size, size);
        __syncwarp();
        kept = 0;
        for (int k = 0; k < args.kept_groups; ++k)
            kept |= 1u << largest(of_group, args.groups, lane, [&](int g) { return !(kept >> g & 1u); });
    }
    uint32_t taken = 0;  // bits of the lane's experts lane, lane + 32 ... that are taken
    int mine = n;        // the k-th choice in lane k
    for (int k = 0; k < args.top_k; ++k) {
        const int best = largest(selection, n, lane, [&](int i) {
            return !(taken >> (i / 32) & 1u) && (args.groups == 1 || (kept >> (i / size) & 1u));
        });
        if (best % 32 == lane) taken |= 1u << (best / 32);
        if (lane == k) mine = best;
    }
    float weight = mine < n ? scores[mine] : 0.0f, sum = 0.0f;
    const int sorted = in_order(args, mine, weight);
    for (int k = 0; k < args.top_k; ++k) sum += __shfl_sync(every_lane, weight, k);
    if (args.normalize) weight = weight / (sum + args.smallest_sum);
    store_choice(args, token, sorted, weight * args.scaling);
    return sorted;
}

// One warp per token.
__global__ void __launch_bounds__(32 * route_warps) moe_route_kernel(const __grid_constant__ RouteArgs args) {
    extern __shared__ float shared[];
    start(args.overlap);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int64_t token = int64_t{blockIdx.x} * route_warps + warp;
    if (token < args.tokens) route_token(args, token, shared + warp * (3 * args.count));
}

// For few tokens one thread block routes and sorts, which saves a decoding step one launch.
__global__ void __launch_bounds__(1024)
    moe_route_and_sort_kernel(const __grid_constant__ RouteArgs args, const __grid_constant__ SortArgs sort) {
    extern __shared__ float shared[];
    __shared__ int chosen[most_sorted_here];
    start(args.overlap);
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int warps = static_cast<int>(blockDim.x) / 32;
    for (int token = warp; token < args.tokens; token += warps) {
        const int choice = route_token(args, token, shared + warp * (3 * args.count));
        if (lane < args.top_k) chosen[token * args.top_k + lane] = choice;
        __syncwarp();
    }
    __syncthreads();
    // The position of a slot and the begin of an expert are the numbers of slots before them.
    for (int i = static_cast<int>(threadIdx.x); i < sort.slots + args.count + 1; i += static_cast<int>(blockDim.x)) {
        const bool is_slot = i < sort.slots;
        const int expert = is_slot ? chosen[i] : i - sort.slots;
        int place = 0;
        for (int j = 0; j < sort.slots; ++j) {
            const int other = chosen[j];
            place += other < expert || (is_slot && other == expert && j < i);
        }
        if (is_slot) {
            sort.rows[place] = i / args.top_k;
            sort.places[i] = place;
        } else {
            sort.begin[expert] = place;
        }
    }
}

// One thread block per expert: counts the slots of lower experts and its own, then numbers its own in order.
__global__ void __launch_bounds__(sort_threads) moe_sort_kernel(const __grid_constant__ SortArgs args) {
    __shared__ int of_warp[2][sort_threads / 32];
    start(args.overlap);
    const int expert = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
    const int lane = thread % 32, warp = thread / 32;
    int lower = 0;
    for (int i = thread; i < args.slots; i += sort_threads) lower += args.experts[i] < expert;
    lower = __reduce_add_sync(every_lane, lower);
    if (lane == 0) of_warp[0][warp] = lower;
    __syncthreads();
    int next = 0;
    for (const int n : of_warp[0]) next += n;
    if (thread == 0) {
        args.begin[expert] = next;
        if (expert == 0) args.begin[args.count] = args.slots;
    }
    __syncthreads();
    int buffer = 0;
    for (int first = 0; first < args.slots; first += sort_threads, buffer ^= 1) {
        const int i = first + thread;
        const bool own = i < args.slots && args.experts[i] == expert;
        const unsigned owners = __ballot_sync(every_lane, own);
        if (lane == 0) of_warp[buffer][warp] = __popc(owners);
        __syncthreads();
        int before = next;
        for (int w = 0; w < sort_threads / 32; ++w) {
            before += w < warp ? of_warp[buffer][w] : 0;
            next += of_warp[buffer][w];
        }
        if (own) {
            const int place = before + __popc(owners & ((1u << lane) - 1u));
            args.rows[place] = i / args.top_k;
            args.places[i] = place;
        }
    }
}

__global__ void moe_combine_kernel(const __grid_constant__ CombineArgs args) {
    start(args.overlap);
    const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    const int64_t token = blockIdx.y;
    if (column >= args.width) return;
    float sum = 0.0f;
    for (int k = 0; k < args.top_k; ++k) {
        const int64_t slot = token * args.top_k + k;
        const float y = rounded(args.y[args.places[slot] * args.y_stride + column]);
        sum += args.weighed ? args.weights[slot] * y : y;
    }
    sum = rounded(sum);
    const int64_t at = token * args.width + column;
    if (args.shared) {
        float shared = rounded(args.shared[at]);
        if (args.shared_gate) shared = rounded(shared * (1.0f / (1.0f + exp_of(-rounded(args.shared_gate[token])))));
        sum = rounded(sum + shared);
    }
    if (args.sum)
        args.sum[at] = sum;
    else
        args.rows[at] = bf16_from_float(sum);
}

// One thread block per token and chosen expert.
__global__ void moe_weigh_kernel(const __grid_constant__ WeighArgs args) {
    start(args.overlap);
    const int64_t slot = blockIdx.x;
    const float weight = args.weights[slot];
    const std::byte* from = args.x + slot / args.top_k * args.width * 2;
    std::byte* to = args.out + int64_t{args.places[slot]} * args.width * 2;
    for (int at = 8 * static_cast<int>(threadIdx.x); at < args.width; at += 8 * static_cast<int>(blockDim.x)) {
        float v[8];
        unpack8(from + 2 * at, v);
#pragma unroll
        for (float& x : v) x *= weight;
        pack8(to + 2 * at, v);
    }
}

}  // namespace

cudaError_t launch_route(const RouteArgs& args, cudaStream_t stream) {
    const int bytes = route_warps * 3 * args.count * 4;
    return launch_kernel(moe_route_kernel, dim3(ceil_blocks(args.tokens, route_warps)), 32 * route_warps, bytes, args,
                         stream);
}

cudaError_t launch_route_and_sort(const RouteArgs& args, const SortArgs& sort, cudaStream_t stream) {
    const int each = 3 * args.count * 4, fit = 32 * 1024 / each, tokens = static_cast<int>(args.tokens);
    const int warps = std::clamp(std::min(fit, tokens), 8, 32);  // at least 8, so that sorting has enough threads
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = 1;
    config.blockDim = static_cast<unsigned>(32 * warps);
    config.dynamicSmemBytes = static_cast<size_t>(warps * each);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = args.overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, moe_route_and_sort_kernel, args, sort);
}

cudaError_t launch_sort(const SortArgs& args, cudaStream_t stream) {
    return launch_kernel(moe_sort_kernel, dim3(static_cast<unsigned>(args.count)), sort_threads, 0, args, stream);
}

cudaError_t launch_weigh(const WeighArgs& args, cudaStream_t stream) {
    return launch_kernel(moe_weigh_kernel, dim3(static_cast<unsigned>(args.tokens * args.top_k)), 256, 0, args, stream);
}

cudaError_t launch_combine(const CombineArgs& args, cudaStream_t stream) {
    if (const cudaError_t code = prefer_shared_memory(moe_combine_kernel)) return code;
    return launch_kernel(moe_combine_kernel, dim3(ceil_blocks(args.width, 256), static_cast<unsigned>(args.tokens)),
                         256, 0, args, stream);
}

}  // namespace nibble::cuda
