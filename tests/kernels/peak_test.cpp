#include "kernels/peak.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nibble {
namespace {

TEST(Peak, EveryLoopConvergesToTwoAndHasARate) {
    // x = x / 2 + 1 has the fixed point 2; avx2 and avx512 add ten chains of it up.
    for (const PeakKernel& k : peak_kernels()) {
        if (!k.supported()) continue;
        EXPECT_EQ(k.run(200), k.name == "plain" ? 2.0f : 20.0f) << k.name;
        ThreadPool pool(1);
        EXPECT_GT(measure_multiply_adds(k, pool, 0.002), 1e8) << k.name;
    }
}

TEST(Peak, ReadBandwidthIsARate) {
    ThreadPool pool(1);
    EXPECT_GT(measure_read_bandwidth(pool, int64_t{8} << 20), 1e8);
}

}  // namespace
}  // namespace nibble
