// The loss of a model's last residual stream, as values: which token every row should have predicted, what its
// log-probability counts, and the gradient that follows from both.
//
// Log-probabilities have the bits that serving and evaluation print: the head's logits through log_softmax of
// kernels/elementwise.h. Rows go through the head in slabs, so that the logits of all rows never exist at once.
#pragma once

#include "kernels/sampling.h"
#include "model/cpu/model.h"

#include <cstdint>
#include <span>

namespace nibble {

// log p(labels[i]) of every row of x [rows, hidden], p the distribution that `sampling` draws from (softmax of the
// logits, divided by the temperature, of the tokens that the filters keep; penalties are none of its business), into
// log_probs [rows]; -inf where the label is filtered out, 0 where it is -1. Errors: a label outside the vocabulary, a
// logit that is not finite (the row is named).
Status label_log_probs(const Head& head, const float* x, std::span<const int32_t> labels,
                       const SamplingParams& sampling, std::span<float> log_probs, Workspace& work);

// The gradient of  sum over i of slopes[i] * log p(labels[i])  with respect to x, into dx [rows, hidden], and to the
// head's parameters through `sink` (may be nullptr): of the logits it is slopes[i] / temperature * (onehot - p), the
// filters' choice taken as it is. Cross-entropy with weights w and scale s has slopes -w s, a policy gradient whatever
// the policy's loss says. A tied head's gradient goes to "lm_head.weight". log_probs as above. Rows with label -1 or
// slope 0 have no gradient.
Status label_gradient(const Head& head, const float* x, std::span<const int32_t> labels, const SamplingParams& sampling,
                      std::span<const float> slopes, float* dx, std::span<float> log_probs, Workspace& work,
                      GradientSink* sink);

// Another model's view of the same tokens: its head, and its last residual stream [rows, hidden of that model], which
// are computed in a workspace of their own.
struct LossTeacher {
    const Head& head;
    const float* x;
    Workspace& work;
    float cross_entropy = 0;  // the labels' share of the loss, 0 to 1
};

// The gradient of  sum over i of weights[i] * L(i),  L = (1 - c) KL(teacher || model) - c log p(labels[i]), c the share
// above: of the logits it is weights[i] * (p - (1 - c) q - c onehot), q the teacher's softmax. losses [rows] gets L,
// its sum over the vocabulary ascending in FP64, 0 where there is no label. Rows with label -1 or weight 0 have no
// gradient. Errors: as above; heads of two vocabularies.
Status distillation_gradient(const Head& head, const float* x, const LossTeacher& teacher,
                             std::span<const int32_t> labels, std::span<const float> weights, float* dx,
                             std::span<float> losses, Workspace& work, GradientSink* sink);

}  // namespace nibble
