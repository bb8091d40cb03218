// Rows of heads for the backward pass of latent attention, and the conversion of their gradients to those of the
// products.
#include "kernels/cuda/attention/latent_backward_launch.h"
#include "kernels/cuda/primitives/elementwise.cuh"
#include "kernels/cuda/primitives/rope.cuh"

namespace nibble::cuda {
namespace {

constexpr int latent_warps = 4, latent_threads = 128;

__device__ const uint16_t* numbers(const std::byte* p) { return reinterpret_cast<const uint16_t*>(p); }
__device__ uint16_t* numbers(std::byte* p) { return reinterpret_cast<uint16_t*>(p); }

// One warp per token and head.
__global__ void __launch_bounds__(32 * latent_warps)
    latent_rows_kernel(const __grid_constant__ LatentShape s, const __grid_constant__ LatentRows r) {
    const int64_t item = int64_t{blockIdx.x} * latent_warps + threadIdx.x / 32;
    if (item >= s.tokens * s.heads) return;
    const int64_t token = item / s.heads;
    const int lane = static_cast<int>(threadIdx.x) % 32, nope = s.nope_dim, dim = nope + s.rope_dims;
    const RotaryArgs rotary{s.positions, s.cos, s.sin, s.rope_dims, s.interleaved};
    const uint16_t* kv = numbers(r.kv) + item * (nope + s.v_dim);
    const uint16_t* shared = numbers(r.shared) + token * s.rope_dims;
    const auto key = [&](int d) { return bf16_to_float(d < nope ? kv[d] : shared[d - nope]); };
    const auto widened = [&](const std::byte* from, int d) {
        return d < s.v_dim ? numbers(from)[item * s.v_dim + d] : uint16_t{0};
    };
    for (int d = lane; d < dim; d += 32) {
        const int64_t at = item * dim + d;
        numbers(r.k)[at] = rotated(rotary, nope, token, d, key);
        numbers(r.v)[at] = d < s.v_dim ? kv[nope + d] : uint16_t{0};
        numbers(r.wide_o)[at] = widened(r.o, d);
        numbers(r.wide_d_o)[at] = widened(r.d_o, d);
    }
}

struct Pair {
    float first, second;
};

// Rotates by the negative angle.
__device__ Pair turned_back(const LatentShape& s, int64_t token, int pair, Pair p) {
    const int64_t angle = int64_t{s.positions[token]} * (s.rope_dims / 2) + pair;
    const float c = s.cos[angle], sin = s.sin[angle];
    return {fmaf(p.first, c, p.second * sin), fmaf(p.second, c, -(p.first * sin))};
}

// One thread block per token.
__global__ void __launch_bounds__(latent_threads)
    latent_backward_kernel(const __grid_constant__ LatentShape s, const __grid_constant__ LatentBackward b) {
    const int64_t token = blockIdx.x;
    const int thread = static_cast<int>(threadIdx.x), nope = s.nope_dim, dim = nope + s.rope_dims,
              half = s.rope_dims / 2;
    const int apart = s.interleaved ? 1 : half, step = s.interleaved ? 2 : 1, both = nope + s.v_dim;
    uint16_t* dq = numbers(b.dq) + token * s.heads * dim;
    const uint16_t *dk = numbers(b.dk) + token * s.heads * dim, *dv = numbers(b.dv) + token * s.heads * dim;
    for (int i = thread; i < s.heads * half; i += latent_threads) {
        const int pair = i % half, at = i / half * dim + nope + step * pair;
        const Pair p = turned_back(s, token, pair, {bf16_to_float(dq[at]), bf16_to_float(dq[at + apart])});
        dq[at] = bf16_from_float(p.first);
        dq[at + apart] = bf16_from_float(p.second);
    }
    uint16_t* d_kv = numbers(b.d_kv) + token * s.heads * both;
    for (int i = thread; i < s.heads * both; i += latent_threads) {
        const int head = i / both, d = i % both;
        d_kv[i] = d < nope ? dk[head * dim + d] : dv[head * dim + d - nope];
    }
    uint16_t* d_shared = numbers(b.d_shared) + token * s.rope_dims;
    for (int pair = thread; pair < half; pair += latent_threads) {
        Pair sum{0.0f, 0.0f};
        for (int head = 0; head < s.heads; ++head) {
            const int at = head * dim + nope + step * pair;
            sum.first += bf16_to_float(dk[at]);
            sum.second += bf16_to_float(dk[at + apart]);
        }
        const Pair p = turned_back(s, token, pair, sum);
        d_shared[step * pair] = bf16_from_float(p.first);
        d_shared[step * pair + apart] = bf16_from_float(p.second);
    }
}

__global__ void __launch_bounds__(latent_threads) latent_join_kernel(const __grid_constant__ LatentJoin j) {
    const int64_t width = j.q_width + j.c_width + j.shared_width;
    const int64_t i = int64_t{blockIdx.x} * latent_threads + threadIdx.x;
    if (i >= j.tokens * width) return;
    const int64_t token = i / width, column = i % width;
    uint16_t value;
    if (column < j.q_width) {
        const int64_t at = token * j.q_width + column;
        value = j.q ? bf16_from_float(j.q[at]) : numbers(j.q_rows)[at];
    } else if (column < j.q_width + j.c_width) {
        value = bf16_from_float(j.c[token * j.c_width + column - j.q_width]);
    } else {
        value = numbers(j.shared)[token * j.shared_width + column - j.q_width - j.c_width];
    }
    numbers(j.out)[i] = value;
}

}  // namespace

cudaError_t launch_latent_rows(const LatentShape& s, const LatentRows& r, cudaStream_t stream) {
    latent_rows_kernel<<<ceil_blocks(s.tokens * s.heads, latent_warps), 32 * latent_warps, 0, stream>>>(s, r);
    return cudaGetLastError();
}

cudaError_t launch_latent_backward(const LatentShape& s, const LatentBackward& b, cudaStream_t stream) {
    latent_backward_kernel<<<static_cast<unsigned>(s.tokens), latent_threads, 0, stream>>>(s, b);
    return cudaGetLastError();
}

cudaError_t launch_latent_join(const LatentJoin& j, cudaStream_t stream) {
    const int64_t width = j.q_width + j.c_width + j.shared_width;
    latent_join_kernel<<<ceil_blocks(j.tokens * width, latent_threads), latent_threads, 0, stream>>>(j);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
