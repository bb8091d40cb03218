// AdamW with BF16 states.
#include "kernels/cuda/optimizer/optimizer_launch.h"
#include "kernels/cuda/optimizer/state_draws.cuh"

namespace nibble::cuda {
namespace {

constexpr int threads = 256;

// Returns the last parameter that begins at or before `at`.
__device__ int owner_of(const FlatOwners& owners, int64_t at) {
    int low = 0, high = owners.count - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (owners.begin[middle] <= at)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

// One thread per four elements, which may belong to two parameters.
__global__ void __launch_bounds__(threads) adamw_bf16_states_kernel(const __grid_constant__ NarrowAdamW n) {
    const AdamW& a = n.plain;
    const float clip = *a.clip;
    const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
    if (isnan(clip) || 4 * i >= a.count) return;
    const float4 gradient = reinterpret_cast<const float4*>(a.gradient)[i];
    float4 masters = reinterpret_cast<float4*>(a.master)[i];
    ushort4 ms = reinterpret_cast<ushort4*>(n.m)[i], vs = reinterpret_cast<ushort4*>(n.v)[i];
    const int64_t first = n.first + 4 * i;
    int owner = owner_of(n.owners, first);
    ElementBits bits(n.draws);
    const auto update = [&](float& master, uint16_t& m, uint16_t& v, float g, int64_t at) {
        while (owner + 1 < n.owners.count && n.owners.begin[owner + 1] <= at) ++owner;
        g = clip * g;
        float x = master;
        if (a.decay) x = x * a.keep;
        const float old_m = bf16_to_float(m), old_v = bf16_to_float(v);
        const float new_m = old_m + a.rest1 * (g - old_m);
        const float new_v = a.beta2 * old_v + a.rest2 * (g * g);
        master = x - a.rate * (new_m / (sqrtf(new_v) / a.root + a.epsilon));
        const uint32_t random = bits(n.owners.id[owner], at - n.owners.begin[owner]);
        m = rounded_by_chance(new_m, random);
        v = rounded_by_chance(new_v, random >> 16);
    };
    update(masters.x, ms.x, vs.x, gradient.x, first);
    update(masters.y, ms.y, vs.y, gradient.y, first + 1);
    update(masters.z, ms.z, vs.z, gradient.z, first + 2);
    update(masters.w, ms.w, vs.w, gradient.w, first + 3);
    reinterpret_cast<float4*>(a.master)[i] = masters;
    reinterpret_cast<ushort4*>(n.m)[i] = ms;
    reinterpret_cast<ushort4*>(n.v)[i] = vs;
    reinterpret_cast<uint2*>(a.published)[i] = {pair_of(masters.x, masters.y), pair_of(masters.z, masters.w)};
}

}  // namespace

cudaError_t launch_narrow_adamw(const NarrowAdamW& a, cudaStream_t stream) {
    const auto blocks = static_cast<unsigned>((a.plain.count / 4 + threads - 1) / threads);
    adamw_bf16_states_kernel<<<blocks, threads, 0, stream>>>(a);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
