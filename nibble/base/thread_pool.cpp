#include "base/thread_pool.h"

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace nibble {

int usable_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    const int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

struct ThreadPool::State {
    std::mutex caller;  // one parallel_for at a time
    std::mutex mutex;
    std::condition_variable start, done;
    std::vector<std::thread> workers;
    const std::function<void(int64_t)>* work = nullptr;
    std::atomic<int64_t> next{0};
    int64_t n = 0;
    uint64_t generation = 0;
    int busy = 0;
    bool stop = false;

    void drain() {
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) (*work)(i);
    }
};

namespace {
thread_local const void* inside = nullptr;  // the pool whose work this thread is running
}

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
    if (threads <= 0) threads = usable_cores();
    for (int t = 1; t < threads; ++t) {
        state_->workers.emplace_back([s = state_.get()] {
            inside = s;
            uint64_t seen = 0;
            std::unique_lock lock(s->mutex);
            for (;;) {
                s->start.wait(lock, [&] { return s->stop || s->generation != seen; });
                if (s->stop) return;
                seen = s->generation;
                lock.unlock();
                s->drain();
                lock.lock();
                if (--s->busy == 0) s->done.notify_one();
            }
        });
    }
}

ThreadPool::~ThreadPool() {
    {
        std::lock_guard lock(state_->mutex);
        state_->stop = true;
    }
    state_->start.notify_all();
    for (auto& worker : state_->workers) worker.join();
}

int ThreadPool::threads() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::parallel_for(int64_t n, const std::function<void(int64_t)>& work) {
    State& s = *state_;
    if (n <= 0) return;
    if (s.workers.empty() || n == 1 || inside == &s) {
        for (int64_t i = 0; i < n; ++i) work(i);
        return;
    }
    std::lock_guard one_call(s.caller);
    {
        std::lock_guard lock(s.mutex);
        s.work = &work;
        s.n = n;
        s.next = 0;
        s.busy = static_cast<int>(s.workers.size());
        ++s.generation;
    }
    s.start.notify_all();
    inside = &s;
    s.drain();
    inside = nullptr;
    std::unique_lock lock(s.mutex);
    s.done.wait(lock, [&] { return s.busy == 0; });
}

}  // namespace nibble
