#include "kernels/machine_limits.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace nibble {
namespace {

TEST(MachineLimits, EveryEntryReadsEveryByte) {
    std::mt19937_64 random(1);
    std::vector<uint64_t> words(1024);
    uint64_t all = 0;
    for (uint64_t& w : words) all ^= w = random();
    const auto* bytes = reinterpret_cast<const std::byte*>(words.data());
    const auto size = static_cast<int64_t>(words.size() * sizeof(uint64_t));
    for (const MachineLimits& m : machine_limits())
        if (m.supported()) {
            EXPECT_EQ(m.read(bytes, size), all) << m.name;
            EXPECT_EQ(m.read(bytes, 0), 0u) << m.name;
        }
}

TEST(MachineLimits, OperationsGrowWithRounds) {
    for (const MachineLimits& m : machine_limits())
        if (m.supported()) {
            EXPECT_GT(m.multiply_add(1), 0) << m.name;
            EXPECT_EQ(m.multiply_add(10), 10 * m.multiply_add(1)) << m.name;
        }
    EXPECT_FALSE(select_machine_limits("sse9").ok());
}

TEST(MachineLimits, BothAreRates) {
    ThreadPool pool(2);
    for (const MachineLimits& m : machine_limits())
        if (m.supported()) {
            // Bounds that every build meets and a wrong unit violates.
            for (const double rate : {measure_operations(m, pool, 0.002), measure_reading(m, pool, int64_t{8} << 20)}) {
                EXPECT_GT(rate, 1e6) << m.name;
                EXPECT_LT(rate, 1e15) << m.name;
            }
        }
}

}  // namespace
}  // namespace nibble
