// A residual block: norm, mixer, optional norm, added to the stream. Every mixer implements this one interface.
#pragma once

#include "base/error.h"
#include "model/batch.h"
#include "model/config.h"
#include "model/linear.h"

#include <memory>

namespace nibble {

enum class Compute : uint8_t { f32, bf16 };

// Sees what calibration needs. Called once per linear and forward, with all rows of the batch in row order; the data
// lives only during the call. An expert's linear is called with the rows routed to it, and their row numbers.
class Observer {
public:
    virtual ~Observer() = default;
    virtual Status input(const Linear& linear, const float* x, int64_t rows, int64_t cols,
                         std::span<const int32_t> batch_rows) = 0;
    // K (after the rotary embedding) and V of an attention block, as they enter the cache.
    virtual Status kv(const std::string& prefix, const float* k, const float* v, int64_t rows, int64_t k_cols,
                      int64_t v_cols) = 0;
    // Backward only: the gradient of the loss with respect to a linear's output, the same rows as `input`.
    virtual Status output_gradient(const Linear& linear, const float* g, int64_t rows, int64_t cols,
                                   std::span<const int32_t> batch_rows) = 0;
};

// Where gradients of parameters go; nullptr when only activations' gradients are wanted (calibration).
class GradientSink {
public:
    virtual ~GradientSink() = default;
    virtual Status add(const std::string& tensor, const float* gradient, int64_t rows, int64_t cols) = 0;
};

struct Workspace;  // scratch rows, kernels, thread pool: model/workspace.h

class Block {
public:
    virtual ~Block() = default;
    virtual const BlockConfig& config() const = 0;
    // x [batch.rows(), hidden], in and out.
    virtual Status forward(const Batch& batch, float* x, Workspace& work, Observer* observer) const = 0;
    // Whole sequences only (Batch::whole): x the input of forward, dy the gradient of its output; dy becomes the
    // gradient of x. Recomputes what it needs. FP32.
    virtual Status backward(const Batch& batch, const float* x, float* dy, Workspace& work, Observer* observer,
                            GradientSink* sink) const = 0;
    virtual std::vector<const Linear*> linears() const = 0;
};

}  // namespace nibble
