#include "kernels/cuda/attention/attention_kernel.cuh"

namespace nibble::cuda {

cudaError_t prepare_attention_e4m3(const AttentionKernelShape& shape, int* blocks_per_multiprocessor) {
    return prepare_attention<E4m3Kv>(shape, blocks_per_multiprocessor);
}

cudaError_t launch_attention_e4m3(const AttentionArgs& args, const AttentionKernelShape& shape, int blocks,
                                  cudaStream_t stream) {
    return launch_attention<E4m3Kv>(args, shape, blocks, stream);
}

}  // namespace nibble::cuda
