// How the linears of a model multiply while it is trained: a hook in Workspace that a trainer sets.
//
// The unit is what multiplies as one product: a LinearStack's parts, or one linear alone. Units are known by the
// linears' names, so a model whose weights were loaded again is the same to the hook.
#pragma once

#include "kernels/matmul.h"

#include <cstdint>
#include <span>

namespace nibble {

struct Linear;
struct Workspace;
class GradientSink;

class LinearProducts {
public:
    virtual ~LinearProducts() = default;
    // Whether forward() runs instead of the engine's own product for this unit.
    virtual bool replaces(std::span<const Linear> unit) const = 0;
    // out.y = x W^T + bias, rounded as `out` says; never gated. x [n, cols], adjacent rows. Only where replaces().
    virtual void forward(std::span<const Linear> unit, const float* x, int64_t n, const MatmulOutput& out,
                         Workspace& work) = 0;
    // Whether add() has something to add to the engine's own product, which then is never gated.
    virtual bool adds(std::span<const Linear>) const { return false; }
    // y [n, outputs of the unit], finished and rounded, `stride` floats from row to row; x as above. Only where adds().
    virtual void add(std::span<const Linear> /*unit*/, const float* /*x*/, int64_t /*n*/, float* /*y*/,
                     int64_t /*stride*/, Workspace& /*work*/) {}
    // dx [n, cols] = dy W; x as above, `stride` floats from row to row of dy [n, outputs of the unit].
    virtual void input_gradient(std::span<const Linear> unit, const float* x, const float* dy, int64_t n,
                                int64_t stride, float* dx, Workspace& work) = 0;
    // dy^T x and, where there is a bias, the column sums of dy, to the sink by the parts' names.
    virtual Status weight_gradient(std::span<const Linear> unit, const float* x, const float* dy, int64_t n,
                                   int64_t stride, Workspace& work, GradientSink& sink) = 0;
};

}  // namespace nibble
