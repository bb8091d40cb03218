// Errors of nibble as Python exceptions (nibble/errors.py).
#pragma once

#include "base/error.h"

#include <nanobind/nanobind.h>

#include <string_view>

namespace nibble::python {

// Throws the exception that belongs to the kind. `cls` names another class of nibble.errors. The GIL is held.
[[noreturn]] void raise(const Error& error);
[[noreturn]] void raise(const char* cls, std::string_view message);

// Throws the Python exception that is set.
[[noreturn]] void raise_set();

template <class T>
T value_or_raise(Result<T> result) {
    if (!result.ok()) raise(result.error());
    return *std::move(result);
}

}  // namespace nibble::python
