#include "core/gil.h"

#include <unistd.h>

namespace nibble::python {

WithoutGil::~WithoutGil() {
    try {
        PyEval_RestoreThread(state_);
    } catch (...) {  // a function of C throws nothing: this is the unwinding of a thread that ends
        for (;;) ::pause();
    }
}

}  // namespace nibble::python
