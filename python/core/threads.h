// Threads of the package. They are made when they are needed first; a process that never needs them has none.
#pragma once

#include "base/error.h"
#include "base/thread_pool.h"

#include <exception>
#include <new>
#include <string>

namespace nibble::python {

// The pool of tensor functions. It is never destroyed: work may be in flight when the interpreter ends. A forked child
// gets a pool of its own.
ThreadPool& shared_pool();
// For later pools; 0: one thread per core.
void set_threads(int threads);
int threads();

// Returns true if this process was forked from one that had threads of nibble. Models and jobs of the parent do not
// work here.
bool was_forked();
// To be called where threads are made.
void note_threads();

// Runs work, which returns a Status; exceptions become errors.
template <class Work>
Status guarded(const Work& work) {
    try {
        return work();
    } catch (const std::bad_alloc&) {
        return fail(ErrorKind::memory, "there is not enough memory");
    } catch (const std::exception& e) {
        return fail("{}", e.what());
    }
}

}  // namespace nibble::python
