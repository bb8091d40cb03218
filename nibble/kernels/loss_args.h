// Arguments of the functions in kernels/loss_cuda.h: plain values for host and device code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nibble::cuda {

// Largest supported vocabulary.
inline constexpr int64_t softmax_most_vocab = int64_t{104} << 12;

// log_probs[i] = log p(labels[i]), 0 if the label is -1, with the bits of the host's log_softmax except for the
// logarithm (see sampling_cuda.h). d_logits = slopes[i] * (onehot - p); may be null.
struct LabelLoss {
    int64_t rows = 0, vocab = 0;        // vocab: at most softmax_most_vocab
    const std::byte* logits = nullptr;  // [rows, vocab] BF16
    const int32_t* labels = nullptr;    // [rows]
    const float* slopes = nullptr;      // [rows]
    float* log_probs = nullptr;         // [rows]
    std::byte* d_logits = nullptr;      // [rows, vocab] BF16; may be `logits`
};

// losses[i] = (1 - c) KL(softmax of `teacher` || softmax of `logits`) - c log p(labels[i]), c = cross_entropy. d_logits
// is the gradient of the sum of weights[i] * losses[i]. Both are 0 for rows with label -1.
struct TeacherLoss {
    int64_t rows = 0, vocab = 0;         // shape of the logits, as in LabelLoss
    const std::byte* logits = nullptr;   // [rows, vocab] BF16
    const std::byte* teacher = nullptr;  // [rows, vocab] BF16
    const int32_t* labels = nullptr;     // [rows]
    const float* weights = nullptr;      // [rows]
    float cross_entropy = 0;
    float* losses = nullptr;        // [rows]
    std::byte* d_logits = nullptr;  // [rows, vocab] BF16; may be `logits`
};

}  // namespace nibble::cuda
