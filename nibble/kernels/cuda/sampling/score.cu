// The log-probability of a sampled token under the distribution it was sampled from, with one thread block per row.
#include "kernels/cuda/primitives/drawn_row.cuh"
#include "kernels/cuda/sampling/sampling_launch.h"

namespace nibble::cuda {
namespace {

constexpr int score_threads = 512;
using ScoredRow = DrawnRow<score_threads>;

// `out` may be host memory: an id is read once.
__global__ void __launch_bounds__(score_threads) score_tokens_kernel(const __grid_constant__ SampleArgs args) {
    extern __shared__ __align__(16) uint8_t memory[];
    start(args.overlap);
    __shared__ int id;
    const SampleRow& request = args.requests[blockIdx.x];
    if (!request.scored) return;
    if (threadIdx.x == 0) id = args.out[blockIdx.x].id;
    __syncthreads();
    if (id < 0) return;
    const Drawn drawn{request.temperature, request.top_p, request.lowest, request.top_k};
    ScoredRow row(args.logits + int64_t{blockIdx.x} * args.width, static_cast<int>(args.width), drawn,
                  *reinterpret_cast<ScoredRow::Shared*>(memory));
    const double sum = row.sum();
    if (threadIdx.x == 0) args.out[blockIdx.x].logprob = row.log_prob(id, sum);
}

}  // namespace

cudaError_t launch_score(const SampleArgs& args, cudaStream_t stream) {
    constexpr int bytes = sizeof(ScoredRow::Shared);
    if (const cudaError_t code = allow_shared_memory(score_tokens_kernel, bytes)) return code;
    return launch_kernel(score_tokens_kernel, dim3(static_cast<unsigned>(args.rows)), score_threads, bytes, args,
                         stream);
}

}  // namespace nibble::cuda
