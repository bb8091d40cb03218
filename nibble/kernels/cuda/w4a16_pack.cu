// Canonical NVFP4 <-> records: one thread per lane and 64-column block, four blocks a record.
#include "kernels/cuda/matmul_launch.h"
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

__global__ void prepack_kernel(const uint8_t* __restrict__ codes, const uint8_t* __restrict__ scales, int64_t cols,
                               uint8_t* records, uint32_t* refused) {
    const Place p = place(records, cols);
    const int64_t groups = cols / 16;
    uint32_t words[4];
    uint32_t bad = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int64_t at = (p.row + 8 * h) * groups + p.group;
        const w4a16::GroupWords w = w4a16::pack_group(reinterpret_cast<const unsigned long long*>(codes)[at]);
        words[2 * h] = w.w0, words[2 * h + 1] = w.w1;
        bad += !w4a16::packable_scale(scales[at]);
        p.scales[h] = w4a16::pack_scale(scales[at]);
    }
    *reinterpret_cast<uint4*>(p.codes) = {words[0], words[1], words[2], words[3]};
    if (bad) atomicAdd(refused, bad);
}

__global__ void unpack_kernel(uint8_t* records, int64_t cols, uint8_t* __restrict__ codes,
                              uint8_t* __restrict__ scales) {
    const Place p = place(records, cols);
    const uint4 words = *reinterpret_cast<const uint4*>(p.codes);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int64_t at = (p.row + 8 * h) * (cols / 16) + p.group;
        reinterpret_cast<unsigned long long*>(codes)[at] =
            w4a16::unpack_group(h ? w4a16::GroupWords{words.z, words.w} : w4a16::GroupWords{words.x, words.y});
        scales[at] = w4a16::unpack_scale(p.scales[h]);
    }
}

unsigned record_count(int64_t rows, int64_t cols) {
    return static_cast<unsigned>(rows / w4a16::record_rows * (cols / w4a16::record_cols));
}

}  // namespace

cudaError_t launch_prepack(const PackArgs& args, cudaStream_t stream) {
    prepack_kernel<<<record_count(args.rows, args.cols), threads, 0, stream>>>(args.codes, args.scales, args.cols,
                                                                               args.records, args.refused);
    return cudaGetLastError();
}

cudaError_t launch_unpack(const PackArgs& args, cudaStream_t stream) {
    unpack_kernel<<<record_count(args.rows, args.cols), threads, 0, stream>>>(args.records, args.cols, args.codes,
                                                                              args.scales);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
