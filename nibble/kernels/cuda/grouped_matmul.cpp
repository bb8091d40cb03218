#include "kernels/cuda/matmul_launch.h"
#include "kernels/matmul_cuda.h"
#include "kernels/w4a16_record.h"
#include "tensor/cuda/call.h"

#include <algorithm>
#include <climits>

namespace nibble::cuda {
namespace {

constexpr int most_experts = 1024;
// Any number serves; this one is an H200's.
constexpr int multiprocessors = 132;

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// Tiles of tokens by how many an expert has on average; few row tiles for every thread block: four warps on each.
ExpertsShape choose_shape(int64_t slots, int experts, int row_tiles) {
    const double each = static_cast<double>(slots) / experts;
    ExpertsShape shape{.blocks = multiprocessors};
    shape.tokens = each <= 4 ? 8 : each <= 10 ? 16 : each <= 24 ? 32 : 64;
    if (shape.tokens == 8 && std::min<int64_t>(slots, experts) * row_tiles <= 12 * multiprocessors) shape.parts = 4;
    return shape;
}

}  // namespace

Status prepare_grouped_matmul(const DeviceInfo& device) {
    const CurrentDevice current(device.index);
    NIBBLE_CHECK(current.status());
    return cuda_status(prepare_experts(), "grouped_matmul: cudaFuncSetAttribute");
}

Status grouped_matmul(const ExpertsInput& in, const PackedExperts& w, const ExpertsOutput& out, bool overlap,
                      const Stream& stream) {
    const int64_t n = w.first.rows, k = w.first.cols, x_stride = in.stride ? in.stride : k;
    const int64_t width = out.out && out.gated ? n / 2 : n, y_stride = out.y_stride ? out.y_stride : width;
    if (w.first.format != Format::nvfp4 && w.first.format != Format::mxfp4)
        return fail("grouped_matmul: weights in {}, W4A16 takes nvfp4 and mxfp4", format_name(w.first.format));
    if (w.count < 1 || w.count > most_experts || !w.begin || !w.row_scales)
        return fail("grouped_matmul: {} experts; 1 to {} with scales are supported", w.count, most_experts);
    if (n < 1 || k < 16 || k % 16 || n > INT_MAX / 2 || k > INT_MAX / 2 || in.slots < 1 || in.slots > INT_MAX / 64 ||
        x_stride < k || x_stride % 8 || y_stride < width)
        return fail("grouped_matmul: {} rows by [{}, {}], strides {} and {}", in.slots, n, k, x_stride, y_stride);
    if (!out.y == !out.out || (out.gated && (!out.out || n % 16)))
        return fail("grouped_matmul: one kind of output; gated ones have pairs of eight rows, not {} rows", n);
    if (!aligned(in.x) || !aligned(w.first.records))
        return fail("grouped_matmul: device pointers must be 16-byte aligned");
    const int records = static_cast<int>((k + w4a16::record_cols - 1) / w4a16::record_cols);
    const ExpertsArgs args{.x = reinterpret_cast<const uint8_t*>(in.x),
                           .rows = in.rows,
                           .begin = w.begin,
                           .records = reinterpret_cast<const uint8_t*>(w.first.records),
                           .row_scales = w.row_scales,
                           .bias = w.bias,
                           .y = out.y,
                           .out = reinterpret_cast<uint16_t*>(out.out),
                           .x_stride = 2 * x_stride,
                           .y_stride = y_stride,
                           .expert_bytes = packed_bytes(n, k),
                           .activation = static_cast<int>(out.activation),
                           .gated = out.gated,
                           .experts = w.count,
                           .n = static_cast<int>(n),
                           .k = static_cast<int>(k),
                           .row_records = records,
                           .chunk_records = (records + matmul_chunks - 1) / matmul_chunks,
                           .row_tiles = static_cast<int>((n + w4a16::record_rows - 1) / w4a16::record_rows),
                           .scale_bits = scale_bits(w.first.format),
                           .overlap = overlap,
                           .early = in.routed && !in.rows};
    return cuda_status(launch_experts(args, choose_shape(in.slots, w.count, args.row_tiles),
                                      static_cast<cudaStream_t>(stream.handle())),
                       "grouped_matmul: kernel launch");
}

}  // namespace nibble::cuda
