#include "core/array.h"

#include "core/errors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nanobind/ndarray.h>

#include <cstdlib>
#include <cstring>
#include <unordered_map>

namespace nibble::python {
namespace {

struct ElementFacts {
    std::string_view name;
    int64_t bytes;
    DlType type;
};
constexpr ElementFacts element_facts[] = {
    {"float64", 8, {dl_float, 64, 1}},
    {"float32", 4, {dl_float, 32, 1}},
    {"float16", 2, {dl_float, 16, 1}},
    {"bfloat16", 2, {dl_bfloat, 16, 1}},
    {"float8_e4m3fn", 1, {dl_e4m3fn, 8, 1}},
    {"float8_e5m2", 1, {dl_e5m2, 8, 1}},
    {"float8_e8m0fnu", 1, {dl_e8m0fnu, 8, 1}},
    {"float4_e2m1fn_x2", 1, {dl_e2m1fn, 4, 2}},
    {"uint8", 1, {dl_uint, 8, 1}},
    {"int8", 1, {dl_int, 8, 1}},
    {"uint16", 2, {dl_uint, 16, 1}},
    {"int16", 2, {dl_int, 16, 1}},
    {"int32", 4, {dl_int, 32, 1}},
    {"int64", 8, {dl_int, 64, 1}},
    {"bool", 1, {dl_bool, 8, 1}},
};

Element element_of(DlType type) {
    if (type.code == dl_e2m1fn && type.bits == 4 && type.lanes <= 2) return Element::e2m1;
    for (size_t i = 0; i < std::size(element_facts); ++i) {
        const DlType& t = element_facts[i].type;
        if (t.code == type.code && t.bits == type.bits && t.lanes == type.lanes) return static_cast<Element>(i);
    }
    return Element::other;
}

// Formats of the struct module in native order.
Element element_of_format(const char* format) {
    if (!format) return Element::u8;
    if (*format == '@' || *format == '=' || *format == '<') ++format;
    if (format[0] == '\0' || format[1] != '\0') return Element::other;
    switch (*format) {
        case 'd':
            return Element::f64;
        case 'f':
            return Element::f32;
        case 'e':
            return Element::f16;
        case 'B':
        case 'c':
            return Element::u8;
        case 'b':
            return Element::i8;
        case 'H':
            return Element::u16;
        case 'h':
            return Element::i16;
        case 'i':
            return Element::i32;
        case 'l':
        case 'q':
            return Element::i64;
        case '?':
            return Element::boolean;
        default:
            return Element::other;
    }
}

// Facts about a Python type that do not change.
struct TypeFacts {
    Producer producer;
    std::string refusal;  // why its objects have no memory; empty: they do
};

std::string text_attribute(nb::handle object, const char* name) {
    const nb::object value = nb::getattr(object, name, nb::none());
    return nb::isinstance<nb::str>(value) ? std::string(nb::cast<nb::str>(value).c_str()) : std::string();
}

bool is_named(nb::handle cls, std::string_view module, std::string_view name) {
    return text_attribute(cls, "__name__") == name && text_attribute(cls, "__module__") == module;
}

const DlExchange* exchange_of(nb::handle type) {
    const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
    if (capsule.is_none()) return nullptr;
    void* const pointer = PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api");
    if (!pointer) {
        PyErr_Clear();
        return nullptr;
    }
    for (auto* header = static_cast<const DlExchangeHeader*>(pointer); header; header = header->previous)
        if (header->version.major == 1) return reinterpret_cast<const DlExchange*>(header);
    return nullptr;
}

TypeFacts facts_of(nb::handle type) {
    TypeFacts facts;
    for (const nb::handle cls : nb::borrow<nb::tuple>(type.attr("__mro__"))) {
        const std::string name = text_attribute(cls, "__name__"), module = text_attribute(cls, "__module__");
        if (name == "FakeTensor" || name == "FunctionalTensor") {
            facts.refusal = "is a " + name + ", which has a shape and no data";
            return facts;
        }
        if (is_named(cls, "numpy", "ndarray")) facts.producer.kind = Producer::Kind::numpy;
        if (is_named(cls, "torch", "Tensor")) facts.producer.kind = Producer::Kind::torch;
    }
    if (facts.producer.kind == Producer::Kind::torch) facts.producer.table = exchange_of(type);
    return facts;
}

// Types are kept for good: a program has few types of arrays.
const TypeFacts& cached_facts(nb::handle object) {
    static auto& cache = *new std::unordered_map<PyObject*, TypeFacts>;
    PyObject* const type = reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()));
    if (const auto found = cache.find(type); found != cache.end()) return found->second;
    TypeFacts facts = facts_of(type);
    Py_IncRef(type);
    return cache.emplace(type, std::move(facts)).first->second;
}

