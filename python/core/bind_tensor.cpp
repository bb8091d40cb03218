// Quantized tensors and products.
#include "base/float_control.h"
#include "core/array.h"
#include "core/errors.h"
#include "core/gil.h"
#include "core/module.h"
#include "core/threads.h"
#include "formats/swizzle.h"
#include "jobs/words.h"
#include "kernels/unpack.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cmath>
#include <cstring>

namespace nibble::python {
namespace {

constexpr int64_t quick_elements = 1 << 14;  // work of microseconds, done without releasing the GIL

// The options of a quantization, checked once for each type of element.
class Spec {
public:
    explicit Spec(ArrayOptions options) : options_(std::move(options)) {
        format = value_or_raise(array_spec(options_, ElementType::f32)).weights.format;
    }
    const ArraySpec& of(ElementType type) {
        std::optional<ArraySpec>& spec = specs_[static_cast<size_t>(type)];
        if (!spec) spec = value_or_raise(array_spec(options_, type));
        return *spec;
    }
    Format format;

private:
    ArrayOptions options_;
    std::array<std::optional<ArraySpec>, 5> specs_;
};

// A quantized tensor in the memory of Python arrays.
struct Quant {
    Format format = Format::none;
    std::vector<int64_t> shape;  // shape of the numbers
    int64_t rows = 0, cols = 0;
    uint8_t* codes = nullptr;
    uint8_t* block_scales = nullptr;
    float* float_scales = nullptr;
    float tensor_scale = 1;
    bool writable = false;
    Producer producer;
    nb::object codes_array, block_scales_array = nb::none(), float_scales_array = nb::none();

    QuantView view() const { return {format, rows, cols, codes, block_scales, float_scales, tensor_scale}; }
    QuantSpan span() const { return {format, rows, cols, codes, block_scales, float_scales, tensor_scale}; }
};

// A right operand in the layout of the CPU kernels.
struct Packed {
    PackedMatrix matrix;
    bool no_inputs = false;  // the weights are [outputs, 0], and the matrix has one column of zeros

