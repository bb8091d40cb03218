#include "model/gradients.h"

#include "architecture/tensor_list.h"
#include "kernels/unpack.h"

#include <algorithm>
#include <cmath>

namespace nibble {

void transpose(const float* x, int64_t rows, int64_t cols, int64_t stride, float* y, ThreadPool& pool) {
    constexpr int64_t tile = 32;
    pool.parallel_for((cols + tile - 1) / tile, [&](int64_t part) {
        const int64_t first = part * tile, last = std::min(first + tile, cols);
        for (int64_t begin = 0; begin < rows; begin += tile)
            for (int64_t j = first; j < last; ++j)
                for (int64_t i = begin; i < std::min(begin + tile, rows); ++i) y[j * rows + i] = x[i * stride + j];
    });
}

void column_sums(const float* x, int64_t rows, int64_t cols, int64_t stride, float* sums, Workspace& work) {
    constexpr int64_t tile = 64;
    work.pool->parallel_for((cols + tile - 1) / tile, [&](int64_t part) {
        const int64_t first = part * tile, count = std::min(tile, cols - first);
        double total[tile] = {};
        for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = 0; j < count; ++j) total[j] += x[i * stride + first + j];
        for (int64_t j = 0; j < count; ++j) sums[first + j] = static_cast<float>(total[j]);
    });
}

void input_gradient(const PackedMatrix& weight, const float* dy, int64_t n, int64_t stride, float* dx,
                    Workspace& work) {
    const MatmulOutput out{dx, weight.cols()};
    if (work.bytes) return work.bytes->backward(weight, dy, n, stride, out, *work.pool);
    work.matmul->matmul(transposed(weight, *work.pool), {.x = dy, .rows = n, .stride = stride}, out, *work.pool);
}

void input_gradient(const Linear& linear, const float* x, const float* dy, int64_t n, int64_t stride, float* dx,
                    Workspace& work) {
    if (work.products) return work.products->input_gradient({&linear, 1}, x, dy, n, stride, dx, work);
    input_gradient(linear.weight, dy, n, stride, dx, work);
}

Status report_gradient(const Linear& linear, const float* x, const float* dy, int64_t dy_stride, int64_t n,
                       Workspace& work, Observer* observer, GradientSink* sink, std::span<const int32_t> batch_rows) {
    const Arena::Scope scope(work.arena);
    if (observer) {
        const float* g = dy;
        if (dy_stride != linear.rows) {
            float* copy = work.arena.floats(n * linear.rows);
            work.parallel_rows(n, linear.rows, [&](int64_t first, int64_t last) {
                for (int64_t i = first; i < last; ++i)
                    std::copy_n(dy + i * dy_stride, linear.rows, copy + i * linear.rows);
            });
            g = copy;
        }
        NIBBLE_CHECK(observer->input(linear, x, n, linear.cols, batch_rows));
        NIBBLE_CHECK(observer->output_gradient(linear, g, n, linear.rows, batch_rows));
    }
    if (!sink) return Ok{};
    if (work.products) return work.products->weight_gradient({&linear, 1}, x, dy, n, dy_stride, work, *sink);
    // dW = dy^T x is computed as a product whose weight is x^T.
    float* dy_t = work.arena.floats(linear.rows * n);
    float* dw = work.arena.floats(linear.rows * linear.cols);
    transpose(dy, n, linear.rows, dy_stride, dy_t, *work.pool);
    const PackedMatrix x_t = pack_transposed(x, n, linear.cols, linear.cols, *work.pool);
    work.matmul->matmul(x_t, {.x = dy_t, .rows = linear.rows, .stride = n}, {dw, linear.cols}, *work.pool);
    NIBBLE_CHECK(sink->add(linear.name + ".weight", dw, linear.rows, linear.cols));
    if (linear.bias.empty()) return Ok{};
    float* sums = work.arena.floats(linear.rows);
    column_sums(dy, n, linear.rows, dy_stride, sums, work);
    return sink->add(linear.name + ".bias", sums, linear.rows, 1);
}

Status linear_backward(const Linear& linear, const float* x, const float* dy, int64_t n, float* dx, Workspace& work,
                       Observer* observer, GradientSink* sink, std::span<const int32_t> batch_rows) {
    NIBBLE_CHECK(report_gradient(linear, x, dy, linear.rows, n, work, observer, sink, batch_rows));
    if (dx) input_gradient(linear, x, dy, n, linear.rows, dx, work);
    return Ok{};
}

