#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>

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

TEST(ThreadPool, AMillionThreadsAreAsManyAsAllowed) {
    // The ticket counts 2,047 workers: with more, parallel_for returned before its work was done.
    ThreadPool pool(1'000'000);
    EXPECT_LE(pool.threads(), ThreadPool::most_threads);
    EXPECT_GT(pool.threads(), 1);
    std::vector<std::atomic<int>> hits(20'000);
    for (int round = 0; round < 3; ++round)
        pool.parallel_for(int64_t(hits.size()), [&](int64_t i) { hits[size_t(i)]++; });
    for (auto& h : hits) ASSERT_EQ(h, 3);
}

TEST(ThreadPool, AnExceptionOfTheWorkReachesTheCallerAndThePoolContinues) {
    for (int threads : {1, 2, 5}) {
        ThreadPool pool(threads);
        for (int round = 0; round < 50; ++round) {
            EXPECT_THROW(pool.parallel_for(100,
                                           [](int64_t i) {
                                               if (i % 7 == 3) throw std::bad_alloc();
                                           }),
                         std::bad_alloc);
            std::atomic<int> ran{0};
            pool.parallel_for(100, [&](int64_t) { ++ran; });
            EXPECT_EQ(ran, 100);
        }
    }
}

TEST(ThreadPool, WorkersHaveAStackOfAMegabyteForAnyDefault) {
    pthread_attr_t before, small;
    ASSERT_EQ(pthread_getattr_default_np(&before), 0);
    ASSERT_EQ(pthread_attr_init(&small), 0);
    ASSERT_EQ(pthread_attr_setstacksize(&small, size_t{128} << 10), 0);
    ASSERT_EQ(pthread_setattr_default_np(&small), 0);
    std::atomic<size_t> least{SIZE_MAX};
    const pthread_t caller = pthread_self();
    {
        ThreadPool pool(4);
        pool.parallel_for(64, [&](int64_t) {
            if (pthread_equal(pthread_self(), caller)) return;
            pthread_attr_t own;
            size_t size = 0;
            if (pthread_getattr_np(pthread_self(), &own) != 0) return;
            pthread_attr_getstacksize(&own, &size);
            pthread_attr_destroy(&own);
            size_t seen = least;
            while (size < seen && !least.compare_exchange_weak(seen, size)) {
            }
        });
    }
    pthread_setattr_default_np(&before);
    pthread_attr_destroy(&small);
    pthread_attr_destroy(&before);
    EXPECT_GE(least, size_t{1} << 20);  // SIZE_MAX where the caller did everything itself
}
