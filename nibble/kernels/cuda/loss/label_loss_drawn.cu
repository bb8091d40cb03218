// Log-probabilities of labels and the gradient of the logits under the distribution that tokens are sampled from, with
// one thread block per row.
#include "kernels/cuda/loss/label_loss_drawn.h"
#include "kernels/cuda/primitives/drawn_row.cuh"

namespace nibble::cuda {
namespace {

constexpr int drawn_threads = 512;
using DrawnLabelRow = DrawnRow<drawn_threads, uint16_t>;

__global__ void __launch_bounds__(drawn_threads) label_loss_drawn_kernel(const __grid_constant__ DrawnLabels args) {
    extern __shared__ __align__(16) uint8_t memory[];
    const LabelLoss& l = args.labels;
    const int64_t at = blockIdx.x;
    const int label = l.labels[at], thread = static_cast<int>(threadIdx.x), vocab = static_cast<int>(l.vocab);
    std::byte* out = l.d_logits ? l.d_logits + 2 * at * l.vocab : nullptr;
    const float slope = out ? l.slopes[at] / args.drawn.temperature : 0.0f;
    const auto no_gradient = [&] {
        for (int i = thread; out && i < vocab / 8; i += drawn_threads) reinterpret_cast<uint4*>(out)[i] = {0, 0, 0, 0};
    };
    if (label < 0) {
        if (thread == 0) l.log_probs[at] = 0.0f;
        return no_gradient();
    }
    DrawnLabelRow row(reinterpret_cast<const uint16_t*>(l.logits) + at * l.vocab, vocab, args.drawn,
                      *reinterpret_cast<DrawnLabelRow::Shared*>(memory));
    const double sum = row.sum();
    if (thread == 0) l.log_probs[at] = row.log_prob(label, sum);
    __syncthreads();  // the gradient may overwrite the logits
    if (slope == 0.0f) return no_gradient();
    const float total = static_cast<float>(sum);
    for (int i = thread; i < vocab / 8; i += drawn_threads) {
        float d[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            float p = row.share(8 * i + j) / total;
            if (8 * i + j == label) p -= 1.0f;
            d[j] = p * -slope;
        }
        reinterpret_cast<uint4*>(out)[i] = {pair_of(d[0], d[1]), pair_of(d[2], d[3]), pair_of(d[4], d[5]),
                                            pair_of(d[6], d[7])};
    }
}

}  // namespace

cudaError_t prepare_label_loss_drawn() {
    return allow_shared_memory(label_loss_drawn_kernel, sizeof(DrawnLabelRow::Shared));
}

cudaError_t launch_label_loss_drawn(const DrawnLabels& l, cudaStream_t stream) {
    label_loss_drawn_kernel<<<static_cast<unsigned>(l.labels.rows), drawn_threads, sizeof(DrawnLabelRow::Shared),
                              stream>>>(l);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
