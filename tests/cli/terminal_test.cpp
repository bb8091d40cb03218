#include "cli/terminal.h"

#include <gtest/gtest.h>

using namespace nibble;

TEST(ProgressLine, ShowsRateAndTimeLeftWithinTheWidth) {
    const Progress p{"quantize", "model.layers.0.mlp.up_proj.weight", 500'000'000, 2'000'000'000};
    EXPECT_EQ(progress_line(p, 1.0, 200),
              "quantize   25 %  500 MB of 2.00 GB  500 MB/s  3.0 s left  model.layers.0.mlp.up_proj.weight");
    EXPECT_EQ(progress_line(p, 1.0, 20).size(), 20u);
    EXPECT_EQ(progress_line({"verify", "x", 0, 0}, 0.0, 80), "verify    100 %  0 B of 0 B  0 B/s  x");
}
