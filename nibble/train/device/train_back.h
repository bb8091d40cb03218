// The products of the way back, planned once: dX = dY W and dW = dY^T X of every linear.
#pragma once

#include "kernels/train_cuda.h"
#include "train/device/train_weights.h"

#include <map>
#include <tuple>

namespace nibble {

struct TrainPassShape;

// Workspaces of the way back, from shapes.
struct BackSizes {
    int64_t attention = 0;  // of the largest attention
    int64_t shared = 0;     // of products and of sums in two stages: one memory, used in turns
    static Result<BackSizes> make(const TrainWeights& weights, const TrainPassShape& shape);
};

// Plans by (tokens, rows, cols of W), made on the first use and kept.
class BackPlans {
public:
    explicit BackPlans(const DeviceInfo& device) : device_(device) {}
    Result<const cuda::BackPlan*> of(int64_t tokens, int64_t rows, int64_t cols);

private:
    const DeviceInfo& device_;
    std::map<std::tuple<int64_t, int64_t, int64_t>, cuda::BackPlan> plans_;
};

}  // namespace nibble
