#include "train/train_products.h"

#include "kernels/unpack.h"
#include "model/gradients.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

namespace nibble {

Result<std::unique_ptr<TrainProducts>> TrainProducts::create(const Model& model, const Parameters& parameters,
                                                             const TrainPrecision& precision, ThreadPool&) {
    std::unique_ptr<TrainProducts> products(new TrainProducts(parameters, precision));
    std::unordered_set<std::string> seen;
    for (const Block& block : model.blocks()) {
        for (const std::span<const Linear> unit : block.mixer().units()) {
            NIBBLE_CHECK(products->add(unit, {}));
            for (const Linear& part : unit) seen.insert(part.name);
        }
        for (const Linear* linear : block.linears())  // routers
            if (!seen.contains(linear->name)) NIBBLE_CHECK(products->add({linear, 1}, {}));
    }
    NIBBLE_CHECK(products->add({&model.head().linear(), 1}, model.config().head));
    return products;
}

// `head`: the weight's tensor where it is not the linear's name with ".weight".
Status TrainProducts::add(std::span<const Linear> parts, const std::string& head) {
    Unit unit;
    unit.cols = parts[0].cols;
    for (const Linear& part : parts) {
        NIBBLE_TRY(const size_t id, parameters_.id(head.empty() ? part.name + ".weight" : head));
        unit.parts.push_back(id);
        unit.rows += part.rows;
    }
    units_.emplace(parts[0].name, std::move(unit));
    return Ok{};
}

TrainProducts::Unit& TrainProducts::fresh(std::span<const Linear> unit) {
    Unit& u = units_.at(unit[0].name);
    if (u.version != parameters_.version()) {
        u.version = parameters_.version();
        u.has_transposed = false;
    }
    return u;
}

Matrix TrainProducts::stacked(const Unit& unit) const {
    Matrix all(parameters_.published(unit.parts[0]).dtype, unit.rows, unit.cols);
    std::byte* to = all.data.data();
    for (const size_t id : unit.parts) {
        const MatrixView part = parameters_.published(id);
        std::memcpy(to, part.data, static_cast<size_t>(part.bytes()));
        to += part.bytes();
    }
    return all;
}

bool TrainProducts::replaces(std::span<const Linear>) const { return false; }

void TrainProducts::forward(std::span<const Linear>, const float*, int64_t, const MatmulOutput&, Workspace&) {}

void TrainProducts::input_gradient(std::span<const Linear> unit, const float* dy, int64_t n, int64_t stride, float* dx,
                                   Workspace& work) {
    Unit& u = fresh(unit);
    if (!u.has_transposed) {
        auto packed = prepack_transposed(stacked(u).view(), *work.pool);
        u.transposed = *std::move(packed);  // BF16 or F32: cannot fail
        u.has_transposed = true;
    }
    work.matmul->matmul(u.transposed, {.x = dy, .rows = n, .stride = stride}, {dx, u.cols}, *work.pool);
}

Status TrainProducts::weight_gradient(std::span<const Linear> unit, const float* x, const float* dy, int64_t n,
                                      int64_t stride, Workspace& work, GradientSink& sink) {
    const Arena::Scope scope(work.arena);
    const Unit& u = fresh(unit);
    float* dy_t = work.arena.floats(u.rows * n);
    float* dw = work.arena.floats(u.rows * u.cols);
    transpose(dy, n, u.rows, stride, dy_t, *work.pool);
    const PackedMatrix x_t = pack_transposed(x, n, u.cols, u.cols, *work.pool);
    work.matmul->matmul(x_t, {.x = dy_t, .rows = u.rows, .stride = n}, {dw, u.cols}, *work.pool);
    int64_t row = 0;
    for (const Linear& part : unit) {
        NIBBLE_CHECK(sink.add(part.name + ".weight", dw + row * u.cols, part.rows, u.cols));
        if (!part.bias.empty()) {
            float* sums = work.arena.floats(part.rows);
            column_sums(dy + row, n, part.rows, stride, sums, work);
            NIBBLE_CHECK(sink.add(part.name + ".bias", sums, part.rows, 1));
        }
        row += part.rows;
    }
    return Ok{};
}

}  // namespace nibble
