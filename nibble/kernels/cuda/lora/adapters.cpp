#include "kernels/lora_cuda.h"

#include "kernels/cuda/lora/adapters_launch.h"
#include "tensor/cuda/call.h"

namespace nibble::cuda {
namespace {

cudaStream_t adapter_queue(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

Status check_blocks(const AdapterBlocks& b) {
    bool fits = b.experts >= 1 && b.rank >= 1 && b.parts >= 1 && b.parts <= AdapterBlocks::most_parts;
    int64_t before = 0;
    for (int p = 0; fits && p < b.parts; ++p) {
        fits = b.part[p].first >= before && b.part[p].rows >= 1;
        before = b.part[p].first + b.part[p].rows;
    }
    if (!fits || before > b.rows)
        return fail("adapters of {} x {} rows: {} parts of rank {}", b.experts, b.rows, b.parts, b.rank);
    return Ok{};
}

}  // namespace

Status add_scaled_rows(float* y, int64_t stride, const float* more, float scale, int64_t n, int64_t cols,
                       const Stream& stream) {
    if (n < 1 || cols < 1 || stride < cols)
        return fail("add_scaled_rows: [{}, {}] with the stride {}", n, cols, stride);
    return cuda_status(launch_add_scaled_rows(y, stride, more, scale, n, cols, adapter_queue(stream)),
                       "add_scaled_rows: kernel launch");
}

Status spread_blocks(const AdapterBlocks& b, const std::byte* narrow, std::byte* wide, const Stream& stream) {
    NIBBLE_CHECK(check_blocks(b));
    return cuda_status(launch_spread_blocks(b, reinterpret_cast<const uint16_t*>(narrow),
                                            reinterpret_cast<uint16_t*>(wide), adapter_queue(stream)),
                       "spread_blocks: kernel launch");
}

Status gather_blocks(const AdapterBlocks& b, const float* wide, float scale, float* narrow, const Stream& stream) {
    NIBBLE_CHECK(check_blocks(b));
    return cuda_status(launch_gather_blocks(b, wide, scale, narrow, adapter_queue(stream)),
                       "gather_blocks: kernel launch");
}

}  // namespace nibble::cuda
