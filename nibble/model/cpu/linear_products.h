// A hook in Workspace with which a trainer replaces or extends the products of a model's linears.
//
// A unit is a group of linears that run as one product: the parts of a LinearStack, or one linear. Units are identified
// by the linears' names, so they stay the same when a model's weights are loaded again.
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
    // Returns true if forward() runs in place of the engine's own product for this unit.
    virtual bool replaces(std::span<const Linear> unit) const = 0;
    // Computes out.y = x W^T + bias, rounded as `out` requires and never gated. x [n, cols], rows adjacent. Requires
    // replaces().
    virtual void forward(std::span<const Linear> unit, const float* x, int64_t n, const MatmulOutput& out,
                         Workspace& work) = 0;
    // Returns true if add() changes the output of the engine's own product. The engine then does not fuse gating into
    // the product.
    virtual bool adds(std::span<const Linear>) const { return false; }
    // Adds to y [n, outputs of the unit], which is finished and rounded; `stride` floats from row to row. x: as in
    // forward(). Requires adds().
    virtual void add(std::span<const Linear> /*unit*/, const float* /*x*/, int64_t /*n*/, float* /*y*/,
                     int64_t /*stride*/, Workspace& /*work*/) {}
    // Computes dx [n, cols] = dy W. x: as in forward(). dy [n, outputs of the unit] has `stride` floats from row to
    // row.
    virtual void input_gradient(std::span<const Linear> unit, const float* x, const float* dy, int64_t n,
                                int64_t stride, float* dx, Workspace& work) = 0;
    // Passes dy^T x and, for a unit with bias, the column sums of dy to the sink, under the parts' names.
    virtual Status weight_gradient(std::span<const Linear> unit, const float* x, const float* dy, int64_t n,
                                   int64_t stride, Workspace& work, GradientSink& sink) = 0;
};

}  // namespace nibble
