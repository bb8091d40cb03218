// Log-probabilities of labels and the gradient of the logits, with one cluster of thread blocks per row.
#include "kernels/cuda/loss/loss_launch.h"
#include "kernels/cuda/loss/softmax_row.cuh"

namespace nibble::cuda {
namespace {

__global__ void __launch_bounds__(softmax_threads, 2)
    label_loss_kernel(const __grid_constant__ LabelLoss l, const __grid_constant__ SoftmaxShape shape) {
    extern __shared__ __align__(16) uint16_t kept[];
    const int thread = static_cast<int>(threadIdx.x);
    const int64_t row = blockIdx.x / static_cast<unsigned>(shape.cluster);
    const int label = l.labels[row];
    const float slope = l.d_logits ? l.slopes[row] : 0.0f;
    const SoftmaxPart s = softmax_part(reinterpret_cast<const uint16_t*>(l.logits) + row * l.vocab, shape, kept);
    const auto total = static_cast<float>(s.total);
    if (thread == 0 && (label < 0 ? s.begin == 0 : s.has(label)))
        l.log_probs[row] = label < 0 ? 0.0f : s.from_largest(label) - static_cast<float>(log(s.total));
    if (!l.d_logits) return;
    std::byte* out = l.d_logits + 2 * (row * l.vocab + s.begin);
    if (label < 0 || slope == 0.0f) {
        for (int i = thread; i < s.count / 8; i += softmax_threads) reinterpret_cast<uint4*>(out)[i] = {0, 0, 0, 0};
        return;
    }
    const float shift = log2f(total);
    const int of_label = (label - s.begin) / 8;
#pragma unroll 2
    for (int i = thread; i < s.count / 8; i += softmax_threads) {
        float d[8];
        unpack8(reinterpret_cast<const std::byte*>(s.x + 8 * i), d);
#pragma unroll
        for (float& v : d) v = SoftmaxPart::share(v - s.largest, shift) * -slope;
        if (i == of_label && s.has(label))
#pragma unroll
            for (int j = 0; j < 8; ++j)
                if (s.begin + 8 * i + j == label) d[j] = (exp_of(s.from_largest(label)) / total - 1.0f) * -slope;
        pack8(out + 16 * i, d);
    }
}

}  // namespace

cudaError_t prepare_label_loss() {
    return allow_shared_memory(label_loss_kernel, SoftmaxShape::of(softmax_most_vocab).shared_bytes());
}

cudaError_t launch_label_loss(const LabelLoss& l, cudaStream_t stream) {
    return launch_rows(label_loss_kernel, l, l.rows, l.vocab, 1, stream);
}

}  // namespace nibble::cuda
