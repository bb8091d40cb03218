// A fixed set of worker threads. Work is distributed by index; results never depend on which thread runs an index.
// Workers poll for the next job for about 50 us before they sleep (not if there are more threads than cores).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace nibble {

class ThreadPool {
public:
    static constexpr int most_threads = 1024;

    // threads <= 0: one per core that this process may use. The calling thread works too, so `threads` run at once.
    // There may be fewer if the system refuses more, and never more than most_threads. Every worker has a stack of at
    // least 1 MiB.
    explicit ThreadPool(int threads = 0);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const;

    // Runs work(i) for i in [0, n) and returns when all are done. An exception from `work` (no memory) is rethrown to
    // the caller after all threads have stopped; indices that had not started are skipped. Concurrent calls run one
    // after the other; a call from inside `work` runs inline.
    void parallel_for(int64_t n, const std::function<void(int64_t)>& work);

private:
    struct State;
    std::unique_ptr<State> state_;
};

// Returns the number of cores that this process may use (by its affinity mask, without cgroups), at least 1.
int usable_cores();

}  // namespace nibble
