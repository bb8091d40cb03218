// Updates the FP32 masters: AdamW, or Muon for the matrices of blocks and AdamW for all other parameters.
//
// AdamW (Loshchilov and Hutter 2019): per element, with one FP32 rounding per operation, in the order of PyTorch's
// torch.optim.AdamW:
//
//   g = clip * g;  w = w * (1 - lr * decay) for matrices;  m = m + (1 - beta1) (g - m);
//   v = beta2 v + (1 - beta2) (g g);  w = w - (lr / (1 - beta1^t)) (m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon))
//
// Muon (Keller Jordan 2024) in the form of Moonlight (Liu et al. 2025, arXiv 2502.16982), so that AdamW's learning rate
// and decay can be used: for a matrix [r, c]
//
//   g = clip * g;  m = momentum m + g;  u = orthogonalize(g + momentum m);
//   w = w * (1 - lr * decay) - lr 0.2 sqrt(max(r, c)) u
//
// States are FP32 or BF16. In BF16 a new m or v is rounded stochastically with 16 random bits (Philox), keyed by seed,
// step, parameter and element. The update itself uses the value before rounding. Round-to-nearest would freeze v: with
// beta2 above 0.998 it changes by less than half a BF16 step.
//
// Scalars are computed in FP64 and rounded once. A parameter without a gradient in a step does not change. No sum
// depends on the number of threads.
#pragma once

#include "kernels/matmul.h"
#include "model/parameters.h"
#include "train/gradient_tree.h"
#include "train/optimizer_state.h"
#include "train/train_config.h"

#include <cstdint>
#include <span>
#include <vector>

namespace nibble {

class Optimizer {
public:
    // `matrices`: ids of the parameters that Muon updates. `matmul` must outlive the optimizer. Only states of
    // parameters that `ranks` owns are allocated.
    Optimizer(const Parameters& parameters, const TrainOptimizer& options, std::span<const size_t> matrices,
              const MatmulKernels& matmul, uint64_t seed, const TrainRanks& ranks = {});

    // Updates all masters once. The caller calls publish(). `clip` is a factor of the gradient.
    void update(Parameters& parameters, const GradientTree& gradients, double learning_rate, float clip,
                ThreadPool& pool);

    int64_t steps() const { return steps_; }
    void set_steps(int64_t steps) { steps_ = steps; }
    OptimizerLayout layout(size_t id) const { return {dtype_of(states_[id].m), !states_[id].muon}; }
    const StateNumbers& m(size_t id) const { return states_[id].m; }
    const StateNumbers& v(size_t id) const { return states_[id].v; }  // empty for parameters that Muon updates
    StateNumbers& m(size_t id) { return states_[id].m; }
    StateNumbers& v(size_t id) { return states_[id].v; }

private:
    struct State {
        bool muon = false;
        StateNumbers m, v;
    };
    struct Adam;
    struct Update {
        size_t id;
        std::span<const float> gradient;
        std::span<float> w;
        float clip, keep;
    };
    void adam(const Adam& adam, const Update& update, State& state, ThreadPool& pool) const;
    void muon(double learning_rate, int64_t rows, const Update& update, State& state, ThreadPool& pool) const;

    TrainOptimizer options_;
    const MatmulKernels* matmul_;
    uint64_t seed_;
    std::vector<State> states_;
    int64_t steps_ = 0;
};

// Replaces u [rows, cols] by approximately the nearest matrix with orthonormal rows (or columns, if these are fewer).
// Newton-Schulz iteration in FP32: x = u / (|u| + 1e-7), then five times x = a x + (b A + c A A) x with A = x x^T and
// (a, b, c) = (3.4445, -4.7750, 2.0315). The singular values of the result lie within about 0.7 to 1.2.
void orthogonalize(std::span<float> u, int64_t rows, int64_t cols, const MatmulKernels& matmul, ThreadPool& pool);

// Returns the factor of global-norm clipping: limit / norm above the limit, 1 below it or without a limit.
float clip_factor(double norm, double limit);

}  // namespace nibble
