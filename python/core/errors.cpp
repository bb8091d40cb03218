#include "core/errors.h"

namespace nb = nanobind;

namespace nibble::python {
namespace {

const char* class_of(ErrorKind kind) {
    switch (kind) {
        case ErrorKind::other:
            return "NibbleError";
        case ErrorKind::usage:
            return "UsageError";
        case ErrorKind::shape:
            return "ShapeError";
        case ErrorKind::recipe:
            return "RecipeError";
        case ErrorKind::checkpoint:
            return "CheckpointError";
        case ErrorKind::file:
            return "FileError";
        case ErrorKind::device:
            return "DeviceError";
        case ErrorKind::memory:
            return "OutOfMemoryError";
        case ErrorKind::cancelled:
            return "Cancelled";
    }
    return "NibbleError";
}

}  // namespace

void raise(const char* cls, std::string_view message) {
    const nb::object type = nb::module_::import_("nibble.errors").attr(cls);
    const nb::str text(message.data(), message.size());
    PyErr_SetObject(type.ptr(), text.ptr());
    raise_set();
}

void raise(const Error& error) { raise(class_of(error.kind()), error.message()); }

void raise_set() { throw nb::python_error(); }

}  // namespace nibble::python
