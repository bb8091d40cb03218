// Gradients of linears and norms. Rows are adjacent unless a stride is given.
//
// During a backward pass, an observer gets two calls per linear in a row: input() with the rows it read,
// output_gradient() with the gradients of the rows it wrote.
#pragma once

#include "model/cpu/block.h"
#include "model/cpu/linear.h"
#include "model/cpu/norm.h"

namespace nibble {

// Computes dx [n, linear.cols] from dy [n, linear.rows]. x [n, linear.cols]: the linear's input. dx may be nullptr.
// Errors: those of observer and sink.
Status linear_backward(const Linear& linear, const float* x, const float* dy, int64_t n, float* dx, Workspace& work,
                       Observer* observer, GradientSink* sink, std::span<const int32_t> batch_rows = {});
Status linear_backward(const LinearStack& stack, const float* x, const float* dy, int64_t n, float* dx, Workspace& work,
                       Observer* observer, GradientSink* sink, std::span<const int32_t> batch_rows = {});
// The two parts of linear_backward(): input_gradient() computes dx = dy W, with `stride` floats from row to row of dy;
// report_gradient() passes x and dy to observer and sink.
void input_gradient(const Linear& linear, const float* x, const float* dy, int64_t n, int64_t stride, float* dx,
                    Workspace& work);
void input_gradient(const PackedMatrix& weight, const float* dy, int64_t n, int64_t stride, float* dx, Workspace& work);
Status report_gradient(const Linear& linear, const float* x, const float* dy, int64_t dy_stride, int64_t n,
                       Workspace& work, Observer* observer, GradientSink* sink, std::span<const int32_t> batch_rows);

// The backward pass of y = rms_norm(x, w) over `groups` runs of w.size() / groups numbers each. dx [rows, w.size()] is
// overwritten, or added to with `add`; it may be dy. The gradient of w goes to the sink under `name`, if there is a
// sink.
struct NormRows {
    const float* x = nullptr;
    int64_t stride = 0, rows = 0;
    int groups = 1;
    float eps = 0;
};
Status norm_backward(const NormRows& norm, std::span<const float> w, const float* dy, float* dx, int64_t dx_stride,
                     bool add, const std::string& name, Workspace& work, GradientSink* sink);

// The same of a norm of the residual stream, x and dx [rows, width]; its bias' gradient, too.
Status norm_backward(const Norm& norm, const float* x, int64_t rows, const float* dy, float* dx, bool add,
                     const std::string& name, Workspace& work, GradientSink* sink);

// Computes sums[j] = sum over i of x[i, j], i ascending, in FP64.
void column_sums(const float* x, int64_t rows, int64_t cols, int64_t stride, float* sums, Workspace& work);

// Writes y [cols, rows] = x^T.
void transpose(const float* x, int64_t rows, int64_t cols, int64_t stride, float* y, ThreadPool& pool);

}  // namespace nibble
