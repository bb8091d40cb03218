// AdamW (Loshchilov and Hutter 2019) on the masters, states in FP32. Per element, every operation one FP32 rounding, in
// the order of PyTorch's torch.optim.AdamW:
//
//   g = clip * g;  w = w * (1 - lr * decay) for matrices;  m = m + (1 - beta1) (g - m);
//   v = beta2 v + (1 - beta2) (g g);  w = w - (lr / (1 - beta1^t)) (m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon))
//
// Scalars are computed in FP64 and rounded once. A parameter without a gradient in a step is left alone.
#pragma once

#include "model/parameters.h"
#include "train/gradient_tree.h"
#include "train/train_config.h"

#include <cstdint>
#include <span>
#include <vector>

namespace nibble {

class AdamW {
public:
    AdamW(const Parameters& parameters, const TrainOptimizer& options);

    // One update of all masters; publish() is the caller's. `clip` multiplies the gradient.
    void update(Parameters& parameters, const GradientTree& gradients, double learning_rate, float clip,
                ThreadPool& pool);

    int64_t steps() const { return steps_; }
    void set_steps(int64_t steps) { steps_ = steps; }
    std::span<float> m(size_t id) { return m_[id]; }
    std::span<float> v(size_t id) { return v_[id]; }

private:
    TrainOptimizer options_;
    std::vector<std::vector<float>> m_, v_;
    int64_t steps_ = 0;
};

// What global-norm clipping multiplies a gradient with: 1 without a limit or below it.
float clip_factor(double norm, double limit);

}  // namespace nibble
