// The backward pass of the rotary embedding and the head norms.
#include "kernels/cuda/elementwise/elementwise_backward_launch.h"
#include "kernels/cuda/primitives/rope_team.cuh"

namespace nibble::cuda {
namespace {

// One team per token and head of q or k. A thread block processes adjacent items one after the other and writes parts
// [q, k][block][dim] of the norms' gradients, if requested.
template <class Team, bool Norms>
__global__ void __launch_bounds__(rope_threads)
    rope_backward_kernel(const __grid_constant__ RopeRows r, uint16_t* d_qkv, float* parts) {
    constexpr int V = Team::v, columns = 2 * V * Team::lanes * Team::times;
    const RotaryArgs rotary{r.positions, r.cos, r.sin, r.rope_dims, r.interleaved};
    const auto heads = static_cast<uint32_t>(r.q_heads + r.kv_heads);
    const int all = r.q_heads + 2 * r.kv_heads, team = static_cast<int>(threadIdx.x) / Team::lanes;
    const int64_t items = r.tokens * heads, each = (items + gridDim.x - 1) / gridDim.x, first = blockIdx.x * each;
    const int64_t last = min(first + each, items);
    float of_norm[2][Norms ? Team::times : 1][2 * V] = {};  // gradients of q's norm and of k's norm
    // Whole warps run every iteration: lanes without an item repeat the last item and discard the result.
    for (int64_t turn = first + team / (32 / Team::lanes) * (32 / Team::lanes); turn < last; turn += Team::in_block) {
        const int64_t wanted = turn + team % (32 / Team::lanes);
        const bool present = wanted < last;
        const auto item = static_cast<uint32_t>(present ? wanted : last - 1);
        const int64_t token = item / heads;
        const int head = static_cast<int>(item % heads);
        const int64_t at = (token * all + head) * r.dim;
        const float* norm = head < r.q_heads ? r.q_norm : r.k_norm;
        if constexpr (Norms) {
            const auto* qkv = reinterpret_cast<const uint16_t*>(r.qkv) + at;
            float g[Team::times][2 * V], x[Team::times][2 * V], squares = 0.0f, dot = 0.0f;
            Team::visit(r.dim, [&](int k, int p) {
                RopePart<V> value(rotary, p), gradient(rotary, p);
                value.load(qkv);
                gradient.load(d_qkv + at);
                gradient.turn(rotary, token, -1.0f);
                value.visit([&](int, float& v, int e) { x[k][e] = v, squares = fmaf(v, v, squares); });
                gradient.visit([&](int column, float& v, int e) {
                    g[k][e] = v;
                    dot = fmaf(norm ? v * norm[column] : v, x[k][e], dot);
                });
            });
            squares = Team::sum(squares), dot = Team::sum(dot);
            if (!present) continue;
            const float dim = static_cast<float>(r.dim), scale = norm ? 1.0f / sqrtf(squares / dim + r.eps) : 1.0f;
            const float c = norm ? dot / dim * scale * scale : 0.0f;
            Team::visit(r.dim, [&](int k, int p) {
                RopePart<V> to(rotary, p);
                to.visit([&](int column, float& v, int e) {
                    const float part = g[k][e] * (x[k][e] * scale);
                    of_norm[0][k][e] += head < r.q_heads ? part : 0.0f;
                    of_norm[1][k][e] += head < r.q_heads ? 0.0f : part;
                    v = scale * ((norm ? g[k][e] * norm[column] : g[k][e]) - x[k][e] * c);
                });
                to.store(d_qkv + at);
            });
        } else if (present) {
            Team::visit(r.dim, [&](int, int p) {
                RopePart<V> part(rotary, p);
                part.load(d_qkv + at);
                part.turn(rotary, token, -1.0f);
                part.store(d_qkv + at);
            });
        }
    }
    if constexpr (Norms) {
        __shared__ float of_team[Team::in_block][columns];
        if (!parts) return;
        for (int which = 0; which < 2; ++which) {
            Team::visit(r.dim, [&](int k, int p) {
                RopePart<V>(rotary, p).visit(
                    [&](int column, float&, int e) { of_team[team][column] = of_norm[which][k][e]; });
            });
            __syncthreads();
            for (int j = static_cast<int>(threadIdx.x); j < r.dim; j += rope_threads) {
                float sum = 0.0f;
                for (int t = 0; t < Team::in_block; ++t) sum += of_team[t][j];
                parts[(int64_t{which} * gridDim.x + blockIdx.x) * r.dim + j] = sum;
            }
            __syncthreads();
        }
    }
}

}  // namespace

cudaError_t launch_rope_backward(const RopeRows& r, std::byte* d_qkv, float* dq_norm, float* dk_norm,
                                 std::byte* workspace, cudaStream_t stream) {
    auto* parts = dq_norm || dk_norm ? reinterpret_cast<float*>(workspace) : nullptr;
    auto* d = reinterpret_cast<uint16_t*>(d_qkv);
    const int64_t items = r.tokens * (r.q_heads + r.kv_heads);
    const cudaError_t code = with_rope_team(r.dim, r.rope_dims, [&]<class Team>(Team) {
        const unsigned blocks = parts ? sum_parts : ceil_blocks(items, Team::in_block);
        if (r.q_norm || r.k_norm)
            rope_backward_kernel<Team, true><<<blocks, rope_threads, 0, stream>>>(r, d, parts);
        else
            rope_backward_kernel<Team, false><<<blocks, rope_threads, 0, stream>>>(r, d, nullptr);
        return cudaGetLastError();
    });
    if (code != cudaSuccess) return code;
    if (dq_norm)
        if (const cudaError_t sum = launch_sum_parts(parts, sum_parts, r.dim, dq_norm, stream)) return sum;
    if (!dk_norm) return cudaSuccess;
    return launch_sum_parts(parts + int64_t{sum_parts} * r.dim, sum_parts, r.dim, dk_norm, stream);
}

}  // namespace nibble::cuda
