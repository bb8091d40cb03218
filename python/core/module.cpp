// The extension module nibble._core: arguments and results cross here, all work is done by the libraries of nibble.
#include "core/module.h"

#include "core/threads.h"
#include "quant/knapsack.h"

#include <nanobind/stl/string.h>

namespace nb = nanobind;

NB_MODULE(_core, m) {
    using namespace nibble::python;
    nb::set_leak_warnings(false);
    m.attr("version") = NIBBLE_VERSION;
    m.attr("has_cuda") = NIBBLE_HAS_CUDA != 0;
    m.def("set_threads", &set_threads, nb::arg("threads"));
    m.def("threads", &threads);
    m.def("solver_status", [] {
        const nibble::Status status = nibble::check_knapsack_solver();
        return status.ok() ? std::string("CBC") : status.error().message();
    });
    bind_tensor(m);
    bind_checkpoint(m);
    bind_jobs(m);
    bind_model(m);
    bind_train(m);
}
