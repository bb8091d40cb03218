// Conversion between canonical NVFP4 or MXFP4 and records. Unpacking: one thread per lane and 64-column block, four
// blocks per record.
#include "kernels/cuda/matmul/w4a16/matmul_launch.h"
#include "kernels/w4a16_record.h"

#include <cuda_runtime.h>

namespace nibble::cuda {
namespace {

constexpr int threads = 32 * w4a16::record_blocks;

struct Place {
    int64_t row;    // and row + 8
    int64_t group;  // scale group of that row
    uint8_t* codes;
    uint8_t* scales;
};

__device__ Place place(uint8_t* records, int64_t cols) {
    const int block = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t across = cols / w4a16::record_cols, tile = blockIdx.x / across, record = blockIdx.x % across;
    uint8_t* at = records + int64_t{blockIdx.x} * w4a16::record_bytes;
    return {tile * 16 + lane / 4, record * 16 + block * 4 + lane % 4, at + block * 512 + lane * 16,
            at + w4a16::record_code_bytes + lane * 8 + block * 2};
}

// One thread per row and group of 16 columns, including padding.
__global__ void w4a16_prepack_kernel(const __grid_constant__ PackArgs args) {
    const int64_t across = (args.cols + w4a16::record_cols - 1) / w4a16::record_cols;
    const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x, group = i % (across * 16), from = i / (across * 16);
    if (from >= args.rows + args.padding) return;
    uint64_t codes = 0;
    uint8_t scale = args.mx ? 127 : 0x38;  // 1
    if (from < args.rows && group * 16 < args.cols) {
        const int64_t at = from * (args.cols / 16) + group;
        codes = reinterpret_cast<const unsigned long long*>(args.codes)[at];
        scale = args.scales[args.mx ? at / 2 : at];
        const bool fits = args.mx ? w4a16::packable_mx_scale(scale) : w4a16::packable_scale(scale);
        if (!fits) atomicAdd(args.refused, 1u);
    }
    const int64_t row = args.first_row + (args.run ? from / args.run * args.step + from % args.run : from);
    const int in_tile = static_cast<int>(row % 16), block = static_cast<int>(group % 16 / 4);
    const int lane = in_tile % 8 * 4 + static_cast<int>(group % 4), half = in_tile / 8;
    uint8_t* record = args.records + (row / 16 * across + group / 16) * w4a16::record_bytes;
    const w4a16::GroupWords w = w4a16::pack_group(codes);
    *reinterpret_cast<uint2*>(record + block * 512 + lane * 16 + half * 8) = {w.w0, w.w1};
    record[w4a16::record_code_bytes + lane * 8 + block * 2 + half] =
        args.mx ? w4a16::pack_mx_scale(scale) : w4a16::pack_scale(scale);
}

__global__ void w4a16_unpack_kernel(uint8_t* records, int64_t cols, bool mx, uint8_t* __restrict__ codes,
                                    uint8_t* __restrict__ scales) {
    const Place p = place(records, cols);
    const uint4 words = *reinterpret_cast<const uint4*>(p.codes);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int64_t at = (p.row + 8 * h) * (cols / 16) + p.group;
        reinterpret_cast<unsigned long long*>(codes)[at] =
            w4a16::unpack_group(h ? w4a16::GroupWords{words.z, words.w} : w4a16::GroupWords{words.x, words.y});
        if (mx)
            scales[at / 2] = w4a16::unpack_mx_scale(p.scales[h]);
        else
            scales[at] = w4a16::unpack_scale(p.scales[h]);
    }
}

unsigned record_count(int64_t rows, int64_t cols) {
    return static_cast<unsigned>(rows / w4a16::record_rows * (cols / w4a16::record_cols));
}

}  // namespace

cudaError_t launch_w4a16_prepack(const PackArgs& args, cudaStream_t stream) {
    const int64_t groups = (args.cols + w4a16::record_cols - 1) / w4a16::record_cols * 16;
    const auto blocks = static_cast<unsigned>(((args.rows + args.padding) * groups + threads - 1) / threads);
    w4a16_prepack_kernel<<<blocks, threads, 0, stream>>>(args);
    return cudaGetLastError();
}

cudaError_t launch_w4a16_unpack(const PackArgs& args, cudaStream_t stream) {
    w4a16_unpack_kernel<<<record_count(args.rows, args.cols), threads, 0, stream>>>(args.records, args.cols, args.mx,
                                                                                    args.codes, args.scales);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
