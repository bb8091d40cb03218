// Runs many units of work on all threads of a pool. A unit is a sequence of stages; the tasks of a stage are
// independent.
//
// Units start in order, and only when a thread would otherwise be idle: at most as many units as threads are in flight,
// so memory stays bounded while one large unit or thousands of tiny ones keep every thread busy. Tasks of older units
// go first, except that a thread which opened a stage takes that stage's first task (its data is in the cache).
#pragma once

#include "base/error.h"
#include "base/thread_pool.h"

#include <functional>
#include <memory>

namespace nibble {

class UnitWork {
public:
    virtual ~UnitWork() = default;
    // The number of tasks of the next stage; 0: the unit is done. Called when all tasks of the last stage have
    // succeeded, never at the same time as anything else of this unit.
    virtual Result<int64_t> next_stage() = 0;
    // Task of the current stage, from any thread. `worker` < pool.threads() is this thread's alone while it runs.
    virtual Status run(int64_t task, int worker) = 0;
};

enum class RunEnd : uint8_t { finished, stopped };

// `start(i)` makes unit i; it is called from any thread, in the order of i, one call at a time. `should_stop` is asked
// between tasks; when it says yes, the units in flight are dropped at once. On errors the one of the lowest unit is
// returned: units before the failing one run to their end, later ones are dropped, so the error does not depend on the
// thread count.
Result<RunEnd> run_units(ThreadPool& pool, int64_t units,
                         const std::function<std::unique_ptr<UnitWork>(int64_t)>& start,
                         const std::function<bool()>& should_stop);

}  // namespace nibble