// Calls a method without arguments that answers yes or no. Missing methods answer no.
bool answers_yes(nb::handle object, const char* method) {
    PyObject* const answer = PyObject_CallMethod(object.ptr(), method, nullptr);
    if (!answer) {
        PyErr_Clear();
        return false;
    }
    const bool yes = PyObject_IsTrue(answer) == 1;
    Py_DecRef(answer);
    return yes;
}

nb::object& negative_name() {
    static nb::object& name = *new nb::object(nb::steal(PyUnicode_InternFromString("is_neg")));
    return name;
}

// torch's is_neg(), the one check of every tensor.
bool is_negative_view(nb::handle tensor) {
    PyObject* const answer = PyObject_CallMethodObjArgs(tensor.ptr(), negative_name().ptr(), nullptr);
    if (!answer) {
        PyErr_Clear();
        return false;
    }
    const bool yes = answer == Py_True;
    Py_DecRef(answer);
    return yes;
}

// The message of the exception that is set, which is cleared.
std::string taken_message() {
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    std::string text;
    if (value) {
        const nb::object words = nb::steal(PyObject_Str(value));
        if (words.ptr()) text = nb::cast<nb::str>(words).c_str();
    }
    PyErr_Clear();
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return text.substr(0, text.find('\n'));
}

// The element of a type of ml_dtypes, which has no format of buffers; other: it is none of them. dtype objects of numpy
// are few and kept for good.
Element element_of_numpy(nb::handle array) {
    static auto& cache = *new std::unordered_map<PyObject*, Element>;
    static const nb::object& name = *new nb::object(nb::steal(PyUnicode_InternFromString("dtype")));
    const nb::object dtype = nb::steal(PyObject_GetAttr(array.ptr(), name.ptr()));
    if (!dtype.ptr()) raise_set();
    if (const auto found = cache.find(dtype.ptr()); found != cache.end()) return found->second;
    const std::string word = text_attribute(dtype, "name");
    Element element = Element::other;
    for (const Element e : {Element::bf16, Element::e4m3, Element::e5m2, Element::e8m0})
        if (word == element_name(e)) element = e;
    if (cache.size() < 1024) {
        Py_IncRef(dtype.ptr());
        cache.emplace(dtype.ptr(), element);
    }
    return element;
}

std::string type_text(nb::handle object) {
    const nb::handle type(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
    const std::string module = text_attribute(type, "__module__"), name = text_attribute(type, "__name__");
    return module == "builtins" || module.empty() ? name : module + "." + name;
}

}  // namespace

std::string_view element_name(Element element) {
    return element == Element::other ? "another type" : element_facts[static_cast<size_t>(element)].name;
}
int64_t element_size(Element element) {
    return element == Element::other ? 1 : element_facts[static_cast<size_t>(element)].bytes;
}

