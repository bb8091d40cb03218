#include "model/cpu/linear.h"

#include "model/cpu/block.h"

namespace nibble {
namespace {

void product(const PackedMatrix& weight, const std::vector<float>& bias, const Linear& like, const float* x, int64_t n,
             float* y, int64_t y_stride, Workspace& work, std::optional<Activation> gated = {}) {
    const MatmulOutput out{y, y_stride, bias.empty() ? nullptr : bias.data(), work.bf16(), gated};
    if (work.bytes) return work.bytes->forward(weight, x, n, like.cols, out, *work.pool);
    work.matmul->matmul(weight, {x, n, like.cols, like.activation, like.input_scale}, out, *work.pool);
}

}  // namespace

Status Linear::forward(const float* x, int64_t n, float* y, Workspace& work, Observer* observer,
                       std::span<const int32_t> batch_rows) const {
    if (observer) NIBBLE_CHECK(observer->input(*this, x, n, cols, batch_rows));
    if (divided) {
        const Arena::Scope scope(work.arena);
        float* own = work.arena.floats(n * divided->own());
        product(weight, bias, *this, x, n, own, divided->own(), work);
        return divided->gather(own, n, y, rows, work);
    }
    const std::span unit(this, 1);
    if (work.products && work.products->replaces(unit)) {
        work.products->forward(unit, x, n, {y, rows, bias.empty() ? nullptr : bias.data(), work.bf16()}, work);
        return Ok{};
    }
    product(weight, bias, *this, x, n, y, rows, work);
    if (work.products && work.products->adds(unit)) work.products->add(unit, x, n, y, rows, work);
    return Ok{};
}

Status forward_gathered(const Linear& linear, const RankColumns* columns, const float* x, int64_t n, float* y,
                        Workspace& work, Observer* observer, std::span<const int32_t> batch_rows) {
    if (!columns) return linear.forward(x, n, y, work, observer, batch_rows);
    const Arena::Scope scope(work.arena);
    float* all = work.arena.floats(n * columns->all());
    NIBBLE_CHECK(columns->gather(x, n, all, columns->all(), work));
    return linear.forward(all, n, y, work, observer, batch_rows);
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
    if (divided) return forward_divided(x, n, y, work);
    const int64_t stride = rows();
    if (work.products && work.products->replaces(parts)) {
        work.products->forward(parts, x, n, {y, stride, bias.empty() ? nullptr : bias.data(), work.bf16()}, work);
        return Ok{};
    }
    if (one) {
        product(weight, bias, parts[0], x, n, y, stride, work);
    } else {
        int64_t at = 0;
        for (const Linear& part : parts) {
            product(part.weight, part.bias, part, x, n, y + at, stride, work);
            at += part.rows;
        }
    }
    if (work.products && work.products->adds(parts)) work.products->add(parts, x, n, y, stride, work);
    return Ok{};
}

Status LinearStack::forward_divided(const float* x, int64_t n, float* y, Workspace& work) const {
    const Arena::Scope scope(work.arena);
    const int64_t stride = divided->own();
    float* own = work.arena.floats(n * stride);
    if (one) {
        product(weight, bias, parts[0], x, n, own, stride, work);
    } else {
        int64_t at = 0;
        for (const Linear& part : parts) {
            product(part.weight, part.bias, part, x, n, own + at, stride, work);
            at += part.weight.rows();
        }
    }
    return divided->gather(own, n, y, rows(), work);
}

Status LinearStack::forward_gated(Activation activation, const float* x, int64_t n, float* y, Workspace& work,
                                  Observer* observer, std::span<const int32_t> batch_rows) const {
    if (observer)
        for (const Linear& part : parts) NIBBLE_CHECK(observer->input(part, x, n, part.cols, batch_rows));
    product(weight, bias, parts[0], x, n, y, rows() / 2, work, activation);
    return Ok{};
}

}  // namespace nibble
