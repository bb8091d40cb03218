// Values of training's operands: first the largest magnitude (of rotated numbers if they are rotated), then the values.
// Both kernels rotate; storing rotated numbers between them would cost one more write and read.
#include "kernels/cuda/quantize/cast_rounding.cuh"

namespace nibble::cuda {
namespace {

// A thread block's tile. The search for the largest magnitude goes from the last rows, which the previous kernel wrote
// most recently, to the first, where the value kernel starts: these are still in the L2.
enum class Order : uint8_t { last_first, first_first };
struct Tile {
    int64_t row, col;
    __device__ explicit Tile(Order order)
        : row(static_cast<int64_t>(order == Order::last_first ? gridDim.y - 1 - blockIdx.y : blockIdx.y) * cast_rows),
          col(static_cast<int64_t>(blockIdx.x) * cast_cols) {}
};
dim3 tiles_of(const CastArgs& a) { return {ceil_blocks(a.cols, cast_cols), ceil_blocks(a.rows, cast_rows)}; }

// Calls each(pair, row, col) for this thread's blocks of L in rows; Batch blocks are loaded together.
template <int L, int Batch, class Each>
__device__ void each_row_block(const CastArgs& a, const Tile& tile, const Each& each) {
    constexpr int across = cast_cols / L, down = cast_threads / across;
    const int64_t col = tile.col + static_cast<int64_t>(threadIdx.x % across) * L;
    if (col >= a.cols) return;
#pragma unroll 1
    for (int i = 0; i < cast_each / L; i += Batch) {
        const int64_t row = tile.row + i * down + threadIdx.x / across;
        uint32_t pair[Batch][L / 2];
#pragma unroll
        for (int b = 0; b < Batch; ++b)
            if (row + b * down < a.rows) load_row<L>(a, row + b * down, col, pair[b]);
#pragma unroll
        for (int b = 0; b < Batch; ++b) {
            if (row + b * down >= a.rows) return;
            scale_row<L>(a, row + b * down, pair[b]);
            each(pair[b], row + b * down, col);
        }
    }
}
// Row and column of this thread's columns of L rows.
template <int L>
struct ColumnPlace {
    int64_t row, col;
    __device__ explicit ColumnPlace(const Tile& tile) {
        constexpr int width = cast_each / L, across = cast_cols / width;
        col = tile.col + static_cast<int64_t>(threadIdx.x % across) * width;
        row = tile.row + static_cast<int64_t>(threadIdx.x / across) * L;
    }
};

// ---- The largest magnitude ----

enum class Turned : uint8_t { none, rows, columns };

// Plain: also writes the largest magnitude of the unrotated numbers to `plain`.
template <Turned Along, bool Plain>
__global__ void __launch_bounds__(cast_threads) cast_amax_kernel(const __grid_constant__ CastArgs a, float* plain) {
    const Tile tile(Order::last_first);
    float m = 0.0f;
    if constexpr (Along == Turned::columns) {
        const ColumnPlace<16> at(tile);
        ColumnPairs<16> w;
        load_columns<16>(a, at.row, at.col, w);
        if constexpr (Plain) {
            uint32_t most = 0;
#pragma unroll
            for (const auto& pairs : w)
#pragma unroll
                for (const uint32_t p : pairs) most = larger_of(most, p);
            raise<cast_threads>(plain, larger_half(most));
        }
#pragma unroll
        for (int c = 0; c < 2 * column_pairs<16>; ++c) {
            float z[16];
            numbers_of_column<16>(w, c, z);
            m = fmaxf(m, rotated_largest(z));
        }
    } else {
        each_row_block<16, 4>(a, tile, [&](uint32_t(&pair)[8], int64_t, int64_t) {
            if constexpr (Along == Turned::rows) {
                float z[16];
                numbers_of<16>(pair, z);
                m = fmaxf(m, rotated_largest(z));
            } else {
                uint32_t most = 0;
#pragma unroll
                for (const uint32_t p : pair) most = larger_of(most, p);
                m = fmaxf(m, larger_half(most));
            }
        });
    }
    raise<cast_threads>(a.amax, m);
}

// For rows with one scale each.
__global__ void __launch_bounds__(cast_threads) cast_row_amax_kernel(const __grid_constant__ CastArgs a) {
    float m = 0.0f;
    for (int64_t col = threadIdx.x * 16; col < a.cols; col += cast_threads * 16) {
        uint32_t pair[8];
        load_row<16>(a, blockIdx.x, col, pair);
        scale_row<16>(a, blockIdx.x, pair);
        uint32_t most = 0;
#pragma unroll
        for (const uint32_t p : pair) most = larger_of(most, p);
        m = fmaxf(m, larger_half(most));
    }
    m = block_max<cast_threads>(m);
    if (threadIdx.x == 0) a.scale[blockIdx.x] = m;
}

// ---- Values ----

// Writes the numbers of the tensor, or of the tile's rows, that accompany the values.
__device__ void store_numbers(const CastArgs& a, const Tile& tile, float number) {
    if (tile.col > 0) return;
    const int64_t row = tile.row + threadIdx.x;
    if (row == 0 && !a.rule.row_scaled) {
        if (a.scale) *a.scale = number;
        if (a.seen) *a.seen = fmaxf(*a.seen, *a.amax);
    }
    if (a.product.other && threadIdx.x < cast_rows && row < a.product.count)
        a.product.out[row] = (a.rule.row_scaled ? a.scale[row] : number) * a.product.other[0] * a.product.constant;
}

template <class Rounding, bool Rotate, int Batch>
__device__ void row_values(const Cast& cast, const Tile& tile) {
    constexpr int L = Rounding::length;
    const CastArgs& a = cast.a;
    const Rounding rounding(a);
    store_numbers(a, tile, rounding.number);
    each_row_block<L, Batch>(a, tile, [&](uint32_t(&pair)[L / 2], int64_t row, int64_t col) {
        float z[L];
        numbers_of<L>(pair, z);
        if constexpr (Rotate) rotate(z);
        const float by = rounding(cast, z, row, col / L);
#pragma unroll
        for (int i = 0; i < L / 2; ++i) pair[i] = Rounding::pair(z[2 * i], z[2 * i + 1], pair_of(by, by));
        store_row<L>(a, row, col, pair);
    });
}
template <class Rounding, bool Rotate>
__device__ void column_values(const Cast& cast, const Tile& tile) {
    constexpr int L = Rounding::length;
    const CastArgs& a = cast.a;
    const ColumnPlace<L> at(tile);
    const int64_t end = cast_padded(a.rows, a.rule);
    ColumnPairs<L> w;
    load_columns<L>(a, at.row, at.col, w);
    const Rounding rounding(a);
    store_numbers(a, tile, rounding.number);
    if (at.col >= a.cols || at.row >= end) return;
#pragma unroll
    for (int k = 0; k < column_pairs<L>; ++k) {
        float z[2][L], by[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            numbers_of_column<L>(w, 2 * k + h, z[h]);
            if constexpr (Rotate) rotate(z[h]);
            by[h] = rounding(cast, z[h], at.col + 2 * k + h, at.row / L);
        }
#pragma unroll
        for (int i = 0; i < L; ++i) w[i][k] = Rounding::pair(z[0][i], z[1][i], pair_of(by[0], by[1]));
    }
    store_columns<L>(a, at.row, at.col, end, w);
}

template <class Rounding, bool Rotate>
__global__ void __launch_bounds__(cast_threads) cast_rows_kernel(const __grid_constant__ Cast cast) {
    row_values<Rounding, Rotate, 32 / Rounding::length>(cast, Tile(Order::first_first));
}
template <class Rounding, bool Rotate>
__global__ void __launch_bounds__(cast_threads) cast_columns_kernel(const __grid_constant__ Cast cast) {
    column_values<Rounding, Rotate>(cast, Tile(Order::first_first));
}
// The columns are cast first, so that the rows' reads hit the L1 cache.
template <class Rounding, bool Rotate>
__global__ void __launch_bounds__(cast_threads)
    cast_rows_and_columns_kernel(const __grid_constant__ Cast rows, const __grid_constant__ Cast columns) {
    const Tile tile(Order::first_first);
    column_values<Rounding, Rotate>(columns, tile);
    row_values<Rounding, false, 1>(rows, tile);
}

// Four adjacent threads process a tile of 16 x 16.
__global__ void __launch_bounds__(cast_threads) cast_nvfp4_16x16_kernel(const __grid_constant__ CastArgs a) {
    const ColumnPlace<16> at{Tile(Order::first_first)};
    ColumnPairs<16> w;
    load_columns<16>(a, at.row, at.col, w);
    uint32_t pair = 0;
#pragma unroll
    for (const auto& pairs : w)
#pragma unroll
        for (const uint32_t p : pairs) pair = larger_of(pair, p);
    float most = larger_half(pair);
#pragma unroll
    for (int step = 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
    if (at.col >= a.cols) return;
    const NvBlock block = nv_block(most, nv_tensor_scale(*a.amax, nv_largest(a.rule)));
#pragma unroll
    for (auto& pairs : w)
#pragma unroll
        for (uint32_t& p : pairs)
            p = pair_of(e2m1_value(low_of(p) * block.element) * block.scale,
                        e2m1_value(high_of(p) * block.element) * block.scale);
    store_columns<16>(a, at.row, at.col, a.rows, w);
    if (at.row == 0 && at.col == 0) *a.scale = *a.amax;
}

template <class Rounding, bool Rotate = false>
void values(const CastArgs& a, bool down, cudaStream_t stream) {
    const Cast cast(a);
    if (down)
        cast_columns_kernel<Rounding, Rotate><<<tiles_of(a), cast_threads, 0, stream>>>(cast);
    else
        cast_rows_kernel<Rounding, Rotate><<<tiles_of(a), cast_threads, 0, stream>>>(cast);
}

template <class Rounding, bool Rotate>
void both_values(const CastArgs& rows, const CastArgs& columns, cudaStream_t stream) {
    cast_rows_and_columns_kernel<Rounding, Rotate>
        <<<tiles_of(rows), cast_threads, 0, stream>>>(Cast(rows), Cast(columns));
}

}  // namespace

cudaError_t launch_cast(const CastArgs& a, bool down, cudaStream_t stream) {
    const dim3 tiles = tiles_of(a);
    const CastRule& rule = a.rule;
    if (rule.row_scaled) {
        cast_row_amax_kernel<<<static_cast<unsigned>(a.rows), cast_threads, 0, stream>>>(a);
    } else if (rule.format != CastFormat::mxfp8 && !a.has_amax) {
        if (const cudaError_t code = cudaMemsetAsync(a.amax, 0, sizeof(float), stream)) return code;
        if (!rule.rotate)
            cast_amax_kernel<Turned::none, false><<<tiles, cast_threads, 0, stream>>>(a, nullptr);
        else if (down)
            cast_amax_kernel<Turned::columns, false><<<tiles, cast_threads, 0, stream>>>(a, nullptr);
        else
            cast_amax_kernel<Turned::rows, false><<<tiles, cast_threads, 0, stream>>>(a, nullptr);
    }
    switch (rule.format) {
        case CastFormat::nvfp4:
            if (rule.square)
                cast_nvfp4_16x16_kernel<<<tiles, cast_threads, 0, stream>>>(a);
            else if (rule.four_over_six)
                values<RoundNvfp4<true, false>>(a, down, stream);
            else if (rule.stochastic)
                rule.rotate ? values<RoundNvfp4<false, true>, true>(a, down, stream)
                            : values<RoundNvfp4<false, true>>(a, down, stream);
            else
                rule.rotate ? values<RoundNvfp4<false, false>, true>(a, down, stream)
                            : values<RoundNvfp4<false, false>>(a, down, stream);
            break;
        case CastFormat::mxfp8:
            values<RoundMx>(a, down, stream);
            break;
        case CastFormat::fp8:
        case CastFormat::fp8_e5m2:
            values<RoundFp8>(a, down, stream);
            break;
        default:
            values<RoundBf16>(a, down, stream);
    }
    return cudaGetLastError();
}

cudaError_t launch_cast_both(const CastArgs& rows, const CastArgs& columns, cudaStream_t stream) {
    if (rows.rule.format == CastFormat::mxfp8) {
        both_values<RoundMx, false>(rows, columns, stream);
        return cudaGetLastError();
    }
    if (const cudaError_t code = cudaMemsetAsync(rows.amax, 0, 2 * sizeof(float), stream)) return code;
    if (columns.rule.rotate)
        cast_amax_kernel<Turned::columns, true><<<tiles_of(rows), cast_threads, 0, stream>>>(columns, rows.amax);
    else
        cast_amax_kernel<Turned::none, false><<<tiles_of(rows), cast_threads, 0, stream>>>(rows, nullptr);
    if (rows.rule.stochastic)
        columns.rule.rotate ? both_values<RoundNvfp4<false, true>, true>(rows, columns, stream)
                            : both_values<RoundNvfp4<false, true>, false>(rows, columns, stream);
    else
        columns.rule.rotate ? both_values<RoundNvfp4<false, false>, true>(rows, columns, stream)
                            : both_values<RoundNvfp4<false, false>, false>(rows, columns, stream);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