Array::Array(nb::handle object, const char* function, const char* argument) : function_(function), argument_(argument) {
    const TypeFacts& facts = cached_facts(object);
    producer = facts.producer;
    const auto refuse = [&](const std::string& why) {
        raise("DTypeError", fmt::format("{}: {} {}", function, argument, why));
    };
    if (!facts.refusal.empty()) refuse(facts.refusal);
    if (producer.kind == Producer::Kind::torch && is_negative_view(object))
        refuse("is a negative view, whose memory has other values; call .resolve_neg() first");
    if (producer.table) {
        take_borrowed(object);
        return;
    }
    if (producer.kind == Producer::Kind::torch && answers_yes(object, "is_conj"))
        refuse("is a conjugate view, whose memory has other values; call .resolve_conj() first");
    if (producer.kind != Producer::Kind::numpy && PyObject_HasAttrString(object.ptr(), "__dlpack__")) {
        take_dlpack(object);
        return;
    }
    nb::handle source = object;
    Element element_of_view = Element::other;
    if (producer.kind == Producer::Kind::numpy && (element_of_view = element_of_numpy(object)) != Element::other) {
        keep_ = object.attr("view")(element_size(element_of_view) == 2 ? "u2" : "u1");
        source = keep_;
    }
    if (PyObject_GetBuffer(source.ptr(), &buffer_.view, PyBUF_STRIDES | PyBUF_FORMAT) == 0) {
        buffer_.held = true;
        take_buffer(element_of_view == Element::other ? element_of_format(buffer_.view.format) : element_of_view);
        return;
    }
    const std::string why = taken_message();
    if (producer.kind == Producer::Kind::numpy) refuse("is a numpy array that has no buffer: " + why);
    refuse(fmt::format("is a {}; give an array with __dlpack__ or the buffer protocol", type_text(object)));
}

void Array::use(const DlTensor& t) {
    const bool on_host = t.device.type == dl_cpu || t.device.type == dl_cuda_host;
    if (!on_host) {
        const bool cuda = t.device.type == dl_cuda || t.device.type == dl_cuda_managed;
        raise("DeviceError",
              fmt::format(
                  "{}: {} is on {}; this build of nibble computes on the CPU only. Call .cpu() first", function_,
                  argument_,
                  cuda ? fmt::format("cuda:{}", t.device.id) : fmt::format("a device of type {}", t.device.type)));
    }
    if (t.ndim > most_dimensions)
        raise("ShapeError", fmt::format("{}: {} has {} dimensions; at most {} are read", function_, argument_, t.ndim,
                                        most_dimensions));
    element = element_of(t.dtype);
    if (t.dtype.code == dl_complex)
        raise("DTypeError", fmt::format("{}: {} is complex; give real numbers", function_, argument_));
    ndim = t.ndim;
    int64_t stride = element_size(element);
    for (int i = ndim - 1; i >= 0; --i) {
        shape[i] = t.shape[i];
        strides[i] = t.strides ? t.strides[i] * element_size(element) : stride;
        stride *= shape[i];
    }
    if (element == Element::e2m1 && t.dtype.lanes == 1 && ndim > 0) {  // counts numbers, not pairs
        if (shape[ndim - 1] % 2 != 0 || strides[ndim - 1] != 1) refuse_shape("4-bit numbers are read in whole bytes");
        shape[ndim - 1] /= 2;
        for (int i = 0; i < ndim - 1; ++i) strides[i] /= 2;
    }
    data = static_cast<std::byte*>(t.data) + t.byte_offset;
}

void Array::take_borrowed(nb::handle object) {
    DlTensor t;
    if (producer.table->tensor_from_object(object.ptr(), &t) != 0) {
        const std::string why = taken_message();
        raise("DTypeError", fmt::format("{}: {} cannot be read: {}", function_, argument_, why));
    }
    use(t);
    if (!data && size() > 0) raise("DTypeError", fmt::format("{}: {} has no data", function_, argument_));
}

