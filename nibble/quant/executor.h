// Runs many units of work on all threads of a pool. A unit is a sequence of stages; the tasks of a stage are
// independent.
//
// Units start in order, and only when a thread would otherwise be idle. At most as many units as threads are in flight,
// so memory stays bounded, while one large unit or thousands of tiny ones keep every thread busy. Tasks of older units
// go first, except that a thread which opened a stage runs that stage's first task (its data is in the cache).
#pragma once

#include "base/error.h"
#include "base/thread_pool.h"

#include <functional>
#include <memory>

namespace nibble {

class UnitWork {
public:
    virtual ~UnitWork() = default;
    // Returns the number of tasks of the next stage; 0: the unit is done. Called when all tasks of the previous stage
    // have succeeded, and never concurrently with another call for this unit.
    virtual Result<int64_t> next_stage() = 0;
    // Runs a task of the current stage, from any thread. `worker` < pool.threads() is used by no other thread during
    // the call.
    virtual Status run(int64_t task, int worker) = 0;
};

enum class RunEnd : uint8_t { finished, stopped };

// Runs the units. `start(i)` creates unit i; it may be called from any thread, in the order of i, one call at a time.
// `should_stop` is checked between tasks; if it returns true, units in flight are dropped at once. On errors, units
// before the failing one still run to their end and later ones are dropped; the error of the lowest unit is returned,
// so it does not depend on the number of threads.
Result<RunEnd> run_units(ThreadPool& pool, int64_t units,
                         const std::function<std::unique_ptr<UnitWork>(int64_t)>& start,
                         const std::function<bool()>& should_stop);

}  // namespace nibble
