// Log-probabilities of labels and the gradient of the logits. A thread block per row.
#include "kernels/cuda/train/softmax_row.cuh"
#include "kernels/cuda/train/train_launch.h"

namespace nibble::cuda {
namespace {

__global__ void __launch_bounds__(softmax_threads) label_loss_kernel(const __grid_constant__ LabelLoss l) {
    extern __shared__ float exponentials[];
    const int64_t row = blockIdx.x;
    const int label = l.labels[row], thread = static_cast<int>(threadIdx.x), vocab = static_cast<int>(l.vocab);
    const float* x = l.logits + row * l.vocab;
    std::byte* out = l.d_logits ? l.d_logits + 2 * row * l.vocab : nullptr;
    const float slope = out ? l.slopes[row] : 0.0f;
    if (label < 0 || (out && slope == 0.0f))
        if (out)
            for (int i = thread; i < vocab / 8; i += softmax_threads) reinterpret_cast<uint4*>(out)[i] = {0, 0, 0, 0};
    if (label < 0) {
        if (thread == 0) l.log_probs[row] = 0.0f;
        return;
    }
    const SoftmaxRow s = softmax_row(x, vocab, exponentials);
    if (thread == 0) l.log_probs[row] = (rounded(x[label]) - s.largest) - static_cast<float>(log(s.total));
    if (!out || slope == 0.0f) return;
    const float total = static_cast<float>(s.total);
    for (int i = thread; i < vocab / 8; i += softmax_threads) {
        const float4 a = reinterpret_cast<const float4*>(x)[2 * i], b = reinterpret_cast<const float4*>(x)[2 * i + 1];
        float d[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            float p = exp_of(rounded(d[j]) - s.largest) / total;
            if (8 * i + j == label) p -= 1.0f;
            d[j] = p * -slope;
        }
        reinterpret_cast<uint4*>(out)[i] = {pair_of(d[0], d[1]), pair_of(d[2], d[3]), pair_of(d[4], d[5]),
                                            pair_of(d[6], d[7])};
    }
}

}  // namespace

cudaError_t prepare_label_loss() { return allow_shared_memory(label_loss_kernel, softmax_shared_bytes); }

cudaError_t launch_label_loss(const LabelLoss& l, cudaStream_t stream) {
    label_loss_kernel<<<static_cast<unsigned>(l.rows), softmax_threads, softmax_shared_bytes, stream>>>(l);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
