// Checkpoints as mappings of tensors.
#include "base/checked.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "core/array.h"
#include "core/errors.h"
#include "core/gil.h"
#include "core/module.h"
#include "core/threads.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <map>

namespace nibble::python {
namespace {

// An open checkpoint and its tensors by name.
struct Opened {
    std::unique_ptr<Checkpoint> checkpoint;
    std::map<std::string, size_t, std::less<>> index;

    size_t find(const std::string& name) const {
        const auto found = index.find(name);
        if (found == index.end()) throw nb::key_error(name.c_str());
        return found->second;
    }
};

Element element_of_dtype(DType dtype) {
    switch (dtype) {
        case DType::f64:
            return Element::f64;
        case DType::f32:
            return Element::f32;
        case DType::f16:
            return Element::f16;
        case DType::bf16:
            return Element::bf16;
        case DType::f8_e4m3:
            return Element::e4m3;
        case DType::f8_e5m2:
            return Element::e5m2;
        case DType::f8_e8m0:
            return Element::e8m0;
        case DType::i64:
            return Element::i64;
        case DType::i32:
            return Element::i32;
        case DType::i16:
            return Element::i16;
        case DType::u16:
            return Element::u16;
        case DType::i8:
            return Element::i8;
        case DType::boolean:
            return Element::boolean;
        default:
            return Element::u8;
    }
}

nb::dict info_of(const CheckpointTensor& t) {
    nb::dict out;
    out["name"] = t.name;
    out["shape"] = nb::tuple(nb::cast(t.shape));
    out["format"] = std::string(format_name(t.format));
    out["dtype"] = std::string(dtype_torch_name(t.dtype));
    out["stored_type"] = t.stored_type;
    out["stored_bytes"] = t.stored_bytes;
    out["activation"] = std::string(activation_name(t.activation));
    out["input_scale"] = t.input_scale ? nb::cast(*t.input_scale) : nb::none();
    out["file"] = t.file;
    return out;
}

// The bytes of rows of a plain tensor and their type, as a buffer of its own.
nb::tuple read_plain_bytes(const Opened& o, const std::string& name, int64_t begin, int64_t end) {
    const size_t index = o.find(name);
    const CheckpointTensor& t = o.checkpoint->tensors()[index];
    if (t.quantized()) raise("UsageError", fmt::format("{} is quantized: use quant()", name));
    if (begin < 0 || end < begin || end > t.rows())
        raise("ShapeError", fmt::format("{}: rows {} to {} are not in [0, {}]", name, begin, end, t.rows()));
    Matrix scratch;
    Result<MatrixView> view = [&] {
        const WithoutGil released;
        return o.checkpoint->read_plain(index, begin, end - begin, scratch);
    }();
    const MatrixView plain = value_or_raise(std::move(view));
    nb::object bytes = nb::bytearray(reinterpret_cast<const char*>(plain.data), static_cast<size_t>(plain.bytes()));
    return nb::make_tuple(bytes, std::string(element_name(element_of_dtype(plain.dtype))));
}

// Codes, block scales, float scales (as bytes) and the tensor scale of rows.
nb::tuple read_quant_parts(const Opened& o, const std::string& name, int64_t begin, int64_t end) {
    const size_t index = o.find(name);
    const CheckpointTensor& t = o.checkpoint->tensors()[index];
    if (!t.quantized()) raise("UsageError", fmt::format("{} is not quantized: use tensor()", name));
    if (begin < 0 || end < begin || end > t.rows())
        raise("ShapeError", fmt::format("{}: rows {} to {} are not in [0, {}]", name, begin, end, t.rows()));
    if (t.format == Format::fp8_block128 && begin % 128 != 0)
        raise("ShapeError", fmt::format("{}: rows of fp8_block128 begin at a multiple of 128", name));
    QuantMatrix scratch;
    Result<QuantView> view = [&] {
        const WithoutGil released;
        return o.checkpoint->read_quant(index, begin, end - begin, scratch);
    }();
    const QuantView q = value_or_raise(std::move(view));
    const auto bytes = [](const void* data, int64_t size) -> nb::object {
        if (size == 0) return nb::none();
        return nb::bytearray(static_cast<const char*>(data), static_cast<size_t>(size));
    };
    return nb::make_tuple(std::string(format_name(q.format)), bytes(q.codes, code_bytes(q.format, q.rows, q.cols)),
                          bytes(q.block_scales, block_scale_bytes(q.format, q.rows, q.cols)),
                          bytes(q.float_scales, float_scale_count(q.format, q.rows, q.cols) * 4), q.tensor_scale);
}

}  // namespace

void bind_checkpoint(nb::module_& m) {
    nb::class_<Opened>(m, "Checkpoint")
        .def_prop_ro("path", [](const Opened& o) { return o.checkpoint->path().string(); })
        .def_prop_ro("dialect", [](const Opened& o) { return std::string(dialect_name(o.checkpoint->dialect())); })
        .def_prop_ro(
            "config",
            [](const Opened& o) { return o.checkpoint->config().dump(-1, ' ', false, Json::error_handler_t::replace); })
        .def_prop_ro("kv", [](const Opened& o) { return std::string(kv_name(o.checkpoint->kv())); })
        .def_prop_ro("notes",
                     [](const Opened& o) {
                         const auto notes = o.checkpoint->notes();
                         return std::vector<std::string>(notes.begin(), notes.end());
                     })
        .def("names",
             [](const Opened& o) {
                 std::vector<std::string> names;
                 for (const CheckpointTensor& t : o.checkpoint->tensors()) names.push_back(t.name);
                 return names;
             })
        .def("info",
             [](const Opened& o, const std::string& name) { return info_of(o.checkpoint->tensors()[o.find(name)]); })
        .def("plain", &read_plain_bytes, nb::arg("name"), nb::arg("begin"), nb::arg("end"))
        .def("quant", &read_quant_parts, nb::arg("name"), nb::arg("begin"), nb::arg("end"));
    m.def("open_checkpoint", [](const std::string& path) {
        auto opened = std::make_unique<Opened>();
        Result<std::unique_ptr<Checkpoint>> made = [&] {
            const WithoutGil released;
            return Checkpoint::open(path).as(ErrorKind::checkpoint);
        }();
        opened->checkpoint = value_or_raise(std::move(made));
        const auto tensors = opened->checkpoint->tensors();
        for (size_t i = 0; i < tensors.size(); ++i) opened->index.emplace(tensors[i].name, i);
        return opened;
    });
}

}  // namespace nibble::python
