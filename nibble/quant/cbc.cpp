#include "quant/cbc.h"

#include <dlfcn.h>

namespace nibble {
namespace {

constexpr const char* cbc_library = "libCbcSolver.so.3";

template <class Function>
bool find_function(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
    return function != nullptr;
}

Result<CbcFunctions> load_cbc() {
    void* const library = ::dlopen(cbc_library, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char* const why = ::dlerror();
        return fail("the solver CBC is not installed ({}); install the Debian package coinor-libcbc3",
                    why ? why : cbc_library);
    }
    CbcFunctions f;
    const bool all =
        find_function(library, "Cbc_newModel", f.new_model) &&
        find_function(library, "Cbc_deleteModel", f.delete_model) &&
        find_function(library, "Cbc_loadProblem", f.load_problem) &&
        find_function(library, "Cbc_setInteger", f.set_integer) &&
        find_function(library, "Cbc_setLogLevel", f.set_log_level) &&
        find_function(library, "Cbc_setParameter", f.set_parameter) && find_function(library, "Cbc_solve", f.solve) &&
        find_function(library, "Cbc_isProvenOptimal", f.is_proven_optimal) &&
        find_function(library, "Cbc_status", f.status) && find_function(library, "Cbc_getColSolution", f.col_solution);
    if (!all) return fail("{}: a function of CBC's C interface is missing; version 2.10 has all", cbc_library);
    return f;
}

}  // namespace

Result<const CbcFunctions*> cbc_functions() {
    static const Result<CbcFunctions> loaded = load_cbc();
    if (!loaded.ok()) return Error(loaded.error());
    return &*loaded;
}

}  // namespace nibble
