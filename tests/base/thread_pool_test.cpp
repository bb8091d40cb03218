#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

using namespace nibble;

TEST(ThreadPool, EveryIndexRunsExactlyOnce) {
    for (int threads : {1, 2, 7}) {
        ThreadPool pool(threads);
        EXPECT_EQ(pool.threads(), threads);
        for (int64_t n : {0, 1, 2, 100, 10000}) {
            std::vector<std::atomic<int>> hits(static_cast<size_t>(n));
            pool.parallel_for(n, [&](int64_t i) { hits[size_t(i)]++; });
            for (auto& h : hits) EXPECT_EQ(h, 1);
        }
    }
}

TEST(ThreadPool, NestedCallsRunInline) {
    ThreadPool pool(3);
    std::atomic<int64_t> sum{0};
    pool.parallel_for(10, [&](int64_t i) { pool.parallel_for(10, [&](int64_t j) { sum += i * 10 + j; }); });
    EXPECT_EQ(sum, 4950);
}

TEST(ThreadPool, ManyShortCallsDoNotLoseWork) {
    ThreadPool pool(4);
    std::atomic<int64_t> sum{0};
    for (int round = 0; round < 2000; ++round) pool.parallel_for(5, [&](int64_t i) { sum += i; });
    EXPECT_EQ(sum, 2000 * 10);
}

TEST(ThreadPool, CallersOnSeveralThreadsAreServedOneAfterTheOther) {
    ThreadPool pool(3);
    std::atomic<int> wrong{0};
    std::vector<std::thread> callers;
    for (int c = 0; c < 3; ++c)
        callers.emplace_back([&] {
            for (int64_t round = 0; round < 500; ++round) {
                std::vector<int64_t> seen(size_t(1 + round % 9));  // not atomic: parallel_for orders it
                pool.parallel_for(int64_t(seen.size()), [&](int64_t i) { seen[size_t(i)] = i + round; });
                for (size_t i = 0; i < seen.size(); ++i) wrong += seen[i] != int64_t(i) + round;
            }
        });
    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(wrong, 0);
}

TEST(ThreadPool, SleepingWorkersWakeForWorkAndForTheEnd) {
    for (int round = 0; round < 20; ++round) {
        ThreadPool pool(4);
        std::this_thread::sleep_for(std::chrono::milliseconds(round % 3));
        if (round % 2) continue;
        std::atomic<int64_t> sum{0};
        pool.parallel_for(100, [&](int64_t i) { sum += i; });
        EXPECT_EQ(sum, 4950);
    }
}

// A worker can be had while another one is busy: the caller alone would never finish.
TEST(ThreadPool, IndicesRunAtTheSameTime) {
    ThreadPool pool(3);
    std::atomic<int> arrived{0};
    pool.parallel_for(3, [&](int64_t) {
        ++arrived;
        while (arrived < 3) std::this_thread::yield();
    });
    EXPECT_EQ(arrived, 3);
}
