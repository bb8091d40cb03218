// Conventions of the jobs. A job is a function from a value of options to a value of its report:
//
//   Result<QuantizeReport> quantize(const QuantizeOptions& options, const JobHooks& hooks);
//
// A job does not print, exit, install signal handlers or keep state between calls. Several jobs may run in one process,
// also at the same time if they write to different outputs. Progress, warnings, notes and the request to stop go
// through JobHooks (base/progress.h). A stopped job returns an error of kind `cancelled` and leaves its finished work
// on disk; a call with the same options and `resume` continues it. Every error is one line and has an ErrorKind
// (base/error.h).
#pragma once

#include "base/error.h"
#include "base/map_faults.h"
#include "base/progress.h"

#include <type_traits>
#include <utility>

namespace nibble {

// Returns the exception that is being handled as an error of kind memory (std::bad_alloc), file (file system) or other.
// Call it inside a catch block.
Error error_of_exception();

// Error of kind file: a mapped file became shorter while it was read (base/map_faults.h).
Status check_inputs_unchanged();

// Runs the body of a job, which returns a Result. Exceptions become errors. A success becomes an error if
// check_inputs_unchanged() fails.
template <class Body>
std::invoke_result_t<Body> as_job(Body&& body) {
    const MapFaultScope scope;
    try {
        auto result = std::forward<Body>(body)();
        if (result.ok()) NIBBLE_CHECK(check_inputs_unchanged());
        return result;
    } catch (...) {
        return error_of_exception();
    }
}

}  // namespace nibble
