// The parts of the extension module nibble._core. Each function adds its classes and functions.
#pragma once

#include <nanobind/nanobind.h>

namespace nibble::python {

void bind_tensor(nanobind::module_& m);
void bind_checkpoint(nanobind::module_& m);
void bind_jobs(nanobind::module_& m);
void bind_model(nanobind::module_& m);
void bind_train(nanobind::module_& m);

}  // namespace nibble::python
