// Muon: momentum, orthogonalization of the direction by five Newton-Schulz iterations, the update. An element of a
// product is one FP32 chain over the reduction, ascending. A = X X^T is therefore exactly symmetric, and results do not
// depend on the launch.
#include "kernels/cuda/optimizer/optimizer_launch.h"
#include "kernels/cuda/optimizer/state_draws.cuh"
#include "kernels/cuda/primitives/block_sum.cuh"

namespace nibble::cuda {
namespace {

constexpr int threads = 256;
constexpr int tile = 128, depth = 16, pitch = tile + 4;

// Computes one element per thread: g + momentum m', with m' = momentum m + g.
__global__ void __launch_bounds__(threads) muon_direction_kernel(const __grid_constant__ Muon u, float* direction) {
    const float clip = *u.clip;
    const int64_t group = int64_t{blockIdx.x} * threads + threadIdx.x;
    if (4 * group >= u.rows * u.cols) return;
    ElementBits bits(u.draws);
    for (int64_t j = 4 * group; j < 4 * group + 4; ++j) {
        const float g = clip * u.gradient[j], old = u.m ? u.m[j] : bf16_to_float(u.narrow_m[j]);
        const float next = u.momentum * old + g;
        direction[j] = g + u.momentum * next;
        if (isnan(clip)) continue;
        if (u.m)
            u.m[j] = next;
        else
            u.narrow_m[j] = rounded_by_chance(next, bits(u.id, j));
    }
}

// One block per section of `each` adjacent elements.
__global__ void __launch_bounds__(threads)
    muon_section_kernel(const float* x, int64_t count, int64_t each, double* parts) {
    const int64_t begin = blockIdx.x * each, end = min(count, begin + each);
    double sum = 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += threads) sum = fma(double{x[i]}, double{x[i]}, sum);
    sum = block_sum<threads>(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(threads) muon_scale_factor_kernel(const double* parts, int count, float* scale) {
    double sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) sum += parts[i];
    sum = block_sum<threads>(sum);
    if (threadIdx.x == 0) *scale = static_cast<float>(1 / (sqrt(sum) + 1e-7));
}

// to [r, c] = scale * from. `from` is [rows, cols], transposed if there are more rows than columns.
__global__ void muon_scale_kernel(const float* from, int64_t r, int64_t c, bool turned, const float* scale, float* to) {
    __shared__ float square[32][33];
    const int64_t column = int64_t{blockIdx.x} * 32, row = int64_t{blockIdx.y} * 32;
    for (int i = static_cast<int>(threadIdx.y); i < 32; i += 8) {
        const int64_t y = turned ? column + i : row + i, x = (turned ? row : column) + threadIdx.x;
        const int64_t height = turned ? c : r, width = turned ? r : c;
        if (y < height && x < width) square[i][threadIdx.x] = from[y * width + x];
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.y); i < 32; i += 8)
        if (row + i < r && column + threadIdx.x < c)
            to[(row + i) * c + column + threadIdx.x] =
                *scale * (turned ? square[threadIdx.x][i] : square[i][threadIdx.x]);
}

struct Gemm {
    const float* a = nullptr;  // [m, k]
    const float* b = nullptr;  // [n, k], or [k, n] with `down`
    float* out = nullptr;      // [m, n] = fresh * (a b) + old * more
    const float* more = nullptr;
    float fresh = 1, old = 0;
    int64_t m = 0, n = 0, k = 0;
};

// A block of 16 x 16 threads computes a tile of 128 x 128; each thread has four times 4 x 4 elements.
template <bool down>
__global__ void __launch_bounds__(threads) muon_gemm_f32_kernel(const __grid_constant__ Gemm g) {
    __shared__ __align__(16) float left[depth][pitch], right[depth][pitch];
    const int thread = static_cast<int>(threadIdx.x), ty = thread / 16, tx = thread % 16;
    const int64_t row = int64_t{blockIdx.y} * tile, column = int64_t{blockIdx.x} * tile;
    float sum[8][8] = {};
    for (int64_t at = 0; at < g.k; at += depth) {
#pragma unroll
        for (int j = 0; j < tile * depth / threads; ++j) {
            const int i = thread + j * threads, outer = i / depth, inner = i % depth;
            const bool inside = row + outer < g.m && at + inner < g.k;
            left[inner][outer] = inside ? g.a[(row + outer) * g.k + at + inner] : 0.0f;
            if constexpr (down) {
                const int k = i / tile, x = i % tile;
                right[k][x] = at + k < g.k && column + x < g.n ? g.b[(at + k) * g.n + column + x] : 0.0f;
            } else {
                const bool there = column + outer < g.n && at + inner < g.k;
                right[inner][outer] = there ? g.b[(column + outer) * g.k + at + inner] : 0.0f;
            }
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < depth; ++k) {
            float x[8], y[8];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float4 p = *reinterpret_cast<const float4*>(&left[k][half * 64 + ty * 4]);
                const float4 q = *reinterpret_cast<const float4*>(&right[k][half * 64 + tx * 4]);
                x[4 * half] = p.x, x[4 * half + 1] = p.y, x[4 * half + 2] = p.z, x[4 * half + 3] = p.w;
                y[4 * half] = q.x, y[4 * half + 1] = q.y, y[4 * half + 2] = q.z, y[4 * half + 3] = q.w;
            }
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < 8; ++j) sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int64_t y = row + i / 4 * 64 + ty * 4 + i % 4, x = column + j / 4 * 64 + tx * 4 + j % 4;
            if (y >= g.m || x >= g.n) continue;
            const float fresh = g.fresh * sum[i][j];
            g.out[y * g.n + x] = g.more ? g.old * g.more[y * g.n + x] + fresh : fresh;
        }
}