    int64_t inputs() const { return no_inputs ? 0 : matrix.cols(); }
};

std::vector<int64_t> with_last(std::span<const int64_t> shape, int64_t last) {
    std::vector<int64_t> out(shape.begin(), shape.end());
    out.back() = last;
    return out;
}

// Shapes of the arrays of a quantized tensor; empty: the format has none.
struct PartShapes {
    std::vector<int64_t> codes, block_scales, float_scales;
};
PartShapes part_shapes(Format format, std::span<const int64_t> shape, int64_t rows, int64_t cols) {
    const FormatLayout layout = format_layout(format);
    PartShapes parts{.codes = with_last(shape, layout.code_bits == 4 ? cols / 2 : cols)};
    if (layout.block > 0) parts.block_scales = with_last(shape, cols / layout.block);
    if (layout.float_scales)
        parts.float_scales = {ceil_div<int64_t>(rows, layout.scale_rows), layout.scales_per_row(cols)};
    return parts;
}

Element code_element(const FormatLayout& layout) { return layout.code_bits == 4 ? Element::u8 : Element::e4m3; }
Element scale_element(const FormatLayout& layout) { return layout.e8m0_scales ? Element::e8m0 : Element::e4m3; }

std::shared_ptr<Quant> new_quant(Format format, std::vector<int64_t> shape, int64_t rows, int64_t cols,
                                 const Producer& producer) {
    auto q = std::make_shared<Quant>();
    q->format = format;
    q->rows = rows;
    q->cols = cols;
    q->producer = producer;
    q->writable = true;
    const FormatLayout layout = format_layout(format);
    const PartShapes parts = part_shapes(format, shape, rows, cols);
    q->shape = std::move(shape);
    void* memory = nullptr;
    q->codes_array = make_array(producer, code_element(layout), parts.codes, memory);
    q->codes = static_cast<uint8_t*>(memory);
    if (!parts.block_scales.empty()) {
        q->block_scales_array = make_array(producer, scale_element(layout), parts.block_scales, memory);
        q->block_scales = static_cast<uint8_t*>(memory);
    }
    if (!parts.float_scales.empty()) {
        q->float_scales_array = make_array(producer, Element::f32, parts.float_scales, memory);
        q->float_scales = static_cast<float*>(memory);
    }
    return q;
}

// Runs work, without the GIL where it takes more than microseconds.
template <class Work>
Status without_gil(int64_t elements, const Work& work) {
    if (elements < quick_elements) {
        const FloatControlScope control;
        return work(static_cast<ThreadPool*>(nullptr));
    }
    const WithoutGil released;
    const FloatControlScope control;
    return guarded([&]() -> Status { return work(&shared_pool()); });
}

void raise_for(const Array& x, const Status& status) {
    if (status.ok()) return;
    const Error& error = status.error();
    if (error.kind() == ErrorKind::shape) x.refuse_shape(error.message());
    raise(Error(error).within(x.function()));
}

std::shared_ptr<Quant> quantize(nb::handle object, Spec& spec, nb::handle out) {
    const Array x(object, "quantize", "x");
    const Rows rows = rows_of(x);
    const ArraySpec& how = spec.of(rows.rows.type);
    const FormatLayout layout = format_layout(spec.format);
    if (spec.format == Format::fp8_block128 && x.ndim != 2) x.refuse_shape("fp8_block128 needs two dimensions");
    const int64_t block = how.rotation ? std::max(layout.whole_inputs(), 16) : layout.whole_inputs();
    if (block > 0 && rows.rows.cols % block != 0)
        x.refuse_shape(fmt::format("{} needs columns in multiples of {}", format_name(spec.format), block));
    std::shared_ptr<Quant> q;
    if (out.is_none()) {
        q = new_quant(spec.format, {x.shape, x.shape + x.ndim}, rows.rows.rows, rows.rows.cols, x.producer);
    } else {
        q = nb::cast<std::shared_ptr<Quant>>(out);
        if (q->format != spec.format || q->rows != rows.rows.rows || q->cols != rows.rows.cols)
            raise("ShapeError",
                  fmt::format("quantize: out is {} [{}, {}], x gives {} [{}, {}]", format_name(q->format), q->rows,
                              q->cols, format_name(spec.format), rows.rows.rows, rows.rows.cols));
        if (!q->writable) raise("UsageError", "quantize: out is read-only");
    }
    QuantSpan span = q->span();
    if (rows.rows.rows > 0 && rows.rows.cols > 0)
        raise_for(x, without_gil(rows.rows.rows * rows.rows.cols,
                                 [&](ThreadPool* pool) { return quantize_array(rows.rows, how, span, pool); }));
    q->tensor_scale = span.tensor_scale;
    return q;
}

ElementType plain_type(std::string_view word) {
    if (word == "float32") return ElementType::f32;
    if (word == "bfloat16") return ElementType::bf16;
    if (word == "float16") return ElementType::f16;
    raise("UsageError", fmt::format("dtype: '{}' is unknown; choices: float32, bfloat16, float16", word));
}
Element element_of_plain(ElementType type) {
    return type == ElementType::f32 ? Element::f32 : type == ElementType::f16 ? Element::f16 : Element::bf16;
}

// A result array: the caller's `out`, checked, or a new one.
nb::object result_array(nb::handle out, const char* function, Element element, std::span<const int64_t> shape,
                        const Producer& producer, void*& data) {
    if (out.is_none()) return make_array(producer, element, shape, data);
    const Array array(out, function, "out");
    const bool raw = array.producer.kind == Producer::Kind::numpy && element == Element::bf16;
    if (array.element != element && !(raw && array.element == Element::u16))
        array.refuse_type(fmt::format("the result is {}", element_name(element)));
    if (!std::equal(shape.begin(), shape.end(), array.shape, array.shape + array.ndim))
        array.refuse_shape(fmt::format("the result is ({})", fmt::join(shape, ", ")));
    if (!array.contiguous()) array.refuse_shape("it must be contiguous");
    if (array.read_only) raise("UsageError", fmt::format("{}: out is read-only", function));
    if (array.producer.kind == Producer::Kind::torch && nb::cast<bool>(out.attr("requires_grad")))
        raise("UsageError", fmt::format("{}: out requires a gradient; give a tensor without", function));
    data = array.data;
    return nb::borrow(out);
}

nb::object dequantize(const Quant& q, std::string_view dtype, nb::handle out) {
    const ElementType type = plain_type(dtype);
    void* data = nullptr;
    nb::object result = result_array(out, "dequantize", element_of_plain(type), q.shape, q.producer, data);
    if (q.rows == 0 || q.cols == 0) return result;
    const Status done =
        without_gil(q.rows * q.cols, [&](ThreadPool* pool) { return dequantize_array(q.view(), type, data, pool); });
    if (!done.ok()) raise(Error(done.error()).within("dequantize"));
    return result;
}

void check_bytes(const Array& a, int64_t bytes, bool floats) {
    const bool fits =
        floats ? a.element == Element::f32 : element_size(a.element) == 1 && a.element != Element::boolean;
    if (!fits) a.refuse_type(floats ? "give float32" : "give bytes (uint8, float8 or float4)");
    if (a.size() * element_size(a.element) != bytes) a.refuse_shape(fmt::format("{} bytes are needed", bytes));
    if (!a.contiguous()) a.refuse_shape("it must be contiguous; call .contiguous() or numpy.ascontiguousarray first");
}

// A quantized tensor of existing arrays.
std::shared_ptr<Quant> wrap(std::string_view format_word, nb::handle codes, nb::handle block_scales,
                            nb::handle float_scales, float tensor_scale, bool swizzled) {
    auto q = std::make_shared<Quant>();
    q->format = value_or_raise(parse_format(format_word));
    if (q->format == Format::none)
        raise("UsageError", fmt::format("format: '{}' is not a quantized format", format_word));
    const FormatLayout layout = format_layout(q->format);
    const Array c(codes, "QuantTensor", "codes");
    if (c.ndim == 0) c.refuse_shape("it needs at least one dimension");
    q->shape.assign(c.shape, c.shape + c.ndim);
    q->shape.back() *= layout.code_bits == 4 ? 2 : 1;
    q->cols = q->shape.back();
    q->rows = 1;
    for (int i = 0; i + 1 < c.ndim; ++i) q->rows *= c.shape[i];
    check_bytes(c, code_bytes(q->format, q->rows, q->cols), false);
    if (!format_fits(q->format, q->cols))
        c.refuse_shape(
            fmt::format("{} needs columns in multiples of {}", format_name(q->format), layout.whole_inputs()));
    q->codes = reinterpret_cast<uint8_t*>(c.data);
    q->codes_array = nb::borrow(codes);
    q->producer = c.producer;
    q->tensor_scale = tensor_scale;
    q->writable = !c.read_only;
    if (layout.block > 0) {
        const int64_t across = q->cols / layout.block;
        if (block_scales.is_none()) raise("UsageError", fmt::format("QuantTensor: {} has block_scales", format_word));
        const Array s(block_scales, "QuantTensor", "block_scales");
        if (swizzled) {
            check_bytes(s, swizzled_scale_bytes(q->rows, across), false);
            void* data = nullptr;
            q->block_scales_array = make_array(q->producer, scale_element(layout), with_last(q->shape, across), data);
            q->block_scales = static_cast<uint8_t*>(data);
            unswizzle_array(reinterpret_cast<const uint8_t*>(s.data), q->rows, across, q->block_scales);
        } else {
            check_bytes(s, block_scale_bytes(q->format, q->rows, q->cols), false);
            q->block_scales = reinterpret_cast<uint8_t*>(s.data);
            q->block_scales_array = nb::borrow(block_scales);
            q->writable = q->writable && !s.read_only;
        }
    }
    if (layout.float_scales) {
        if (float_scales.is_none()) raise("UsageError", fmt::format("QuantTensor: {} has float_scales", format_word));
        const Array s(float_scales, "QuantTensor", "float_scales");
        check_bytes(s, float_scale_count(q->format, q->rows, q->cols) * 4, true);
        q->float_scales = reinterpret_cast<float*>(s.data);
        q->float_scales_array = nb::borrow(float_scales);
        q->writable = q->writable && !s.read_only;
    }
    return q;
}

nb::object swizzle(nb::handle scales) {
    const Array s(scales, "swizzle", "scales");
    if (s.ndim != 2) s.refuse_shape("scales are [rows, blocks]");
    check_bytes(s, s.shape[0] * s.shape[1], false);
    void* data = nullptr;
    const int64_t bytes[] = {swizzled_scale_bytes(s.shape[0], s.shape[1])};
    nb::object out = make_array(s.producer, s.element, bytes, data);
    swizzle_array(reinterpret_cast<const uint8_t*>(s.data), s.shape[0], s.shape[1], static_cast<uint8_t*>(data));
    return out;
}

nb::object unswizzle(nb::handle swizzled, int64_t rows, int64_t cols) {
    const Array s(swizzled, "unswizzle", "scales");
    if (rows < 0 || cols < 0 || rows > (int64_t{1} << 40) || cols > (int64_t{1} << 20))
        raise("ShapeError", fmt::format("unswizzle: [{}, {}] is no shape of scales", rows, cols));
    check_bytes(s, swizzled_scale_bytes(rows, cols), false);
    void* data = nullptr;
    const int64_t shape[] = {rows, cols};
    nb::object out = make_array(s.producer, s.element, shape, data);
    unswizzle_array(reinterpret_cast<const uint8_t*>(s.data), rows, cols, static_cast<uint8_t*>(data));
    return out;
}

nb::object pack(nb::handle codes) {
    const Array c(codes, "pack", "codes");
    if (c.element != Element::u8) c.refuse_type("give uint8 codes from 0 to 15");
    if (c.ndim == 0 || c.shape[c.ndim - 1] % 2 != 0) c.refuse_shape("the last dimension must be even");
    check_bytes(c, c.size(), false);
    void* data = nullptr;
    nb::object out =
        make_array(c.producer, Element::u8, with_last({c.shape, size_t(c.ndim)}, c.shape[c.ndim - 1] / 2), data);
    pack_codes(reinterpret_cast<const uint8_t*>(c.data), c.size(), static_cast<uint8_t*>(data));
    return out;
}

nb::object unpack(nb::handle packed) {
    const Array c(packed, "unpack", "packed");
    if (c.ndim == 0) c.refuse_shape("it needs at least one dimension");
    check_bytes(c, c.size(), false);
    void* data = nullptr;
    nb::object out =
        make_array(c.producer, Element::u8, with_last({c.shape, size_t(c.ndim)}, c.shape[c.ndim - 1] * 2), data);
    unpack_codes(reinterpret_cast<const uint8_t*>(c.data), c.size() * 2, static_cast<uint8_t*>(data));
    return out;
}

// FP8 codes [rows, cols] with float32 scales per 1 x 128 or 128 x 128, as float32.
nb::object from_tiles(nb::handle codes, nb::handle scales, int64_t tile_rows) {
    const Array c(codes, "scaled_mm", "codes"), s(scales, "scaled_mm", "scales");
    const Rows rows = rows_of(c);
    check_bytes(s, (rows.rows.rows + tile_rows - 1) / tile_rows * ((rows.rows.cols + 127) / 128) * 4, true);
    void* data = nullptr;
    nb::object out = make_array(c.producer, Element::f32, {c.shape, size_t(c.ndim)}, data);
    decode_tiles(rows.rows, reinterpret_cast<const float*>(s.data), tile_rows, static_cast<float*>(data));
    return out;
}

Packed packed_of(nb::handle w) {
    const auto without_inputs = [](int64_t outputs) {
        const std::vector<float> zeros(static_cast<size_t>(outputs));
        return Packed{pack_rows(zeros.data(), outputs, 1, 1, shared_pool()), true};
    };
    if (nb::isinstance<Quant>(w)) {
        const Quant& q = nb::cast<const Quant&>(w);
        if (q.cols == 0) return without_inputs(q.rows);
        return {value_or_raise([&] {
            const WithoutGil released;
            const FloatControlScope control;
            return prepack(q.view(), shared_pool());
        }())};
    }
    const Array a(w, "matmul", "w");
    if (a.ndim != 2) a.refuse_shape("weights are [outputs, inputs]");
    const Rows rows = rows_of(a);
    if (rows.rows.cols == 0) return without_inputs(rows.rows.rows);
    const WithoutGil released;
    const FloatControlScope control;
    std::vector<float> values(static_cast<size_t>(rows.rows.rows * rows.rows.cols));
    read_array(rows.rows, 0, rows.rows.rows, values.data());
    return {pack_rows(values.data(), rows.rows.rows, rows.rows.cols, rows.rows.cols, shared_pool())};
}

nb::object product(ArrayRows x, std::span<const int64_t> shape, const Producer& producer, const Packed& packed,
                   nb::handle bias, ArrayInputs inputs, std::string_view dtype, nb::handle out) {
    const ElementType type = plain_type(dtype);
    const PackedMatrix& w = packed.matrix;
    std::vector<float> bias_values, zeros;
    if (!bias.is_none()) {
        const Array b(bias, "matmul", "bias");
        const Rows rows = rows_of(b);
        if (rows.rows.rows * rows.rows.cols != w.rows())
            b.refuse_shape(fmt::format("the product has {} columns", w.rows()));
        bias_values.resize(static_cast<size_t>(w.rows()));
        read_array(rows.rows, 0, rows.rows.rows, bias_values.data());
    }
    if (x.cols != packed.inputs())
        raise("ShapeError",
              fmt::format("matmul: x has {} columns, the weights have {} inputs", x.cols, packed.inputs()));
    void* data = nullptr;
    nb::object result = result_array(out, "matmul", element_of_plain(type), with_last(shape, w.rows()), producer, data);
    if (x.rows == 0 || w.rows() == 0) return result;
    if (packed.no_inputs) {
        zeros.resize(static_cast<size_t>(x.rows));
        x = {ElementType::f32, reinterpret_cast<const std::byte*>(zeros.data()), x.rows, 1, 4, 4};
        inputs = {};
    }
    Status done = Ok{};
    {
        const WithoutGil released;
        const FloatControlScope control;
        done = guarded([&]() -> Status {
            return multiply_array(x, w, bias_values.empty() ? nullptr : bias_values.data(), inputs, type, data,
                                  shared_pool());
        });
    }
    if (!done.ok()) raise(done.error());
    return result;
}

ArrayInputs inputs_of(const std::optional<std::string>& format, std::optional<float> scale) {
    ArrayInputs inputs;
    if (format) {
        const auto known = activation_from_name(*format);
        if (!known || *known == ActivationFormat::none)
            raise("UsageError", fmt::format("matmul: inputs '{}' is unknown; choices: nvfp4, fp8, fp8_token, "
                                            "fp8_group128, mxfp8, mxfp4",
                                            *format));
        inputs.format = *known;
    }
    const bool stored = stores_input_scale(inputs.format);
    if (stored && !scale) raise("UsageError", fmt::format("matmul: inputs '{}' need an input_scale", *format));
    if (!stored && scale) raise("UsageError", "matmul: an input_scale is for the inputs nvfp4 and fp8");
    if (scale && !(*scale > 0 && std::isfinite(*scale)))
        raise("UsageError", fmt::format("matmul: input_scale {} is not a positive number", *scale));
    if (scale) inputs.scale = *scale;
    return inputs;
}

nb::object matmul(nb::handle x, nb::handle w, nb::handle bias, const std::optional<std::string>& format,
                  std::optional<float> scale, std::string_view dtype, nb::handle out) {
    const ArrayInputs inputs = inputs_of(format, scale);
    std::optional<Packed> made;
    if (!nb::isinstance<Packed>(w)) made.emplace(packed_of(w));
    const Packed& weights = made ? *made : nb::cast<const Packed&>(w);
    if (nb::isinstance<Quant>(x)) {
        if (inputs.format != ActivationFormat::none) raise("UsageError", "matmul: x is quantized already");
        const Quant& q = nb::cast<const Quant&>(x);
        std::vector<float> values(static_cast<size_t>(q.rows * q.cols));
        const Status done = without_gil(q.rows * q.cols, [&](ThreadPool* pool) {
            return dequantize_array(q.view(), ElementType::f32, values.data(), pool);
        });
        if (!done.ok()) raise(done.error());
        const ArrayRows rows{
            ElementType::f32, reinterpret_cast<const std::byte*>(values.data()), q.rows, q.cols, q.cols * 4, 4};
        return product(rows, q.shape, q.producer, weights, bias, {}, dtype, out);
    }
    const Array a(x, "matmul", "x");
    const Rows rows = rows_of(a);
    return product(rows.rows, {a.shape, size_t(a.ndim)}, a.producer, weights, bias, inputs, dtype, out);
}

}  // namespace

void bind_tensor(nb::module_& m) {
    nb::class_<Spec>(m, "Spec").def(
        "__init__",
        [](Spec* self, std::string format, std::string search, bool four_over_six, bool static_scales,
           std::string arithmetic, std::optional<float> amax, std::optional<uint64_t> key,
           std::optional<uint32_t> rotation) {
            new (self) Spec({.format = std::move(format),
                             .search = std::move(search),
                             .four_over_six = four_over_six,
                             .static_scales = static_scales,
                             .arithmetic = std::move(arithmetic),
                             .amax = amax,
                             .key = key,
                             .rotation = rotation});
        },
        nb::arg("format"), nb::arg("search"), nb::arg("four_over_six"), nb::arg("static_scales"), nb::arg("arithmetic"),
        nb::arg("amax").none(), nb::arg("key").none(), nb::arg("rotation").none());
    nb::class_<Quant>(m, "Quant")
        .def_prop_ro("format", [](const Quant& q) { return std::string(format_name(q.format)); })
        .def_prop_ro("shape", [](const Quant& q) { return shape_tuple(q.shape); })
        .def_prop_ro("codes", [](const Quant& q) { return q.codes_array; })
        .def_prop_ro("block_scales", [](const Quant& q) { return q.block_scales_array; })
        .def_prop_ro("float_scales", [](const Quant& q) { return q.float_scales_array; })
        .def_prop_ro("tensor_scale", [](const Quant& q) { return q.tensor_scale; })
        .def_prop_ro("bits",
                     [](const Quant& q) { return q.rows && q.cols ? bits_per_element(q.format, q.rows, q.cols) : 0.0; })
        .def_prop_ro("block", [](const Quant& q) { return format_layout(q.format).block; });
    nb::class_<Packed>(m, "Packed")
        .def(
            "__init__", [](Packed* self, nb::handle w) { new (self) Packed(packed_of(w)); }, nb::arg("w").none())
        .def_prop_ro("shape", [](const Packed& p) { return nb::make_tuple(p.matrix.rows(), p.inputs()); })
        .def_prop_ro("nbytes", [](const Packed& p) { return p.matrix.bytes(); });
    m.def("quantize", &quantize, nb::arg("x").none(), nb::arg("spec"), nb::arg("out").none());
    m.def("dequantize", &dequantize, nb::arg("q"), nb::arg("dtype"), nb::arg("out").none());
    m.def("wrap", &wrap, nb::arg("format"), nb::arg("codes").none(), nb::arg("block_scales").none(),
          nb::arg("float_scales").none(), nb::arg("tensor_scale"), nb::arg("swizzled"));
    m.def("swizzle", &swizzle, nb::arg("scales").none());
    m.def("unswizzle", &unswizzle, nb::arg("scales").none(), nb::arg("rows"), nb::arg("cols"));
    m.def("pack", &pack, nb::arg("codes").none());
    m.def("unpack", &unpack, nb::arg("packed").none());
    m.def("from_tiles", &from_tiles, nb::arg("codes").none(), nb::arg("scales").none(), nb::arg("tile_rows"));
    m.def("matmul", &matmul, nb::arg("x").none(), nb::arg("w").none(), nb::arg("bias").none(), nb::arg("inputs").none(),
          nb::arg("input_scale").none(), nb::arg("dtype"), nb::arg("out").none());
    m.def(
        "reciprocal", [](float x) { return 1.0f / x; }, nb::arg("x"));
    m.def(
        "nothing", [](nb::handle) {}, nb::arg("x"));
    m.def("format_names", [] {
        std::vector<std::string> names;
        for (const Format f : all_formats()) names.emplace_back(format_name(f));
        return names;
    });
    m.def("kernel_names", [] {
        std::vector<std::string> names;
        for (const QuantizeKernels& k : quantize_kernels())
            if (k.supported()) names.emplace_back(k.name);
        return names;
    });
}

}  // namespace nibble::python
