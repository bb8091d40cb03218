#include "core/gil.h"

#include <cxxabi.h>
#include <unistd.h>

namespace nibble::python {

WithoutGil::~WithoutGil() {
    try {
        PyEval_RestoreThread(state_);
    } catch (abi::__forced_unwind&) {
        for (;;) ::pause();
    }
}

}  // namespace nibble::python
