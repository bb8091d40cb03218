#include "quant/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <thread>

namespace nibble::test {
namespace {

// A unit with the given numbers of tasks per stage; checks the guarantees of the interface.
class Work : public UnitWork {
public:
    struct Shared {
        std::atomic<int> alive{0}, most_alive{0}, tasks{0};
        std::mutex mutex;
        std::set<int> busy_workers;
        std::vector<int64_t> started, finished;
    };
    Work(Shared& shared, int64_t unit, std::vector<int64_t> stages, int64_t fail_in_stage = -1)
        : shared_(shared), unit_(unit), stages_(std::move(stages)), fail_in_stage_(fail_in_stage) {
        shared_.started.push_back(unit);  // one call at a time
        const int alive = ++shared_.alive;
        if (alive > shared_.most_alive) shared_.most_alive = alive;
    }
    ~Work() override { --shared_.alive; }

    Result<int64_t> next_stage() override {
        EXPECT_EQ(open_, 0);
        EXPECT_FALSE(inside_.exchange(true));
        ++stage_;
        const bool end = stage_ == static_cast<int64_t>(stages_.size());
        open_ = end ? 0 : stages_[static_cast<size_t>(stage_)];
        if (end) {
            std::lock_guard lock(shared_.mutex);
            shared_.finished.push_back(unit_);
        }
        inside_ = false;
        if (stage_ == fail_in_stage_ && open_ == 1) return fail("unit {} failed in its stage", unit_);
        return open_.load();
    }
    Status run(int64_t task, int worker) override {
        EXPECT_FALSE(inside_);
        {
            std::lock_guard lock(shared_.mutex);
            EXPECT_TRUE(shared_.busy_workers.insert(worker).second);
        }
        ++shared_.tasks;
        std::this_thread::sleep_for(std::chrono::microseconds((unit_ * 7 + task * 13) % 50));
        --open_;
        {
            std::lock_guard lock(shared_.mutex);
            shared_.busy_workers.erase(worker);
        }
        if (stage_ == fail_in_stage_) return fail("unit {} failed", unit_);
        return Ok{};
    }

private:
    Shared& shared_;
    const int64_t unit_;
    const std::vector<int64_t> stages_;
    const int64_t fail_in_stage_;
    int64_t stage_ = -1;
    std::atomic<int64_t> open_{0};
    std::atomic<bool> inside_{false};
};

bool never() { return false; }

TEST(Executor, RunsEveryTaskOfEveryStageWithAtMostOneUnitPerThreadInFlight) {
    for (int threads : {1, 2, 3, 7}) {
        ThreadPool pool(threads);
        Work::Shared shared;
        int64_t tasks = 0;
        const auto end = run_units(
            pool, 200,
            [&](int64_t unit) {
                const std::vector<int64_t> stages{unit % 5 + 1, 1, unit == 50 ? 300 : 2};
                for (int64_t n : stages) tasks += n;
                return std::make_unique<Work>(shared, unit, stages);
            },
            never);
        ASSERT_TRUE(end.ok());
        EXPECT_EQ(*end, RunEnd::finished);
        EXPECT_EQ(shared.tasks, tasks);
        EXPECT_EQ(shared.finished.size(), 200u);
        EXPECT_TRUE(std::is_sorted(shared.started.begin(), shared.started.end()));
        EXPECT_LE(shared.most_alive, threads);
        EXPECT_EQ(shared.alive, 0);
    }
}

TEST(Executor, ReturnsTheErrorOfTheFirstUnitAndFinishesEarlierUnits) {
    for (int repeat = 0; repeat < 50; ++repeat) {
        ThreadPool pool(1 + repeat % 7);
        Work::Shared shared;
        const auto end = run_units(
            pool, 100,
            [&](int64_t unit) {
                // Unit 21 fails at once, unit 20 late; the error of 20 must be returned.
                const int64_t fails_in = unit == 20 ? 3 : unit == 21 ? 0 : unit > 21 && unit % 2 ? 1 : -1;
                return std::make_unique<Work>(shared, unit, std::vector<int64_t>{3, 4, 5, 6}, fails_in);
            },
            never);
        ASSERT_FALSE(end.ok());
        EXPECT_EQ(end.error().message(), "unit 20 failed");
        EXPECT_EQ(std::count_if(shared.finished.begin(), shared.finished.end(), [](int64_t u) { return u < 20; }), 20);
        EXPECT_EQ(shared.alive, 0);
    }
}

TEST(Executor, AnErrorBetweenStagesIsAnErrorOfTheUnit) {
    ThreadPool pool(3);
    Work::Shared shared;
    const auto end = run_units(
        pool, 10,
        [&](int64_t unit) {
            return std::make_unique<Work>(shared, unit, std::vector<int64_t>{2, 1, 2}, unit == 4 ? 1 : -1);
        },
        never);
    ASSERT_FALSE(end.ok());
    EXPECT_EQ(end.error().message(), "unit 4 failed in its stage");
    EXPECT_EQ(shared.alive, 0);
}

TEST(Executor, StopsBetweenTasks) {
    for (int threads : {1, 4}) {
        ThreadPool pool(threads);
        Work::Shared shared;
        const auto end = run_units(
            pool, 1000,
            [&](int64_t unit) {
                return std::make_unique<Work>(shared, unit, std::vector<int64_t>{50, 50});
            },
            [&] { return shared.tasks >= 120; });
        ASSERT_TRUE(end.ok());
        EXPECT_EQ(*end, RunEnd::stopped);
        EXPECT_LT(shared.tasks, 120 + 2 * threads);
        EXPECT_EQ(shared.alive, 0);
    }
}

TEST(Executor, AnEmptyJobSucceeds) {
    ThreadPool pool(3);
    const auto end = run_units(
        pool, 0, [](int64_t) { return std::unique_ptr<UnitWork>(); }, never);
    ASSERT_TRUE(end.ok());
    EXPECT_EQ(*end, RunEnd::finished);
}

// Throws as a vector without memory does.
class Thrower : public UnitWork {
public:
    explicit Thrower(bool in_stage) : in_stage_(in_stage) {}
    Result<int64_t> next_stage() override {
        if (in_stage_) throw std::bad_alloc();
        return 4;
    }
    Status run(int64_t task, int) override {
        if (task == 1) throw std::runtime_error("what it says");
        return Ok{};
    }

private:
    bool in_stage_;
};

TEST(Executor, AnExceptionOfAUnitIsItsErrorWithoutADeadlock) {
    for (int threads : {1, 2, 5}) {
        ThreadPool pool(threads);
        const auto run = [&](auto start) { return run_units(pool, 20, start, [] { return false; }); };
        const auto stage = run([](int64_t) { return std::make_unique<Thrower>(true); });
        ASSERT_FALSE(stage.ok());
        EXPECT_EQ(stage.error().message(), "out of memory");
        const auto task = run([](int64_t) { return std::make_unique<Thrower>(false); });
        ASSERT_FALSE(task.ok());
        EXPECT_EQ(task.error().message(), "what it says");
        const auto start = run([](int64_t) -> std::unique_ptr<UnitWork> { throw std::bad_alloc(); });
        ASSERT_FALSE(start.ok());
        EXPECT_EQ(start.error().message(), "out of memory");
    }
}

}  // namespace
}  // namespace nibble::test
