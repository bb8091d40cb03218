#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
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
