// The loss with a teacher's logits, and the gradient of the model's logits. One cluster of thread blocks per row; a
// thread block sums its part of the divergence in FP64, and the first block adds the parts.
#include "kernels/cuda/loss/loss_launch.h"
#include "kernels/cuda/loss/softmax_row.cuh"
#include "kernels/cuda/primitives/block_sum.cuh"

namespace nibble::cuda {
namespace {

__global__ void __launch_bounds__(softmax_threads)
    teacher_loss_kernel(const __grid_constant__ TeacherLoss l, const __grid_constant__ SoftmaxShape shape) {
    extern __shared__ __align__(16) uint16_t kept[];
    __shared__ float of_rank[softmax_most_cluster];
    const int thread = static_cast<int>(threadIdx.x);
    const int64_t row = blockIdx.x / static_cast<unsigned>(shape.cluster);
    const int label = l.labels[row];
    const SoftmaxPart model = softmax_part(reinterpret_cast<const uint16_t*>(l.logits) + row * l.vocab, shape, kept);
    const SoftmaxPart teacher =
        softmax_part(reinterpret_cast<const uint16_t*>(l.teacher) + row * l.vocab, shape, kept + shape.part());
    auto* out = reinterpret_cast<uint4*>(l.d_logits + 2 * (row * l.vocab + model.begin));
    if (label < 0) {
        for (int i = thread; i < model.count / 8; i += softmax_threads) out[i] = {0, 0, 0, 0};
        if (thread == 0) l.losses[row] = 0.0f;
        return;
    }
    const float model_shift = log2f(static_cast<float>(model.total)),
                teacher_shift = log2f(static_cast<float>(teacher.total));
    const float model_log = static_cast<float>(log(model.total)), teacher_log = static_cast<float>(log(teacher.total));
    const float weight = l.weights[row], share = l.cross_entropy, rest = 1.0f - share;
    double sum = 0.0;
    for (int i = thread; i < model.count / 8; i += softmax_threads) {
        float d[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int at = model.begin + 8 * i + j;
            const float from_x = model.from_largest(at), from_t = teacher.from_largest(at);
            // Exact enough for a gradient, as in label_loss(), except p - 1 for the label of a very certain model.
            const float q = SoftmaxPart::share(from_t, teacher_shift);
            const float p = at == label ? exp_of(from_x) / static_cast<float>(model.total)
                                        : SoftmaxPart::share(from_x, model_shift);
            if (q > 0.0f)
                sum += static_cast<double>(q) *
                       (static_cast<double>(from_t - teacher_log) - static_cast<double>(from_x - model_log));
            const float aim = rest * q + (at == label ? share : 0.0f);
            d[j] = weight * (p - aim);
        }
        pack8(reinterpret_cast<std::byte*>(out + i), d);
    }
    sum = static_cast<double>(rest) * block_sum<softmax_threads>(sum);
    if (model.has(label))
        sum -= static_cast<double>(share) * static_cast<double>(model.from_largest(label) - model_log);
    if (thread == 0) cluster_store(shared_address(&of_rank[cluster_rank()]), 0, static_cast<float>(sum));
    cluster_sync();
    if (thread > 0 || cluster_rank() > 0) return;
    float loss = 0.0f;
    for (int r = 0; r < shape.cluster; ++r) loss += of_rank[r];
    l.losses[row] = loss;
}

}  // namespace

cudaError_t prepare_teacher_loss() {
    return allow_shared_memory(teacher_loss_kernel, 2 * SoftmaxShape::of(softmax_most_vocab).shared_bytes());
}

cudaError_t launch_teacher_loss(const TeacherLoss& l, cudaStream_t stream) {
    return launch_rows(teacher_loss_kernel, l, l.rows, l.vocab, 2, stream);
}

}  // namespace nibble::cuda
