// The three products of a linear in training on a GPU (or of several stacked linears that read the same rows). The
// forward product is the engine's. The backward products are planned once per number of tokens. If the engine's linear
// is replaced (DeviceLinear::other), the replacement is a DifferentiableProduct and computes all three.
#pragma once

#include "kernels/codes_matmul_cuda.h"
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

// Plans by (tokens, rows, cols of W, scaled), and plans of code products by shape. They are made on first use and kept.
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

// The data that a linear or a mixer uses during a pass.
struct TrainWork {
    DeviceStep& step;
    const std::byte* published = nullptr;  // flat, BF16; at least the current block is valid
    BackPlans& plans;
    std::byte* workspace = nullptr;  // workspace of products and of two-stage sums, which use it one after another
    const int32_t* first = nullptr;  // [rows]: the row where each row's document begins
    const float* amax = nullptr;     // maximum of a mixer's x if TrainMixer::reads_amax(); else null
    // The block's cache, if K and V are recorded or rounded; else null.
    const TrainCacheRows* cache = nullptr;
    float* of_vectors = nullptr;  // base of the gradients of vectors: a flat address at which only vectors are stored
};

// The vectors of a model: their place in the flat arrays by tensor name, and their FP32 values on the device (null
// before loading).
struct TrainVectors {
    std::function<Result<int64_t>(const std::string& tensor)> place;
    std::function<const float*(int64_t place)> at;
};

// Place -1 is a frozen parameter, whose values the engine has loaded. Its gradient is null and is not computed.
inline float* gradient_at(float* gradient, int64_t place) { return place < 0 ? nullptr : gradient + place; }

// Work between the two backward products, for example to compute an x that depends on dx; empty: nothing.
using Between = std::function<Status()>;
inline Status made(const Between& between) { return between ? between() : Status(Ok{}); }

// Replaces a linear's products, including the backward pass: a quantizing recipe (RecipeProduct), or adapters over a
// frozen weight (FrozenProduct).
class DifferentiableProduct : public DeviceProduct {
public:
    // Makes its operands from the published values.
    virtual Status publish(const std::byte* published, const Stream& stream) const = 0;
    // x: the input of the forward product; null unless reads_inputs_back().
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
    // Returns true if the rounding of its input needs the largest magnitude of the whole input.
    virtual bool reads_amax() const { return false; }
    // Maximum scratch memory of the backward products, in addition to the caller's.
    virtual int64_t back_scratch_bytes(int64_t n) const = 0;
};

class TrainLinear {
public:
    TrainLinear() = default;
    // The engine's linear then reads its biases from `vectors`. Error: parts that do not multiply as one product.
    TrainLinear(const FlatMatrix& weight, DeviceLinear& engine, const TrainVectors& vectors);
    static Result<TrainLinear> of(const FlatMatrix& weight, DeviceStack& engine, const TrainVectors& vectors);

    int64_t rows() const { return weight_.rows; }
    int64_t cols() const { return weight_.cols; }
    // Bytes for two-stage sums.
    int64_t workspace() const { return weight_.bias < 0 ? 0 : cuda::column_sums_workspace(weight_.rows); }

    // y [n, rows] FP32, y_stride floats from row to row (0: contiguous).
    Status forward(const std::byte* x, int64_t n, float* y, int64_t y_stride, TrainWork& work) const;
    // The same rounded to BF16, with contiguous rows. It uses rounded_bytes() of scratch memory.
    Status forward_rounded(const std::byte* x, int64_t n, std::byte* y, TrainWork& work,
                           const float* amax = nullptr) const {
        return engine_.forward_rounded({.x = x, .amax = amax}, n, y, work.step);
    }
    // Returns true if forward_rounded() of n rows is faster with the largest magnitude of x (DeviceInput::amax).
    bool reads_amax(int64_t n) const { return own() && rounded_bytes(n) == 0 && own()->reads_amax(); }
    int64_t rounded_bytes(int64_t n) const {  // for n rows or fewer
        return std::max(engine_.rounded_bytes(n), engine_.rounded_bytes(std::min<int64_t>(n, 64)));
    }
    // dx [n, cols] BF16 = dy [n, rows] BF16 W. x may be null unless reads_inputs_back().
    Status input_gradient(const std::byte* dy, const std::byte* x, int64_t n, std::byte* dx, TrainWork& work) const;
    bool reads_inputs_back() const { return own() && own()->reads_inputs_back(); }
    // Writes dW = dy^T x to `gradient` (flat), or adds it with `add`. If there are biases, the sums of dy go to
    // work.of_vectors (not supported with `add`).
    Status weight_gradient(const std::byte* dy, const std::byte* x, int64_t n, float* gradient, bool add,
                           TrainWork& work) const;
    // Both gradients, reading dy once if a kernel supports it.
    Status backward(const std::byte* dy, const std::byte* x, int64_t n, std::byte* dx, float* gradient, bool add,
                    TrainWork& work, const Between& between = {}) const;

    // Makes the engine's operand from the published values. It must not be used with `overlap`: a product may then read
    // its weights before the previous kernel has ended.
    Status publish(const std::byte* published, const Stream& stream) const;

private:
    const DifferentiableProduct* own() const { return static_cast<const DifferentiableProduct*>(engine_.other); }
    Status bias_gradient(const std::byte* dy, int64_t n, TrainWork& work) const;

    FlatMatrix weight_;
    DeviceLinear engine_;
};

}  // namespace nibble
