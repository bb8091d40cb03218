// The functions of CBC's C interface that the knapsack needs, from the shared library. CBC brings 12 libraries; only
// `nibble search` loads them.
#pragma once

#include "base/error.h"

#include <Cbc_C_Interface.h>

namespace nibble {

struct CbcFunctions {
    decltype(&::Cbc_newModel) new_model = nullptr;
    decltype(&::Cbc_deleteModel) delete_model = nullptr;
    decltype(&::Cbc_loadProblem) load_problem = nullptr;
    decltype(&::Cbc_setInteger) set_integer = nullptr;
    decltype(&::Cbc_setLogLevel) set_log_level = nullptr;
    decltype(&::Cbc_setParameter) set_parameter = nullptr;
    decltype(&::Cbc_solve) solve = nullptr;
    decltype(&::Cbc_isProvenOptimal) is_proven_optimal = nullptr;
    decltype(&::Cbc_status) status = nullptr;
    decltype(&::Cbc_getColSolution) col_solution = nullptr;
};

// Loads the library once; it stays loaded. Error: the library is not there, or lacks a function; the message names the
// package.
Result<const CbcFunctions*> cbc_functions();

}  // namespace nibble
