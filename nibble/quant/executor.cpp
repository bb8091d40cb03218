#include "quant/executor.h"

#include "base/map_faults.h"

#include <condition_variable>
#include <limits>
#include <map>
#include <mutex>
#include <optional>

namespace nibble {
namespace {

// Converts exceptions of a unit (no memory) into its error, because other threads wait for units, not for threads.
template <class Call>
auto caught(Call call) -> decltype(call()) {
    try {
        return call();
    } catch (const std::bad_alloc&) {
        return fail("out of memory");
    } catch (const std::exception& e) {
        return fail("{}", e.what());
    }
}

struct InFlight {
    std::unique_ptr<UnitWork> work;
    int64_t tasks = 0;    // in the current stage
    int64_t handed = 0;   // tasks given to a thread
    int64_t open = 0;     // tasks that are not finished, whether given to a thread or not
    bool between = true;  // next_stage() is running

    bool idle() const { return !between && open == tasks - handed; }
};

class UnitRun {
public:
    UnitRun(int64_t units, const std::function<std::unique_ptr<UnitWork>(int64_t)>& start,
            const std::function<bool()>& should_stop)
        : units_(units), start_(start), should_stop_(should_stop) {}

    void work(int worker) {
        std::unique_lock lock(mutex_);
        for (;;) {
            if (!stopped_ && should_stop_()) {
                stopped_ = true;
                changed_.notify_all();
            }
            if (stopped_) return;
            if (error_) drop_idle_dead(lock);
            if (auto ready = oldest_ready(); ready != flight_.end()) {
                run_task(ready, worker, lock);
            } else if (next_unit_ < limit()) {
                const int64_t unit = next_unit_++;
                auto work = caught([&]() -> Result<std::unique_ptr<UnitWork>> { return start_(unit); });
                if (!work.ok()) {
                    note_error(unit, std::move(work).error());
                    continue;
                }
                advance(flight_.emplace(unit, InFlight{*std::move(work)}).first, worker, lock);
            } else if (flight_.empty()) {
                return;
            } else {
                changed_.wait(lock);
            }
        }
    }

    Result<RunEnd> result() {
        if (error_) return *std::move(error_);
        return stopped_ ? RunEnd::stopped : RunEnd::finished;
    }

private:
    using Flight = std::map<int64_t, InFlight>;

    // Units from this one on are not started or continued.
    int64_t limit() const { return error_ ? failed_unit_ : units_; }

    Flight::iterator oldest_ready() {
        for (auto it = flight_.begin(); it != flight_.end() && it->first < limit(); ++it)
            if (!it->second.between && it->second.handed < it->second.tasks) return it;
        return flight_.end();
    }

    void run_task(Flight::iterator slot, int worker, std::unique_lock<std::mutex>& lock) {
        InFlight& unit = slot->second;
        const int64_t task = unit.handed++;
        lock.unlock();
        Status done = caught([&] { return unit.work->run(task, worker); });
        lock.lock();
        --unit.open;
        if (!done.ok()) note_error(slot->first, std::move(done).error());
        leave(slot, worker, lock);
    }

    // Called when a task of the unit has finished: drops dead units, opens the next stage of live ones.
    void leave(Flight::iterator slot, int worker, std::unique_lock<std::mutex>& lock) {
        InFlight& unit = slot->second;
        if (slot->first >= limit()) {
            if (unit.idle()) retire(slot, lock);
        } else if (unit.open == 0) {
            unit.between = true;
            advance(slot, worker, lock);
        }
    }

    void advance(Flight::iterator slot, int worker, std::unique_lock<std::mutex>& lock) {
        InFlight& unit = slot->second;
        lock.unlock();
        Result<int64_t> tasks = caught([&] { return unit.work->next_stage(); });
        if (tasks.ok())
            if (Status maps = check_maps(); !maps.ok()) tasks = std::move(maps).error();
        lock.lock();
        if (!tasks.ok()) note_error(slot->first, tasks.error());
        if (!tasks.ok() || slot->first >= limit() || *tasks == 0) {
            retire(slot, lock);
            return;
        }
        unit.tasks = unit.open = *tasks;
        unit.handed = 0;
        unit.between = false;
        if (unit.tasks > 1) changed_.notify_all();
        if (!stopped_) run_task(slot, worker, lock);
    }

    // Drops dead units on which no thread is working; no other call would drop them.
    void drop_idle_dead(std::unique_lock<std::mutex>& lock) {
        for (auto it = flight_.lower_bound(limit()); it != flight_.end(); it = flight_.lower_bound(limit())) {
            while (it != flight_.end() && !it->second.idle()) ++it;
            if (it == flight_.end()) return;
            retire(it, lock);
        }
    }

    // Destroys the unit outside the lock, because freeing a large one takes time.
    void retire(Flight::iterator slot, std::unique_lock<std::mutex>& lock) {
        std::unique_ptr<UnitWork> dead = std::move(slot->second.work);
        flight_.erase(slot);
        changed_.notify_all();
        lock.unlock();
        dead.reset();
        lock.lock();
    }

    void note_error(int64_t unit, Error error) {
        if (error_ && failed_unit_ <= unit) return;
        error_ = std::move(error);
        failed_unit_ = unit;
        changed_.notify_all();
    }

    const int64_t units_;
    const std::function<std::unique_ptr<UnitWork>(int64_t)>& start_;
    const std::function<bool()>& should_stop_;

    std::mutex mutex_;
    std::condition_variable changed_;
    Flight flight_;
    int64_t next_unit_ = 0;
    int64_t failed_unit_ = 0;
    std::optional<Error> error_;
    bool stopped_ = false;
};

}  // namespace

Result<RunEnd> run_units(ThreadPool& pool, int64_t units,
                         const std::function<std::unique_ptr<UnitWork>(int64_t)>& start,
                         const std::function<bool()>& should_stop) {
    UnitRun run(units, start, should_stop);
    pool.parallel_for(pool.threads(), [&](int64_t worker) { run.work(static_cast<int>(worker)); });
    return run.result();
}

}  // namespace nibble
