// Long work on a thread of its own, while the calling thread serves Python: signals, progress, warnings.
#pragma once

#include "base/error.h"
#include "base/float_control.h"
#include "base/progress.h"
#include "core/errors.h"
#include "core/threads.h"

#include <nanobind/nanobind.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace nibble::python {

namespace nb = nanobind;

// Python callables that a job calls; none() if the caller gave none.
//   progress(phase, item, done, total, unit)   the newest numbers, at most 50 times a second
//   line(kind, text)                           kind: "warning" or "note"
//   event(json)                                of a step of training; an answer that is true stops the job
//   cancel                                     an object whose is_set() is polled
//   judge([(prompt, expected, text, turn, state)]) -> [(reward, done, observation, state, failure)]   states are JSON
struct JobCallbacks {
    nb::object progress, line, event, cancel, judge;
};

// Between the thread of the work and the thread of the caller.
class JobWatch {
public:
    // Hooks for the job. They never touch Python.
    JobHooks hooks();
    void add_event(std::string json);
    // Called by the thread of the work: runs `call` on the thread of the caller, which holds the lock of the
    // interpreter, and waits for its end. Returns false if the call was not made or threw; run() throws its exception.
    bool in_caller(const std::function<void()>& call);

    // Runs `work` on a thread of its own and waits. Signals are looked at 50 times a second, where the caller is the
    // main thread; an exception of a signal's handler or of a callback stops the work, is waited for and thrown.
    void run(const std::function<void()>& work, const JobCallbacks& callbacks);

private:
    void deliver(const JobCallbacks& callbacks);
    void make_call();

    struct Numbers {
        std::string phase, item, unit;
        int64_t done = 0, total = 0;
    };
    std::atomic<bool> stop_{false};
    std::mutex mutex_;
    std::condition_variable changed_;
    bool done_ = false;
    std::optional<Numbers> numbers_;
    std::vector<std::pair<const char*, std::string>> lines_;
    std::vector<std::string> events_;
    const std::function<void()>* call_ = nullptr;  // to be made by the thread of the caller
    bool left_ = false;                            // the caller only waits for the end and makes no calls
};

// Runs a job, body(const JobHooks&, JobWatch&) -> Result<T>, and returns its value. Throws its error.
template <class Body>
auto run_watched(const JobCallbacks& callbacks, const Body& body) {
    using Outcome = decltype(body(std::declval<const JobHooks&>(), std::declval<JobWatch&>()));
    if (was_forked())
        raise("ForkedError",
              "this process was forked from one that uses nibble; start processes with the method "
              "\"spawn\"");
    JobWatch watch;
    std::optional<Outcome> outcome;
    watch.run(
        [&] {
            const Status done = guarded([&]() -> Status {
                outcome.emplace(body(watch.hooks(), watch));
                return Ok{};
            });
            if (!done.ok()) outcome.emplace(Error(done.error()));
        },
        callbacks);
    return value_or_raise(*std::move(outcome));
}

}  // namespace nibble::python
