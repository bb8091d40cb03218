#include "model/linear.h"

#include "model/block.h"

namespace nibble {
namespace {

void product(const PackedMatrix& weight, const std::vector<float>& bias, const Linear& like, const float* x, int64_t n,
             float* y, int64_t y_stride, Workspace& work) {
    if (!work.bytes)
        return work.matmul->matmul(weight, {x, n, like.cols, like.activation, like.input_scale},
                                   {y, y_stride, bias.empty() ? nullptr : bias.data(), work.bf16()}, *work.pool);
    byte_product(*work.bytes, byte_rows(*work.bytes, x, n, like.cols, like.cols, *work.pool),
                 byte_weight(*work.bytes, weight, *work.pool), y, y_stride, *work.pool);
    const int64_t cols = weight.rows();
    if (bias.empty() && !work.bf16()) return;
    work.parallel_rows(n, cols, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            float* row = y + i * y_stride;
            if (bias.empty())
                work.elementwise->round_bf16(row, cols);
            else
                work.elementwise->add(bias.data(), cols, work.bf16(), row);
        }
    });
}

}  // namespace

Status Linear::forward(const float* x, int64_t n, float* y, Workspace& work, Observer* observer,
                       std::span<const int32_t> batch_rows) const {
    if (observer) NIBBLE_CHECK(observer->input(*this, x, n, cols, batch_rows));
    product(weight, bias, *this, x, n, y, rows, work);
    return Ok{};
}

int64_t LinearStack::rows() const {
    int64_t sum = 0;
    for (const Linear& part : parts) sum += part.rows;
    return sum;
}

Status LinearStack::forward(const float* x, int64_t n, float* y, Workspace& work, Observer* observer,
                            std::span<const int32_t> batch_rows) const {
    if (observer)
        for (const Linear& part : parts) NIBBLE_CHECK(observer->input(part, x, n, part.cols, batch_rows));
    const int64_t stride = rows();
    if (one) {
        product(weight, bias, parts[0], x, n, y, stride, work);
        return Ok{};
    }
    int64_t at = 0;
    for (const Linear& part : parts) {
        product(part.weight, part.bias, part, x, n, y + at, stride, work);
        at += part.rows;
    }
    return Ok{};
}

}  // namespace nibble
