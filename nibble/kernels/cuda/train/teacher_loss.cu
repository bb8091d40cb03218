// The loss beside a teacher's logits, and the gradient of the model's. A thread block per row; the divergence is summed
// in FP64, a thread's elements ascending, then a halving tree over the threads.
#include "kernels/cuda/train/softmax_row.cuh"
#include "kernels/cuda/train/train_launch.h"

namespace nibble::cuda {
namespace {

__global__ void __launch_bounds__(softmax_threads) teacher_loss_kernel(const __grid_constant__ TeacherLoss l) {
    extern __shared__ float exponentials[];
    __shared__ double sums[softmax_threads];
    const int64_t row = blockIdx.x;
    const int label = l.labels[row], thread = static_cast<int>(threadIdx.x), vocab = static_cast<int>(l.vocab);
    const float *x = l.logits + row * l.vocab, *t = l.teacher + row * l.vocab;
    auto* out = reinterpret_cast<uint4*>(l.d_logits + 2 * row * l.vocab);
    if (label < 0) {
        for (int i = thread; i < vocab / 8; i += softmax_threads) out[i] = {0, 0, 0, 0};
        if (thread == 0) l.losses[row] = 0.0f;
        return;
    }
    const SoftmaxRow model = softmax_row(x, vocab, exponentials), teacher = softmax_row(t, vocab, exponentials);
    const float of_model = static_cast<float>(model.total), of_teacher = static_cast<float>(teacher.total);
    const float model_log = static_cast<float>(log(model.total)), teacher_log = static_cast<float>(log(teacher.total));
    const float weight = l.weights[row], share = l.cross_entropy, rest = 1.0f - share;
    double sum = 0.0;
    for (int i = thread; i < vocab / 8; i += softmax_threads) {
        float d[8];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float4 a = reinterpret_cast<const float4*>(x)[2 * i + half],
                         b = reinterpret_cast<const float4*>(t)[2 * i + half];
            const float xs[4] = {a.x, a.y, a.z, a.w}, ts[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float from_x = rounded(xs[j]) - model.largest, from_t = rounded(ts[j]) - teacher.largest;
                const float p = exp_of(from_x) / of_model, q = exp_of(from_t) / of_teacher;
                if (q > 0.0f)
                    sum += static_cast<double>(q) * (static_cast<double>(from_t - teacher_log) -
                                                     static_cast<double>(from_x - model_log));
                const float aim = rest * q + (8 * i + 4 * half + j == label ? share : 0.0f);
                d[4 * half + j] = weight * (p - aim);
            }
        }
        out[i] = {pair_of(d[0], d[1]), pair_of(d[2], d[3]), pair_of(d[4], d[5]), pair_of(d[6], d[7])};
    }
    sums[thread] = sum;
    for (int half = softmax_threads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (thread < half) sums[thread] += sums[thread + half];
    }
    if (thread == 0) {
        const float of_label = (rounded(x[label]) - model.largest) - model_log;
        l.losses[row] = static_cast<float>(static_cast<double>(rest) * sums[0] -
                                           static_cast<double>(share) * static_cast<double>(of_label));
    }
}

}  // namespace

cudaError_t prepare_teacher_loss() { return allow_shared_memory(teacher_loss_kernel, softmax_shared_bytes); }

cudaError_t launch_teacher_loss(const TeacherLoss& l, cudaStream_t stream) {
    teacher_loss_kernel<<<static_cast<unsigned>(l.rows), softmax_threads, softmax_shared_bytes, stream>>>(l);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
