#include "kernels/cuda/train/adapters_launch.h"
#include "kernels/train_adapters_cuda.h"
#include "tensor/cuda/call.h"

namespace nibble::cuda {
namespace {

cudaStream_t adapter_queue(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

}  // namespace

Status add_scaled_rows(float* y, int64_t stride, const float* more, float scale, int64_t n, int64_t cols,
                       const Stream& stream) {
    if (n < 1 || cols < 1 || stride < cols) return fail("add_scaled_rows: [{}, {}], {} apart", n, cols, stride);
    return cuda_status(launch_add_scaled_rows(y, stride, more, scale, n, cols, adapter_queue(stream)),
                       "add_scaled_rows: kernel launch");
}

Status copy_pieces(std::byte* to, int64_t to_pitch, const std::byte* from, int64_t from_pitch, int64_t bytes,
                   int64_t rows, const Stream& stream) {
    if (bytes < 1 || rows < 1 || to_pitch < bytes || from_pitch < bytes)
        return fail("copy_pieces: {} of {} bytes, {} and {} apart", rows, bytes, from_pitch, to_pitch);
    return cuda_status(cudaMemcpy2DAsync(to, static_cast<size_t>(to_pitch), from, static_cast<size_t>(from_pitch),
                                         static_cast<size_t>(bytes), static_cast<size_t>(rows),
                                         cudaMemcpyDeviceToDevice, adapter_queue(stream)),
                       "cudaMemcpy2DAsync");
}

}  // namespace nibble::cuda
