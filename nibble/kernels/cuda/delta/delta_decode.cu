// A gated delta net between its products for one token of every sequence, as one kernel: the operations and orders of
// delta.cu and delta_rule.cu, so the bits are the same. A thread block has `Columns` columns of a value head. The
// blocks of a key head form a cluster: each convolves q and k of the head itself, they share the histories of q and k
// and the values of a head's norm.
//
// States and histories are read before the previous kernel ends: only earlier steps write them.
#include "kernels/cuda/delta/delta_columns.cuh"

#include <algorithm>

namespace nibble::cuda {
namespace {

constexpr int parts = 4, most_taps = 4, most_cluster = 8, most_value_dim = 256;
constexpr int most_segments = 4;  // with more, the thread blocks do not all run at once

// Key: key_dim, rounded up to a size with a kernel.
template <int Key, int Columns>
__global__ void __launch_bounds__(parts* Columns) delta_decode_kernel(const __grid_constant__ DeltaArgs args) {
    constexpr int threads = parts * Columns, own = Key / parts, quads = Key / 16;
    constexpr int each = (2 * Key + Columns + threads - 1) / threads;           // channels per thread
    __shared__ __align__(16) float unit[2][norm_shared_bytes(Key) / 4];         // q, k as convolved
    __shared__ __align__(16) float keys[2][Key];                                // q, k in the order of key_place()
    __shared__ __align__(16) float row[norm_shared_bytes(most_value_dim) / 4];  // y of the head
    __shared__ float v[Columns], y[Columns], shared_scale;
    __shared__ float2 steps;
    if (args.overlap) overlap_next();
    const int thread = static_cast<int>(threadIdx.x), part = thread % parts;
    const int splits = (args.value_dim + Columns - 1) / Columns, cluster = args.per_key * splits;
    const int key_head = static_cast<int>(blockIdx.x) / cluster, rank = static_cast<int>(blockIdx.x) % cluster;
    const int head = key_head * args.per_key + rank / splits, first = rank % splits * Columns;
    const int column = first + thread / parts, present_columns = min(Columns, args.value_dim - first);
    const StateSegment s = args.list[blockIdx.y];
    float4* const kept =
        s.state && column < args.value_dim
            ? reinterpret_cast<float4*>(s.state + args.history + int64_t{head} * args.padded_key * args.value_dim +
                                        column * 16) +
                  part
            : nullptr;
    const auto is_kept = [&](int quad) { return kept && quad * 16 < args.padded_key; };
    float state[own];
#pragma unroll
    for (int m = 0; m < quads; ++m) {
        const float4 four = is_kept(m) ? kept[int64_t{m} * args.value_dim * 4] : float4{};
        state[4 * m] = four.x, state[4 * m + 1] = four.y, state[4 * m + 2] = four.z, state[4 * m + 3] = four.w;
    }
    // The block's channels: q and k of the key head, then its columns of v.
    const int of_keys = 2 * args.key_dim, channels = of_keys + present_columns;
    const auto channel = [&](int i) {
        if (i >= of_keys) return 2 * args.keys + head * args.value_dim + first + i - of_keys;
        const int of_k = i >= args.key_dim;
        return of_k * args.keys + key_head * args.key_dim + i - of_k * args.key_dim;
    };
    float taps[each][most_taps], weight[each][most_taps];
#pragma unroll
    for (int k = 0; k < each; ++k) {
        const int at = channel(min(thread + k * threads, channels - 1));
#pragma unroll
        for (int j = 0; j < most_taps; ++j) {
            weight[k][j] = j < args.conv ? args.conv_weight[j * args.channels + at] : 0.0f;
            taps[k][j] = s.state && j < args.conv - 1 ? s.state[j * args.channels + at] : 0.0f;
        }
    }
    if (args.overlap) wait_for_previous();

    const float* projected = args.projected + s.row * args.stride;
    float fresh[each];
#pragma unroll
    for (int k = 0; k < each; ++k)
        fresh[k] = rounded(projected[channel_column(args, channel(min(thread + k * threads, channels - 1)))]);
    const float z =
        thread < present_columns ? rounded(projected[z_column(args, head * args.value_dim + first + thread)]) : 0.0f;
    if (thread == threads - 1) steps = delta_steps(args, args.gates + s.row * args.gates_stride, head);
#pragma unroll
    for (int k = 0; k < each; ++k) {
        float acc = 0.0f;
#pragma unroll
        for (int j = 0; j < most_taps; ++j)
            if (j < args.conv) acc = fmaf(weight[k][j], j == args.conv - 1 ? fresh[k] : taps[k][j], acc);
        const float value = rounded(silu(acc));
        const int i = thread + k * threads, of_k = i >= args.key_dim;
        if (i < of_keys)
            *lane_place(unit[of_k], lane_pitch(args.key_dim), i - of_k * args.key_dim) = value;
        else if (i < channels)
            v[i - of_keys] = value;
    }
    __syncthreads();
    if (const int of_k = thread / 32; of_k < 2) {
        const float r = norm_scale(unit[of_k], args.key_dim, args.unit_eps), scale = of_k ? args.k_scale : args.q_scale;
        for (int i = thread % 32; i < Key; i += 32)
            keys[of_k][key_place(i)] =
                i < args.key_dim ? (*lane_place(unit[of_k], lane_pitch(args.key_dim), i) * r) * scale : 0.0f;
    }
    __syncthreads();
    const auto over_keys = [&](int of_k, auto&& use) {
#pragma unroll
        for (int m = 0; m < quads; ++m) {
            const float4 four = reinterpret_cast<const float4*>(keys[of_k])[m * parts + part];
            use(state[4 * m], four.x), use(state[4 * m + 1], four.y);
            use(state[4 * m + 2], four.z), use(state[4 * m + 3], four.w);
        }
    };
    float a = 0.0f, b = 0.0f;
    over_keys(1, [&](float& x, float k) {
        x = steps.x * x;
        a = fmaf(k, x, a);
    });
    const float read = over_parts(a);
    const float u = steps.y * ((column < args.value_dim ? v[thread / parts] : 0.0f) - read);
    over_keys(1, [&](float& x, float k) { x = fmaf(k, u, x); });
    over_keys(0, [&](float& x, float q) { b = fmaf(q, x, b); });
    const float sum = over_parts(b);
    if (part == 0) y[thread / parts] = rounded(sum);

    cluster_sync();  // y of all blocks is there, and all reads of this token's history are done
    for (int i = thread; i < args.value_dim; i += threads)
        *lane_place(row, lane_pitch(args.value_dim), i) =
            cluster_float(shared_address(y + i % Columns), static_cast<uint32_t>(rank - rank % splits + i / Columns));
    __syncthreads();
    cluster_arrive();
    if (thread < 32) {
        const float r = norm_scale(row, args.value_dim, args.eps);
        if (thread == 0) shared_scale = r;
    }
    __syncthreads();
    if (thread < present_columns) {
        const float normed = rounded((y[thread] * shared_scale) * args.norm[first + thread]);
        args.out[int64_t{s.row} * args.inner + head * args.value_dim + first + thread] =
            bf16_from_float(silu(z) * normed);
    }
    if (s.state) {
#pragma unroll
        for (int k = 0; k < each; ++k) {
            const int i = thread + k * threads;
            const bool mine = i < of_keys ? i * cluster / of_keys == rank : i < channels;
            if (!mine) continue;
            const int at = channel(i);
#pragma unroll
            for (int j = 0; j < most_taps - 1; ++j)
                if (j < args.conv - 1)
                    s.state[j * args.channels + at] = j + 1 == args.conv - 1 ? fresh[k] : taps[k][j + 1];
        }
    }
#pragma unroll
    for (int m = 0; m < quads; ++m)
        if (is_kept(m))
            kept[int64_t{m} * args.value_dim * 4] = {state[4 * m], state[4 * m + 1], state[4 * m + 2],
                                                     state[4 * m + 3]};
    cluster_wait();  // keeps shared memory alive until all blocks have read it
}

// Returns the columns of a thread block; 0: a cluster of the blocks of a key head would be too large.
int columns_of(const DeltaArgs& args) {
    for (const int columns : {32, 64})
        if (args.per_key * ((args.value_dim + columns - 1) / columns) <= most_cluster) return columns;
    return 0;
}

template <int Key, int Columns>
cudaError_t launch(const DeltaArgs& args, cudaStream_t stream) {
    const int cluster = args.per_key * ((args.value_dim + Columns - 1) / Columns);
    if (const cudaError_t code = prefer_shared_memory(delta_decode_kernel<Key, Columns>)) return code;
    return launch_kernel(delta_decode_kernel<Key, Columns>,
                         dim3(static_cast<unsigned>(args.key_heads * cluster), static_cast<unsigned>(args.segments)),
                         parts * Columns, 0, args, stream, cluster);
}

template <int Key>
cudaError_t launch(const DeltaArgs& args, cudaStream_t stream) {
    return columns_of(args) == 32 ? launch<Key, 32>(args, stream) : launch<Key, 64>(args, stream);
}

}  // namespace

bool delta_decodes(const DeltaArgs& args) {
    return args.longest == 1 && !args.by_channel && args.segments <= most_segments && args.conv <= most_taps &&
           args.key_dim <= 128 && columns_of(args) > 0;
}

cudaError_t launch_delta_decode(const DeltaArgs& args, cudaStream_t stream) {
    if (args.key_dim <= 16) return launch<16>(args, stream);
    if (args.key_dim <= 64) return launch<64>(args, stream);
    return launch<128>(args, stream);
}

}  // namespace nibble::cuda