void Array::take_dlpack(nb::handle object) {
    try {
        nb::object capsule;
        try {
            capsule = object.attr("__dlpack__")(nb::arg("max_version") = nb::make_tuple(1, 1));
        } catch (nb::python_error& e) {
            if (!e.matches(PyExc_TypeError)) throw;
            capsule = object.attr("__dlpack__")();
        }
        // A capsule that is not consumed frees its tensor when it ends, so it only has to live.
        if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
            auto* const managed =
                static_cast<DlManagedVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
            if (managed->version.major != 1) raise("DTypeError", "a DLPack capsule has an unknown version");
            read_only = (managed->flags & dl_read_only) != 0;
            if (managed->flags & dl_padded_sub_byte)
                raise("DTypeError", fmt::format("{}: {} has padded 4-bit numbers", function_, argument_));
            use(managed->tensor);
        } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
            use(static_cast<DlManaged*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor);
        } else {
            raise("DTypeError", fmt::format("{}: {}.__dlpack__() gave no DLPack capsule", function_, argument_));
        }
        keep_ = std::move(capsule);
    } catch (nb::python_error& e) {
        if (e.matches(nb::module_::import_("nibble.errors").attr("NibbleError").ptr())) throw;
        const std::string why = std::string(nb::str(e.value()).c_str());
        raise("DTypeError",
              fmt::format("{}: {} cannot be read: {}", function_, argument_, why.substr(0, why.find('\n'))));
    }
}

void Array::take_buffer(Element type) {
    element = type;
    if (buffer_.view.ndim > most_dimensions)
        raise("ShapeError", fmt::format("{}: {} has {} dimensions; at most {} are read", function_, argument_,
                                        buffer_.view.ndim, most_dimensions));
    if (element == Element::other)
        raise("DTypeError", fmt::format("{}: {} has elements '{}', which nibble does not read", function_, argument_,
                                        buffer_.view.format ? buffer_.view.format : ""));
    ndim = buffer_.view.ndim;
    int64_t stride = element_size(element);
    for (int i = ndim - 1; i >= 0; --i) {
        shape[i] = buffer_.view.shape[i];
        strides[i] = buffer_.view.strides ? int64_t{buffer_.view.strides[i]} : stride;
        stride *= shape[i];
    }
    data = static_cast<std::byte*>(buffer_.view.buf);
    read_only = buffer_.view.readonly != 0;
}

int64_t Array::size() const {
    int64_t n = 1;
    for (int i = 0; i < ndim; ++i) n *= shape[i];
    return n;
}

bool Array::contiguous() const {
    if (size() == 0) return true;
    int64_t expected = element_size(element);
    for (int i = ndim - 1; i >= 0; --i) {
        if (shape[i] != 1 && strides[i] != expected) return false;
        expected *= shape[i];
    }
    return true;
}

std::string Array::text() const {
    return fmt::format("({}{}) {}", fmt::join(shape, shape + ndim, ", "), ndim == 1 ? "," : "", element_name(element));
}

void Array::refuse_shape(std::string_view why) const {
    raise("ShapeError", fmt::format("{}: {} is {}; {}", function_, argument_, text(), why));
}
void Array::refuse_type(std::string_view why) const {
    raise("DTypeError", fmt::format("{}: {} is {}; {}", function_, argument_, text(), why));
}

Rows rows_of(const Array& x) {
    Rows out;
    ArrayRows& r = out.rows;
    switch (x.element) {
        case Element::f32:
            r.type = ElementType::f32;
            break;
        case Element::f16:
            r.type = ElementType::f16;
            break;
        case Element::bf16:
            r.type = ElementType::bf16;
            break;
        case Element::e4m3:
            r.type = ElementType::e4m3;
            break;
        case Element::e5m2:
            r.type = ElementType::e5m2;
            break;
        default:
            x.refuse_type("give float32, bfloat16, float16, float8_e4m3fn or float8_e5m2");
    }
    if (x.ndim == 0) x.refuse_shape("it needs at least one dimension");
    const int last = x.ndim - 1;
    r.data = x.data;
    r.cols = x.shape[last];
    r.col_bytes = x.shape[last] > 1 ? x.strides[last] : element_size(x.element);
    r.rows = 1;
    for (int i = 0; i < last; ++i) r.rows *= x.shape[i];
    if (r.rows == 0 || r.cols == 0) return out;
    // Leading dimensions of which each steps over the next ones are one.
    int64_t step = 0, covered = 1;
    bool one = true;
    for (int i = last - 1; i >= 0; --i) {
        if (x.shape[i] == 1) continue;
        if (step == 0)
            step = x.strides[i];
        else
            one = one && x.strides[i] == step * covered;
        covered *= x.shape[i];
    }
    r.row_bytes = step;
    if (one) return out;
    out.offsets.resize(static_cast<size_t>(r.rows));
    for (int64_t row = 0; row < r.rows; ++row) {
        int64_t rest = row, offset = 0;
        for (int i = last - 1; i >= 0; --i) {
            offset += rest % x.shape[i] * x.strides[i];
            rest /= x.shape[i];
        }
        out.offsets[static_cast<size_t>(row)] = offset;
    }
    r.offsets = out.offsets;
    return out;
}

