// Scans of Mamba-2's backward pass: M[t] = factor M + a[t] b[t]^T over the tokens of a segment, forward or backward in
// time, and out[t] = M[t] v[t]. One thread block per head and segment; a thread holds a row of M in registers; b, v and
// a of eight tokens are in shared memory.
//
//   outputs     y      rows: dimensions, columns: states      a = u   b = B   v = C    forward
//   d_read      dC     rows: states, columns: dimensions      a = B   b = u   v = dy   forward
//   d_written   dB     rows: states, columns: dimensions      a = C   b = dy  v = u    backward
//   d_inputs    du     rows: dimensions, columns: states      a = dy  b = C   v = B    backward
#include "kernels/cuda/primitives/elementwise.cuh"
#include "kernels/cuda/ssm/ssm_backward_launch.h"

namespace nibble::cuda {
namespace {

constexpr int scan_threads = 128, run = 8;  // run: tokens per iteration

enum class Of : uint8_t { u, b, c, dy };

struct Sides {
    Of a, b, v;
    bool backward;
};
__host__ __device__ constexpr Sides sides_of(ScanRows rows) {
    switch (rows) {
        case ScanRows::outputs:
            return {Of::u, Of::b, Of::c, false};
        case ScanRows::d_read:
            return {Of::b, Of::u, Of::dy, false};
        case ScanRows::d_written:
            return {Of::c, Of::dy, Of::u, true};
        default:
            return {Of::dy, Of::c, Of::b, true};
    }
}

// Returns element i of a token's vector; 0 beyond its end.
template <Of Which>
__device__ float element(const MambaBackArgs& a, int64_t token, int head, int i) {
    if constexpr (Which == Of::u || Which == Of::dy) {
        if (i >= a.head_dim) return 0.0f;
        if constexpr (Which == Of::dy) return a.dy[token * a.inner + head * a.head_dim + i];
        return a.dt[token * a.heads + head] * bf16_to_float(a.xbc[token * a.channels + head * a.head_dim + i]);
    } else {
        if (i >= a.state) return 0.0f;
        const int group = head / (a.heads / a.groups) + (Which == Of::c ? a.groups : 0);
        return bf16_to_float(a.xbc[token * a.channels + a.inner + group * a.state + i]);
    }
}

template <ScanRows Rows, int Columns>
__global__ void __launch_bounds__(scan_threads)
    mamba_scan_backward_kernel(const __grid_constant__ MambaBackArgs a, float* out, int rows) {
    constexpr Sides sides = sides_of(Rows);
    __shared__ __align__(16) float b[run][Columns], v[run][Columns];
    __shared__ float own[run][scan_threads], factor[run];
    const StateSegment s = a.list[blockIdx.y];
    const int head = static_cast<int>(blockIdx.x), row = static_cast<int>(threadIdx.x);
    // Returns the token of step i.
    const auto token_at = [&](int i) { return int64_t{s.row} + (sides.backward ? s.rows - 1 - i : i); };
    float m[Columns];
#pragma unroll
    for (int c = 0; c < Columns; ++c) m[c] = 0.0f;
    for (int begin = 0; begin < s.rows; begin += run) {
        const int here = min(run, s.rows - begin);
        __syncthreads();
        for (int i = row; i < here * Columns; i += scan_threads) {
            const int64_t token = token_at(begin + i / Columns);
            b[i / Columns][i % Columns] = element<sides.b>(a, token, head, i % Columns);
            v[i / Columns][i % Columns] = element<sides.v>(a, token, head, i % Columns);
        }
        for (int t = 0; t < here; ++t)
            own[t][row] = row < rows ? element<sides.a>(a, token_at(begin + t), head, row) : 0;
        // Backward in time uses the decay of the next token; M is 0 before the first step.
        if (row < here) {
            const int64_t token = token_at(begin + row) + (sides.backward ? 1 : 0);
            factor[row] = begin + row > 0 ? a.decay[token * a.heads + head] : 0.0f;
        }
        __syncthreads();
        for (int t = 0; t < here; ++t) {
            const float mine = own[t][row], f = factor[t];
            float sum[4] = {};
#pragma unroll
            for (int c = 0; c < Columns; c += 4) {
                const float4 of_b = *reinterpret_cast<const float4*>(&b[t][c]);
                const float4 of_v = *reinterpret_cast<const float4*>(&v[t][c]);
                m[c] = fmaf(mine, of_b.x, f * m[c]), sum[0] = fmaf(m[c], of_v.x, sum[0]);
                m[c + 1] = fmaf(mine, of_b.y, f * m[c + 1]), sum[1] = fmaf(m[c + 1], of_v.y, sum[1]);
                m[c + 2] = fmaf(mine, of_b.z, f * m[c + 2]), sum[2] = fmaf(m[c + 2], of_v.z, sum[2]);
                m[c + 3] = fmaf(mine, of_b.w, f * m[c + 3]), sum[3] = fmaf(m[c + 3], of_v.w, sum[3]);
            }
            if (row < rows)
                out[(token_at(begin + t) * a.heads + head) * rows + row] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
        }
    }
}

template <ScanRows Rows>
cudaError_t launch_rows(const MambaBackArgs& a, float* out, cudaStream_t stream) {
    constexpr bool states = Rows == ScanRows::d_read || Rows == ScanRows::d_written;
    const int rows = states ? a.state : a.head_dim, columns = states ? a.head_dim : a.state;
    const dim3 blocks(static_cast<unsigned>(a.heads), static_cast<unsigned>(a.segments));
    if (columns <= 16)
        mamba_scan_backward_kernel<Rows, 16><<<blocks, scan_threads, 0, stream>>>(a, out, rows);
    else if (columns <= 64)
        mamba_scan_backward_kernel<Rows, 64><<<blocks, scan_threads, 0, stream>>>(a, out, rows);
    else
        mamba_scan_backward_kernel<Rows, 128><<<blocks, scan_threads, 0, stream>>>(a, out, rows);
    return cudaGetLastError();
}

}  // namespace

cudaError_t launch_mamba_scan(const MambaBackArgs& a, ScanRows rows, float* out, cudaStream_t stream) {
    switch (rows) {
        case ScanRows::outputs:
            return launch_rows<ScanRows::outputs>(a, out, stream);
        case ScanRows::d_read:
            return launch_rows<ScanRows::d_read>(a, out, stream);
        case ScanRows::d_written:
            return launch_rows<ScanRows::d_written>(a, out, stream);
        case ScanRows::d_inputs:
            return launch_rows<ScanRows::d_inputs>(a, out, stream);
    }
    return cudaErrorInvalidValue;
}

}  // namespace nibble::cuda
