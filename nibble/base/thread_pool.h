// A fixed set of worker threads. Work is handed out by index; which thread runs an index never shows in a result.
// Workers watch for the next job for about 50 us before they sleep (not when there are more threads than cores).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace nibble {

class ThreadPool {
public:
    static constexpr int most_threads = 1024;

    // threads <= 0: one per core this process may use. The calling thread works too, so `threads` run at once. Fewer
    // where the system gives no more; never over most_threads. Every worker has a stack of 1 MiB at least.
    explicit ThreadPool(int threads = 0);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const;

    // Runs work(i) for i in [0, n) and returns when all are done. What `work` throws (no memory) reaches the caller
    // when all threads have left; indices that were not begun are left out then. Calls from several threads are served
    // one after the other; a call from inside `work` runs inline.
    void parallel_for(int64_t n, const std::function<void(int64_t)>& work);

private:
    struct State;
    std::unique_ptr<State> state_;
};

// Cores this process may run on (cgroup-less affinity mask), at least 1.
int usable_cores();

}  // namespace nibble
