// The three products of one linear under a training recipe, on plain arrays: for a training loop that is not nibble's.
// The operands are rounded as in HostRecipe, with the bits of `nibble train` on a CPU.
#pragma once

#include "train/train_operand.h"
#include "train/train_precision.h"
#include "train/train_rules.h"

#include <string_view>

namespace nibble {

// Keys of the random numbers of one linear in one step.
struct LinearDraw {
    uint32_t linear = 0;
    uint64_t seed = 0, step = 0;
};

class TrainProducts {
public:
    // Reads the name of a recipe. Errors of kind usage: an unknown name; a recipe that keeps a state between steps
    // (fp8_delayed, nvfp4_w4a4, nibble_nvfp4) or multiplies stored weights (nvfp4_w4a16).
    static Result<TrainProducts> create(std::string_view recipe);

    // y [n, outputs] = x [n, inputs] w^T, with w [outputs, inputs].
    void forward(const float* x, int64_t n, const float* w, int64_t outputs, int64_t inputs, float* y,
                 ThreadPool& pool) const;
    // dx [n, inputs] = dy [n, outputs] w.
    void input_gradient(const float* dy, int64_t n, const float* w, int64_t outputs, int64_t inputs, float* dx,
                        const LinearDraw& draw, ThreadPool& pool) const;
    // dw [outputs, inputs] = dy^T x.
    void weight_gradient(const float* dy, const float* x, int64_t n, int64_t outputs, int64_t inputs, float* dw,
                         const LinearDraw& draw, ThreadPool& pool) const;

private:
    TrainProducts(const UnitRules& rules, const MatmulKernels& kernels, bool plain)
        : rules_(rules), kernels_(&kernels), plain_(plain) {}
    UnitRules rules_;
    const MatmulKernels* kernels_;
    bool plain_;  // fp32: nothing is rounded
};

}  // namespace nibble
