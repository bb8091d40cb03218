// Gradients of what every block is made of. Rows are adjacent unless a stride says otherwise.
//
// An observer sees each linear during a backward pass twice in a row: `input` with the rows it read, `output_gradient`
// with the gradients of the rows it wrote.
#pragma once

#include "model/cpu/block.h"
#include "model/cpu/linear.h"

namespace nibble {

// dx [n, linear.cols] from dy [n, linear.rows]; x [n, linear.cols] its input. dx may be nullptr.
Status linear_backward(const Linear& linear, const float* x, const float* dy, int64_t n, float* dx, Workspace& work,
                       Observer* observer, GradientSink* sink, std::span<const int32_t> batch_rows = {});
Status linear_backward(const LinearStack& stack, const float* x, const float* dy, int64_t n, float* dx, Workspace& work,
                       Observer* observer, GradientSink* sink, std::span<const int32_t> batch_rows = {});
// Its parts: dx = dy W, `stride` floats from row to row of dy, and everything else.
void input_gradient(const Linear& linear, const float* x, const float* dy, int64_t n, int64_t stride, float* dx,
                    Workspace& work);
void input_gradient(const PackedMatrix& weight, const float* dy, int64_t n, int64_t stride, float* dx, Workspace& work);
Status report_gradient(const Linear& linear, const float* x, const float* dy, int64_t dy_stride, int64_t n,
                       Workspace& work, Observer* observer, GradientSink* sink, std::span<const int32_t> batch_rows);

// y = rms_norm(x, w) of `groups` runs of w.size() / groups numbers each. dx [rows, w.size()] is written, or added to
// when `add`; it may be dy. The gradient of w goes to `name` unless there is no sink.
struct NormRows {
    const float* x = nullptr;
    int64_t stride = 0, rows = 0;
    int groups = 1;
    float eps = 0;
};
Status norm_backward(const NormRows& norm, std::span<const float> w, const float* dy, float* dx, int64_t dx_stride,
                     bool add, const std::string& name, Workspace& work, GradientSink* sink);

// sums[j] = sum over i of x[i, j], i ascending, in FP64.
void column_sums(const float* x, int64_t rows, int64_t cols, int64_t stride, float* sums, Workspace& work);

// y [cols, rows] = x^T
void transpose(const float* x, int64_t rows, int64_t cols, int64_t stride, float* y, ThreadPool& pool);

}  // namespace nibble
