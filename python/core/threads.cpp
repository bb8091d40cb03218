#include "core/threads.h"

#include <pthread.h>

#include <atomic>
#include <mutex>

namespace nibble::python {
namespace {

struct Threads {
    std::mutex mutex;
    ThreadPool* pool = nullptr;
    int wanted = 0;
    std::atomic<bool> made{false};
    std::atomic<bool> forked{false};
};
Threads& state() {
    static Threads& threads = *new Threads;
    return threads;
}

void lock_before_fork() { state().mutex.lock(); }
void unlock_parent() { state().mutex.unlock(); }
void begin_child() {
    state().forked = state().made || state().forked;
    state().pool = nullptr;  // its threads do not exist here
    state().mutex.unlock();
}

}  // namespace

void note_threads() {
    if (!state().made.exchange(true)) ::pthread_atfork(lock_before_fork, unlock_parent, begin_child);
}

ThreadPool& shared_pool() {
    note_threads();
    const std::lock_guard lock(state().mutex);
    if (!state().pool) state().pool = new ThreadPool(state().wanted);
    return *state().pool;
}

void set_threads(int threads) {
    const std::lock_guard lock(state().mutex);
    if (state().wanted == threads) return;
    state().wanted = threads;
    state().pool = nullptr;  // calls of other threads may still use the old one
}

int threads() {
    const int wanted = state().wanted;
    return wanted > 0 ? wanted : usable_cores();
}

bool was_forked() { return state().forked; }

}  // namespace nibble::python
