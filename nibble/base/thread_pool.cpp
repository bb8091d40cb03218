#include "base/thread_pool.h"

#include "base/float_control.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

namespace nibble {

int usable_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    const int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

namespace {

thread_local const void* inside = nullptr;  // the pool whose work this thread is running

// A job's ticket: generation, whether it is closed to further workers, number of workers on it.
constexpr uint32_t one_worker = 1, closed = 1u << 11, next_generation = 1u << 12;
static_assert(ThreadPool::most_threads < closed);
constexpr uint32_t workers_of(uint32_t ticket) { return ticket & (closed - 1); }
constexpr uint32_t generation_of(uint32_t ticket) { return ticket / next_generation; }

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

// A worker that finds an open job joins it by a compare-and-swap of the ticket. The caller works too, closes the ticket
// when no index is left, and waits for workers that joined, not for sleeping ones. Jobs of a decoding step follow each
// other within microseconds: workers poll the ticket for `spins` iterations before they sleep on it, and the caller
// polls until the last worker finishes.
struct ThreadPool::State {
    std::mutex caller;  // one parallel_for at a time
    std::vector<pthread_t> workers;
    const std::function<void(int64_t)>* work = nullptr;
    int64_t n = 0;
    int spins = 0;
    std::atomic<bool> stop{false};
    alignas(64) std::atomic<uint32_t> ticket{closed};
    alignas(64) std::atomic<int64_t> next{0};

    std::mutex thrown;
    std::exception_ptr error;  // the first exception thrown

    void drain() {
        try {
            for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) (*work)(i);
        } catch (...) {
            const std::lock_guard lock(thrown);
            if (!error) error = std::current_exception();
            next.store(n, std::memory_order_relaxed);  // skips indices that have not started
        }
    }

    // Returns false if the system has no memory or threads left.
    bool add_worker() {
        constexpr size_t least_stack = size_t{1} << 20;  // `ulimit -s` may be smaller
        pthread_attr_t how;
        if (::pthread_attr_init(&how) != 0) return false;
        size_t stack = 0;
        ::pthread_attr_getstacksize(&how, &stack);
        ::pthread_attr_setstacksize(&how, std::max(stack, least_stack));
        const auto run = [](void* state) -> void* {
            static_cast<State*>(state)->serve();
            return nullptr;
        };
        pthread_t worker;
        const bool made = ::pthread_create(&worker, &how, run, this) == 0;
        ::pthread_attr_destroy(&how);
        if (made) workers.push_back(worker);
        return made;
    }

    // Waits until the ticket is no longer `seen`.
    uint32_t changed(uint32_t seen) const {
        uint32_t now = ticket.load(std::memory_order_acquire);
        for (int i = 0; i < spins && now == seen; ++i) {
            pause();
            now = ticket.load(std::memory_order_acquire);
        }
        if (now == seen) ticket.wait(seen, std::memory_order_acquire);
        return ticket.load(std::memory_order_acquire);
    }

    void serve() {
        set_float_control();
        inside = this;
        uint32_t now = ticket.load(std::memory_order_acquire), done = generation_of(closed);
        while (!stop.load(std::memory_order_relaxed)) {
            if (now & closed || generation_of(now) == done) {
                now = changed(now);
            } else if (ticket.compare_exchange_weak(now, now + one_worker, std::memory_order_acquire)) {
                done = generation_of(now);
                drain();
                now = ticket.fetch_sub(one_worker, std::memory_order_release) - one_worker;
                if (workers_of(now) == 0) ticket.notify_all();
            }
        }
    }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
    const int cores = usable_cores();
    threads = std::min(threads <= 0 ? cores : threads, most_threads);
    state_->workers.reserve(static_cast<size_t>(threads));
    constexpr int about_50_us = 1000;
    state_->spins = threads <= cores ? about_50_us : 0;
    for (int t = 1; t < threads && state_->add_worker();) ++t;
}

ThreadPool::~ThreadPool() {
    state_->stop = true;
    state_->ticket.fetch_add(next_generation);
    state_->ticket.notify_all();
    for (const pthread_t worker : state_->workers) ::pthread_join(worker, nullptr);
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
    s.work = &work;
    s.n = n;
    s.next.store(0, std::memory_order_relaxed);
    const uint32_t last = s.ticket.load(std::memory_order_relaxed);  // closed, no worker is active
    s.ticket.store((last & ~closed) + next_generation, std::memory_order_release);
    s.ticket.notify_all();
    inside = &s;
    s.drain();
    inside = nullptr;
    uint32_t now = s.ticket.fetch_or(closed, std::memory_order_acquire) | closed;
    while (workers_of(now) != 0) now = s.changed(now);
    if (const std::exception_ptr error = std::exchange(s.error, nullptr)) std::rethrow_exception(error);
}

}  // namespace nibble