namespace {

struct AllocationError {
    std::string text;
};
void keep_error(void* context, const char*, const char* message) {
    static_cast<AllocationError*>(context)->text = message ? message : "";
}

nb::object make_torch(const DlExchange& table, Element element, std::span<const int64_t> shape, void*& data) {
    int64_t sizes[Array::most_dimensions] = {};
    std::copy(shape.begin(), shape.end(), sizes);
    DlTensor like{.device = {dl_cpu, 0},
                  .ndim = static_cast<int32_t>(shape.size()),
                  .dtype = element_facts[static_cast<size_t>(element)].type,
                  .shape = sizes};
    AllocationError error;
    DlManagedVersioned* managed = nullptr;
    if (table.allocate(&like, &managed, &error, keep_error) != 0) {
        if (PyErr_Occurred()) raise_set();
        raise("OutOfMemoryError", "torch gives no memory: " + error.text);
    }
    data = static_cast<std::byte*>(managed->tensor.data) + managed->tensor.byte_offset;
    void* object = nullptr;
    if (table.managed_to_object(managed, &object) != 0) raise_set();
    return nb::steal(static_cast<PyObject*>(object));
}

nb::object make_numpy(Element element, std::span<const int64_t> shape, void*& data) {
    static const nb::object& empty = *new nb::object(nb::module_::import_("numpy").attr("empty"));
    const int64_t bytes = element_size(element);
    const char* name = element == Element::f32 ? "f4" : element == Element::f16 ? "f2" : bytes == 2 ? "u2" : "u1";
    nb::object array = empty(shape_tuple(shape), nb::str(name));
    Py_buffer view;
    if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_STRIDES | PyBUF_WRITABLE) != 0) raise_set();
    data = view.buf;
    PyBuffer_Release(&view);
    return array;
}

nb::object make_other(Element element, std::span<const int64_t> shape, void*& data) {
    const DlType type = element_facts[static_cast<size_t>(element)].type;
    size_t sizes[Array::most_dimensions] = {}, count = 1;
    for (size_t i = 0; i < shape.size(); ++i) count *= sizes[i] = static_cast<size_t>(shape[i]);
    data = std::malloc(std::max<size_t>(count * static_cast<size_t>(element_size(element)), 1));
    if (!data) raise("OutOfMemoryError", "no memory for a result");
    const nb::capsule owner(data, [](void* p) noexcept { std::free(p); });
    const bool known = type.code <= dl_float;  // the buffer protocol knows no other types
    const nb::dlpack::dtype dtype = known ? nb::dlpack::dtype{type.code, type.bits, 1}
                                          : nb::dlpack::dtype{dl_uint, uint8_t(element_size(element) * 8), 1};
    return nb::cast(nb::ndarray<nb::array_api>(data, shape.size(), sizes, owner, nullptr, dtype));
}

}  // namespace

nb::object shape_tuple(std::span<const int64_t> shape) {
    nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(shape.size())));
    for (size_t i = 0; i < shape.size(); ++i)
        PyTuple_SetItem(tuple.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(shape[i]));
    return tuple;
}

nb::object make_array(const Producer& producer, Element element, std::span<const int64_t> shape, void*& data) {
    if (producer.table) return make_torch(*producer.table, element, shape, data);
    if (producer.kind == Producer::Kind::numpy) return make_numpy(element, shape, data);
    return make_other(element, shape, data);
}

}  // namespace nibble::python
