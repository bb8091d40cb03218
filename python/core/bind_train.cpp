// The products of a linear layer in training (train/train_products.h), for autograd functions of torch.
#include "base/float_control.h"
#include "core/array.h"
#include "core/errors.h"
#include "core/gil.h"
#include "core/module.h"
#include "core/threads.h"
#include "train/train_products.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <vector>

namespace nibble::python {
namespace {

// An argument [rows, cols] in FP32.
struct FloatMatrix {
    int64_t rows = 0, cols = 0;
    std::vector<float> values;
    Producer producer;

    FloatMatrix(nb::handle object, const char* name) {
        const Array a(object, "TrainLinear", name);
        if (a.ndim != 2) a.refuse_shape("give a matrix");
        const Rows source = rows_of(a);
        rows = source.rows.rows;
        cols = source.rows.cols;
        producer = a.producer;
        values.resize(static_cast<size_t>(rows * cols));
        const WithoutGil released;
        read_array(source.rows, 0, rows, values.data());
    }
};

nb::object new_floats(const Producer& producer, int64_t rows, int64_t cols, float*& out) {
    void* data = nullptr;
    const int64_t shape[] = {rows, cols};
    nb::object array = make_array(producer, Element::f32, shape, data);
    out = static_cast<float*>(data);
    return array;
}

void check_sizes(const char* what, int64_t left, int64_t right) {
    if (left != right) raise("ShapeError", fmt::format("TrainLinear: {}: {} and {}", what, left, right));
}

// Runs a product without the lock of the interpreter.
template <class Work>
void compute(const Work& work) {
    Status done = Ok{};
    {
        const WithoutGil released;
        const FloatControlScope control;
        done = guarded([&]() -> Status {
            work(shared_pool());
            return Ok{};
        });
    }
    if (!done.ok()) raise(done.error());
}

nb::object forward(const TrainProducts& products, nb::handle x, nb::handle w) {
    const FloatMatrix a(x, "x"), b(w, "weight");
    check_sizes("columns of x and of the weight", a.cols, b.cols);
    float* y = nullptr;
    nb::object out = new_floats(a.producer, a.rows, b.rows, y);
    compute(
        [&](ThreadPool& pool) { products.forward(a.values.data(), a.rows, b.values.data(), b.rows, b.cols, y, pool); });
    return out;
}

nb::object input_gradient(const TrainProducts& products, nb::handle dy, nb::handle w, uint32_t linear, uint64_t seed,
                          uint64_t step) {
    const FloatMatrix a(dy, "gradient"), b(w, "weight");
    check_sizes("columns of the gradient and rows of the weight", a.cols, b.rows);
    float* dx = nullptr;
    nb::object out = new_floats(a.producer, a.rows, b.cols, dx);
    compute([&](ThreadPool& pool) {
        products.input_gradient(a.values.data(), a.rows, b.values.data(), b.rows, b.cols, dx, {linear, seed, step},
                                pool);
    });
    return out;
}

nb::object weight_gradient(const TrainProducts& products, nb::handle dy, nb::handle x, uint32_t linear, uint64_t seed,
                           uint64_t step) {
    const FloatMatrix a(dy, "gradient"), b(x, "x");
    check_sizes("rows of the gradient and of x", a.rows, b.rows);
    float* dw = nullptr;
    nb::object out = new_floats(a.producer, a.cols, b.cols, dw);
    compute([&](ThreadPool& pool) {
        products.weight_gradient(a.values.data(), b.values.data(), a.rows, a.cols, b.cols, dw, {linear, seed, step},
                                 pool);
    });
    return out;
}

}  // namespace

void bind_train(nb::module_& m) {
    nb::class_<TrainProducts>(m, "TrainProducts")
        .def("forward", &forward, nb::arg("x"), nb::arg("weight"))
        .def("input_gradient", &input_gradient, nb::arg("gradient"), nb::arg("weight"), nb::arg("linear"),
             nb::arg("seed"), nb::arg("step"))
        .def("weight_gradient", &weight_gradient, nb::arg("gradient"), nb::arg("x"), nb::arg("linear"), nb::arg("seed"),
             nb::arg("step"));
    m.def(
        "train_products", [](std::string_view recipe) { return value_or_raise(TrainProducts::create(recipe)); },
        nb::arg("recipe"));
}

}  // namespace nibble::python