template <bool down>
void launch_gemm(const Gemm& g, cudaStream_t stream) {
    const dim3 blocks(static_cast<unsigned>((g.n + tile - 1) / tile), static_cast<unsigned>((g.m + tile - 1) / tile));
    muon_gemm_f32_kernel<down><<<blocks, threads, 0, stream>>>(g);
}

// u is [r, c], transposed if the matrix has more rows than columns.
__global__ void muon_apply_kernel(const __grid_constant__ Muon u, const float* direction, bool turned) {
    if (isnan(*u.clip)) return;
    const int64_t row = int64_t{blockIdx.y} * 32, column = int64_t{blockIdx.x} * 32;
    __shared__ float square[32][33];
    const int64_t height = turned ? u.cols : u.rows, width = turned ? u.rows : u.cols;
    for (int i = static_cast<int>(threadIdx.y); i < 32; i += 8) {
        const int64_t y = (turned ? column : row) + i, x = (turned ? row : column) + threadIdx.x;
        if (y < height && x < width) square[i][threadIdx.x] = direction[y * width + x];
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.y); i < 32; i += 8) {
        const int64_t y = row + i, x = column + threadIdx.x;
        if (y >= u.rows || x >= u.cols) continue;
        const float step = turned ? square[threadIdx.x][i] : square[i][threadIdx.x];
        float& w = u.master[y * u.cols + x];
        w = w * u.keep - u.rate * step;
        reinterpret_cast<uint16_t*>(u.published)[y * u.cols + x] = bf16_from_float(w);
    }
}

dim3 squares_of(int64_t rows, int64_t cols) {
    return {static_cast<unsigned>((cols + 31) / 32), static_cast<unsigned>((rows + 31) / 32)};
}

}  // namespace

cudaError_t launch_muon_direction(const Muon& u, cudaStream_t stream) {
    const MuonWorkspace w(u.rows, u.cols);
    auto* at = reinterpret_cast<float*>(u.workspace);
    const int64_t count = u.rows * u.cols, each = (count + w.muon_sections - 1) / w.muon_sections;
    const auto sections = static_cast<int>((count + each - 1) / each);
    auto* squares = reinterpret_cast<double*>(at + w.squares);
    auto* scale = reinterpret_cast<float*>(squares + w.muon_sections);
    // Writes to `next`, from which X is computed.
    const auto blocks = static_cast<unsigned>((count / 4 + threads - 1) / threads);
    muon_direction_kernel<<<blocks, threads, 0, stream>>>(u, at + w.next);
    muon_section_kernel<<<static_cast<unsigned>(sections), threads, 0, stream>>>(at + w.next, count, each, squares);
    muon_scale_factor_kernel<<<1, threads, 0, stream>>>(squares, sections, scale);
    muon_scale_kernel<<<squares_of(w.r, w.c), dim3(32, 8), 0, stream>>>(at + w.next, w.r, w.c, u.rows > u.cols, scale,
                                                                        at + w.direction);
    return cudaGetLastError();
}

cudaError_t launch_muon_rounds(const Muon& u, cudaStream_t stream) {
    const MuonWorkspace w(u.rows, u.cols);
    auto* at = reinterpret_cast<float*>(u.workspace);
    float *x = at + w.direction, *next = at + w.next, *square = at + w.square, *polynomial = at + w.polynomial;
    for (int round = 0; round < 5; ++round) {
        launch_gemm<false>({.a = x, .b = x, .out = square, .m = w.r, .n = w.r, .k = w.c}, stream);
        launch_gemm<false>({.a = square,
                            .b = square,
                            .out = polynomial,
                            .more = square,
                            .fresh = 2.0315f,
                            .old = -4.7750f,
                            .m = w.r,
                            .n = w.r,
                            .k = w.r},
                           stream);
        launch_gemm<true>(
            {.a = polynomial, .b = x, .out = next, .more = x, .old = 3.4445f, .m = w.r, .n = w.c, .k = w.r}, stream);
        float* const old = x;
        x = next, next = old;
    }
    return cudaGetLastError();
}

// After five iterations the result is in `next`.
cudaError_t launch_muon_apply(const Muon& u, cudaStream_t stream) {
    const MuonWorkspace w(u.rows, u.cols);
    const float* at = reinterpret_cast<const float*>(u.workspace);
    muon_apply_kernel<<<squares_of(u.rows, u.cols), dim3(32, 8), 0, stream>>>(u, at + w.next, u.rows > u.cols);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
