#include "kernels/cuda/attention/attention_kernel.cuh"

namespace nibble::cuda {

cudaError_t prepare_attention_bf16(const AttentionKernelShape& shape, int* blocks_per_multiprocessor) {
    return prepare_attention<Bf16Kv>(shape, blocks_per_multiprocessor);
}

cudaError_t launch_attention_bf16(const AttentionArgs& args, const AttentionKernelShape& shape, int blocks,
                                  cudaStream_t stream) {
    return launch_attention<Bf16Kv>(args, shape, blocks, stream);
}

}  // namespace nibble::cuda
