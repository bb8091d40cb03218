// Arrays of other libraries as memory: any object with DLPack's C table, `__dlpack__` or the buffer protocol. Nothing
// is copied. All functions need the GIL.
#pragma once

#include "core/dlpack.h"
#include "jobs/array.h"

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace nibble::python {

namespace nb = nanobind;

enum class Element : uint8_t {
    f64,
    f32,
    f16,
    bf16,
    e4m3,
    e5m2,
    e8m0,
    e2m1,
    u8,
    i8,
    u16,
    i16,
    i32,
    i64,
    boolean,
    other
};
std::string_view element_name(Element element);  // "bfloat16", "float8_e4m3fn"; e2m1: "float4_e2m1fn_x2"
// Bytes; of e2m1, two numbers.
int64_t element_size(Element element);

// The library that results are made with.
struct Producer {
    enum class Kind : uint8_t { torch, numpy, other } kind = Kind::other;
    const DlExchange* table = nullptr;  // exchange table of torch
};

// The memory of one argument. It is valid while this object lives and the caller holds the Python object.
class Array {
public:
    static constexpr int most_dimensions = 8;

    // Errors (thrown): no array, more than 8 dimensions, another device than the CPU, a view that has no memory of its
    // own (conjugate, negative, fake). Messages begin with `function` and name the argument.
    Array(nb::handle object, const char* function, const char* argument);
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;

    Element element = Element::other;
    int ndim = 0;
    int64_t shape[most_dimensions] = {};    // e2m1: in bytes along the last dimension
    int64_t strides[most_dimensions] = {};  // bytes
    std::byte* data = nullptr;
    bool read_only = false;
    Producer producer;

    int64_t size() const;  // elements
    bool contiguous() const;
    std::string text() const;  // "(4096, 4090) bfloat16"
    const char* function() const { return function_; }
    const char* argument() const { return argument_; }

    // Throws a ShapeError or DTypeError: "quantize: x is (2, 3) float32; WHY".
    [[noreturn]] void refuse_shape(std::string_view why) const;
    [[noreturn]] void refuse_type(std::string_view why) const;

private:
    void take_borrowed(nb::handle object);
    void take_dlpack(nb::handle object);
    void take_buffer(Element element);
    void use(const DlTensor& t);

    const char* function_;
    const char* argument_;
    // A buffer that is given back at the end, also where the constructor throws.
    struct Buffer {
        Py_buffer view{};
        bool held = false;
        ~Buffer() {
            if (held) PyBuffer_Release(&view);
        }
    };
    Buffer buffer_;
    nb::object keep_;  // a capsule, or a view
};

// A matrix of all numbers along the last dimension. Leading dimensions become rows.
struct Rows {
    ArrayRows rows;
    std::vector<int64_t> offsets;  // rows.offsets refers to them
};
// Throws a DTypeError for elements other than F32, F16, BF16, E4M3, E5M2, and a ShapeError for an array without
// dimensions.
Rows rows_of(const Array& x);

// A new array of the producer's library: torch tensors of any type, numpy arrays (8-bit floats as uint8, BF16 as
// uint16), otherwise an array with `__dlpack__` and the buffer protocol. `data`: its memory.
nb::object make_array(const Producer& producer, Element element, std::span<const int64_t> shape, void*& data);

// A tuple of whole numbers.
nb::object shape_tuple(std::span<const int64_t> shape);

}  // namespace nibble::python
