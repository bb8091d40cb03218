// The loss of a model's last residual stream as values: the label of each row, the weight of its log-probability, and
// the resulting gradient.
//
// Log-probabilities have the same bits as in serving and evaluation: the head's logits through log_softmax of
// kernels/elementwise.h. Rows go through the head in slabs, so the logits of all rows never exist at once.
#pragma once

#include "kernels/sampling.h"
#include "model/cpu/model.h"

#include <cstdint>
#include <span>

namespace nibble {

// Writes log p(labels[i]) for every row of x [rows, hidden] to log_probs [rows]. p is the distribution that `sampling`
// draws from: the softmax of the logits, divided by the temperature, over the tokens that the filters keep. Penalties
// are ignored. -inf: the filters removed the label; 0: the label is -1. Errors: a label outside the vocabulary; a logit
// that is not finite (with the row).
Status label_log_probs(const Head& head, const float* x, std::span<const int32_t> labels,
                       const SamplingParams& sampling, std::span<float> log_probs, Workspace& work);

// Computes the gradient of sum over i of slopes[i] * log p(labels[i]). dx [rows, hidden] is overwritten; gradients of
// the head's parameters go to `sink` (may be nullptr). The gradient of the logits is slopes[i] / temperature * (onehot
// - p), with the set of kept tokens held constant. Cross-entropy with weights w and scale s has slopes -w s; a policy
// gradient has those of the policy's loss. The gradient of a tied head goes to "lm_head.weight". log_probs and errors:
// as above. Rows with label -1 or slope 0 have no gradient.
Status label_gradient(const Head& head, const float* x, std::span<const int32_t> labels, const SamplingParams& sampling,
                      std::span<const float> slopes, float* dx, std::span<float> log_probs, Workspace& work,
                      GradientSink* sink);

// A teacher model's head and last residual stream x [rows, its hidden] for the same tokens, computed in its own
// workspace.
struct LossTeacher {
    const Head& head;
    const float* x;
    Workspace& work;
    float cross_entropy = 0;  // share of the labels' cross-entropy in the loss, 0 to 1
};

// Computes the gradient of sum over i of weights[i] * L(i), L = (1 - c) KL(teacher || model) - c log p(labels[i]), c =
// cross_entropy. The gradient of the logits is weights[i] * (p - (1 - c) q - c onehot), q the teacher's softmax. losses
// [rows] receives L (summed over the vocabulary, ascending, in FP64), or 0 for rows without a label. Rows with label -1
// or weight 0 have no gradient. Errors: as above; heads with different vocabularies.
Status distillation_gradient(const Head& head, const float* x, const LossTeacher& teacher,
                             std::span<const int32_t> labels, std::span<const float> weights, float* dx,
                             std::span<float> losses, Workspace& work, GradientSink* sink);

}  // namespace nibble
