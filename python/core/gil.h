// Work without the lock of the interpreter.
#pragma once

#include <nanobind/nanobind.h>

namespace nibble::python {

// Gives the lock back for a scope. At its end the lock is taken again; a thread that the interpreter no longer wants,
// because it ends, stops there for good. (CPython before 3.14 unwinds such a thread, which C++ answers with
// std::terminate.)
class WithoutGil {
public:
    WithoutGil() : state_(PyEval_SaveThread()) {}
    ~WithoutGil();
    WithoutGil(const WithoutGil&) = delete;
    WithoutGil& operator=(const WithoutGil&) = delete;

private:
    PyThreadState* state_;
};

}  // namespace nibble::python
