// A linear while it is trained on a GPU (or several that read the same rows, stacked): its three products. Forward is
// the engine's; those of the way back are planned once per number of tokens. Where the engine's linear has another
// product in its place (DeviceLinear::other), that is a TrainedProduct and makes all three.
#pragma once

#include "kernels/codes_product_cuda.h"
#include "kernels/dense_backward_cuda.h"
#include "kernels/elementwise_backward_cuda.h"
#include "model/device/linear.h"
#include "train/device/flat_layout.h"

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>

namespace nibble {

struct TrainCacheRows;

// Plans by (tokens, rows, cols of W, scaled), and of products of codes by shape, made on the first use and kept.
class BackPlans {
public:
    explicit BackPlans(const DeviceInfo& device) : device_(device) {}
    Result<const cuda::BackPlan*> of(int64_t tokens, int64_t rows, int64_t cols, bool scaled = false);
    Result<const cuda::CodesPlan*> of(const cuda::CodesShape& shape);

private:
    const DeviceInfo& device_;
    std::map<std::tuple<int64_t, int64_t, int64_t, bool>, cuda::BackPlan> plans_;
    std::map<cuda::CodesShape, cuda::CodesPlan> codes_;
};

// What a linear or a mixer finds during a pass.
struct TrainWork {
    DeviceStep& step;
    const std::byte* published = nullptr;  // flat, BF16; at least the block in hand
    BackPlans& plans;
    std::byte* workspace = nullptr;  // of products and of sums in two stages, used in turns
    const int32_t* first = nullptr;  // [rows]: the row where a row's document begins
    const float* amax = nullptr;     // of a mixer's x, where TrainMixer::reads_amax(); else null
    // Of the block, where K and V are to be seen, or are not cached as they are; null: neither.
    const TrainCacheRows* cache = nullptr;
    float* of_vectors = nullptr;  // where gradients of vectors go: flat, of which vectors alone lie there
};

// Where the vectors of a model lie: in the flat arrays by the tensor's name, and on the device as they multiply (null
// while nothing is loaded).
struct TrainVectors {
    std::function<Result<int64_t>(const std::string& tensor)> place;
    std::function<const float*(int64_t place)> at;
};

// A place of -1: a frozen parameter, whose values the engine has loaded. No gradient is wanted of it (null).
inline float* gradient_at(float* gradient, int64_t place) { return place < 0 ? nullptr : gradient + place; }

// What is made between the two products of the way back, such as an x that follows from dx; empty: nothing.
using Between = std::function<Status()>;
inline Status made(const Between& between) { return between ? between() : Status(Ok{}); }

// A product in a linear's place with its way back, as TrainLinear's: what a recipe rounds (TrainProduct), or adapters
// over a frozen weight (FrozenProduct).
class TrainedProduct : public DeviceProduct {
public:
    // Its operands from the published values.
    virtual Status publish(const std::byte* published, const Stream& stream) const = 0;
    // x: of the forward product; null where not reads_inputs_back().
    virtual Status input_gradient(const std::byte* dy, const std::byte* x, int64_t n, std::byte* dx,
                                  TrainWork& work) const = 0;
    virtual bool reads_inputs_back() const { return false; }
    virtual Status weight_gradient(const std::byte* dy, const std::byte* x, int64_t n, float* gradient, bool add,
                                   TrainWork& work) const = 0;
    virtual Status backward(const std::byte* dy, const std::byte* x, int64_t n, std::byte* dx, float* gradient,
                            bool add, TrainWork& work, const Between& between) const {
        NIBBLE_CHECK(input_gradient(dy, x, n, dx, work));
        NIBBLE_CHECK(made(between));
        return weight_gradient(dy, x, n, gradient, add, work);
    }
    // Whether its input is rounded by the largest magnitude of all of it.
    virtual bool reads_amax() const { return false; }
    // Of the products of the way back, beside the caller's, at most.
    virtual int64_t back_scratch_bytes(int64_t n) const = 0;
};

class TrainLinear {
public:
    TrainLinear() = default;
    // The engine's linear then reads its biases at `vectors`. Errors: parts that do not multiply as one.
    TrainLinear(const FlatMatrix& weight, DeviceLinear& engine, const TrainVectors& vectors);
    static Result<TrainLinear> of(const FlatMatrix& weight, DeviceStack& engine, const TrainVectors& vectors);

    int64_t rows() const { return weight_.rows; }
    int64_t cols() const { return weight_.cols; }
    // Of sums in two stages.
    int64_t workspace() const { return weight_.bias < 0 ? 0 : cuda::column_sums_workspace(weight_.rows); }

    // y [n, rows] FP32, y_stride floats from row to row (0: adjacent).
    Status forward(const std::byte* x, int64_t n, float* y, int64_t y_stride, TrainWork& work) const;
    // The same rounded to BF16, rows adjacent; rounded_bytes(): what it takes of scratch memory.
    Status forward_rounded(const std::byte* x, int64_t n, std::byte* y, TrainWork& work,
                           const float* amax = nullptr) const {
        return engine_.forward_rounded({.x = x, .amax = amax}, n, y, work.step);
    }
    // Whether forward_rounded() of so many rows is faster by the largest magnitude of x (DeviceInput::amax).
    bool reads_amax(int64_t n) const { return own() && rounded_bytes(n) == 0 && own()->reads_amax(); }
    int64_t rounded_bytes(int64_t n) const {  // of so many rows and fewer
        return std::max(engine_.rounded_bytes(n), engine_.rounded_bytes(std::min<int64_t>(n, 64)));
    }
    // dx [n, cols] BF16 = dy [n, rows] BF16 W. x: may be null where not reads_inputs_back().
    Status input_gradient(const std::byte* dy, const std::byte* x, int64_t n, std::byte* dx, TrainWork& work) const;
    bool reads_inputs_back() const { return own() && own()->reads_inputs_back(); }
    // dW = dy^T x into `gradient` (flat), or with `add` += it; the sums of dy where there are biases (not with `add`)
    // into work.of_vectors.
    Status weight_gradient(const std::byte* dy, const std::byte* x, int64_t n, float* gradient, bool add,
                           TrainWork& work) const;
    // Both, with one reading of dy where there is a kernel for it.
    Status backward(const std::byte* dy, const std::byte* x, int64_t n, std::byte* dx, float* gradient, bool add,
                    TrainWork& work, const Between& between = {}) const;

    // The engine's operand from the published values. Not with `overlap`: a product may read its weights before the
    // kernel in front of it has ended.
    Status publish(const std::byte* published, const Stream& stream) const;

private:
    const TrainedProduct* own() const { return static_cast<const TrainedProduct*>(engine_.other); }
    Status bias_gradient(const std::byte* dy, int64_t n, TrainWork& work) const;

    FlatMatrix weight_;
    DeviceLinear engine_;
};

}  // namespace nibble