Status linear_backward(const LinearStack& stack, const float* x, const float* dy, int64_t n, float* dx, Workspace& work,
                       Observer* observer, GradientSink* sink, std::span<const int32_t> batch_rows) {
    if (work.products) {
        if (observer)
            return fail("'{}': observers are not supported in a model that is being trained", stack.parts[0].name);
        if (sink) NIBBLE_CHECK(work.products->weight_gradient(stack.parts, x, dy, n, stack.rows(), work, *sink));
        if (dx) work.products->input_gradient(stack.parts, x, dy, n, stack.rows(), dx, work);
        return Ok{};
    }
    int64_t offset = 0;
    for (const Linear& part : stack.parts) {
        NIBBLE_CHECK(report_gradient(part, x, dy + offset, stack.rows(), n, work, observer, sink, batch_rows));
        offset += part.rows;
    }
    if (!dx) return Ok{};
    if (stack.one) {
        input_gradient(stack.weight, dy, n, stack.rows(), dx, work);
        return Ok{};
    }
    const int64_t cols = stack.parts[0].cols;
    const Arena::Scope scope(work.arena);
    float* sum = work.arena.floats(n * cols);
    offset = 0;
    for (const Linear& part : stack.parts) {
        const bool first = offset == 0;
        input_gradient(part.weight, dy + offset, n, stack.rows(), first ? dx : sum, work);
        if (!first) work.elementwise->add(sum, n * cols, false, dx);
        offset += part.rows;
    }
    return Ok{};
}

// With r = 1 / sqrt(mean(x^2) + eps): dx = r (g - x r^2 mean(g x)), g = dy w.
Status norm_backward(const NormRows& norm, std::span<const float> w, const float* dy, float* dx, int64_t dx_stride,
                     bool add, const std::string& name, Workspace& work, GradientSink* sink) {
    const auto n = static_cast<int64_t>(w.size()), group = n / norm.groups;
    const Arena::Scope scope(work.arena);
    float* dw_rows = sink ? work.arena.floats(norm.rows * n) : nullptr;
    float* scaled = work.arena.floats(norm.rows * n);  // g
    work.parallel_rows(norm.rows, 8 * n, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i)
            for (int64_t at = 0; at < n; at += group) {
                const float* x = norm.x + i * norm.stride + at;
                const float* d = dy + i * n + at;
                float* g = scaled + i * n + at;
                for (int64_t j = 0; j < group; ++j) g[j] = d[j] * w[at + j];
                const float mean = work.gradient->dot(x, x, group) / static_cast<float>(group);
                const float r = 1.0f / std::sqrt(mean + norm.eps);
                const float c = work.gradient->dot(g, x, group) / static_cast<float>(group) * r * r;
                if (dw_rows)
                    for (int64_t j = 0; j < group; ++j) dw_rows[i * n + at + j] = d[j] * (x[j] * r);
                float* out = dx + i * dx_stride + at;
                if (add)
                    for (int64_t j = 0; j < group; ++j) out[j] += r * (g[j] - x[j] * c);
                else
                    for (int64_t j = 0; j < group; ++j) out[j] = r * (g[j] - x[j] * c);
            }
    });
    if (!sink) return Ok{};
    float* sums = work.arena.floats(n);
    column_sums(dw_rows, norm.rows, n, n, sums, work);
    return sink->add(name, sums, n, 1);
}

// LayerNorm, with xh = (x - mean) r and g = dy w: dx = r (g - mean(g) - xh mean(g xh)).
Status norm_backward(const Norm& norm, const float* x, int64_t rows, const float* dy, float* dx, bool add,
                     const std::string& name, Workspace& work, GradientSink* sink) {
    const auto n = static_cast<int64_t>(norm.weight.size());
    if (!norm.centered)
        return norm_backward({.x = x, .stride = n, .rows = rows, .eps = norm.eps}, norm.weight, dy, dx, n, add, name,
                             work, sink);
    const Arena::Scope scope(work.arena);
    float* dw_rows = work.arena.floats(rows * n);
    float* scaled = work.arena.floats(rows * n);
    const std::vector<float> ones(static_cast<size_t>(n), 1.0f);
    const auto width = static_cast<float>(n);
    work.parallel_rows(rows, 8 * n, [&](int64_t first, int64_t last) {
        std::vector<float> unit(static_cast<size_t>(n));
        for (int64_t i = first; i < last; ++i) {
            const float *row = x + i * n, *d = dy + i * n;
            float *g = scaled + i * n, *out = dx + i * n;
            const float mean = work.gradient->dot(row, ones.data(), n) / width;
            for (int64_t j = 0; j < n; ++j) unit[size_t(j)] = row[j] - mean;
            const float r = 1.0f / std::sqrt(work.gradient->dot(unit.data(), unit.data(), n) / width + norm.eps);
            for (int64_t j = 0; j < n; ++j) {
                unit[size_t(j)] *= r;
                g[j] = d[j] * norm.weight[size_t(j)];
                dw_rows[i * n + j] = d[j] * unit[size_t(j)];
            }
            const float g_mean = work.gradient->dot(g, ones.data(), n) / width;
            const float c = work.gradient->dot(g, unit.data(), n) / width;
            for (int64_t j = 0; j < n; ++j) {
                const float dj = r * (g[j] - g_mean - unit[size_t(j)] * c);
                out[j] = add ? out[j] + dj : dj;
            }
        }
    });
    if (!sink) return Ok{};
    float* sums = work.arena.floats(n);
    column_sums(dw_rows, rows, n, n, sums, work);
    NIBBLE_CHECK(sink->add(name, sums, n, 1));
    if (norm.bias.empty()) return Ok{};
    column_sums(dy, rows, n, n, sums, work);
    return sink->add(bias_of_norm(name), sums, n, 1);
}

}  // namespace nibble
