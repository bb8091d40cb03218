#include "serve/step_pace.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

// A machine whose steps take a while for answers and a while for each row of a prompt.
struct Machine {
    double answers = 0, row = 0;
    double step(bool with_answers, int64_t prompts) const {
        return (with_answers ? answers : 0) + row * static_cast<double>(prompts);
    }
};

TEST(StepPace, KnowsNothingAtFirst) {
    StepPace pace;
    EXPECT_EQ(pace.rows(3, 1024), 1024);
    pace.see(0.010, 8, 0);
    EXPECT_EQ(pace.rows(3, 1024), 1024);
}

TEST(StepPace, PromptsTakeWhatTheStretchLeaves) {
    const Machine m{.answers = 0.005, .row = 2e-5};
    StepPace pace;
    pace.see(m.step(false, 8192), 0, 8192);
    pace.see(m.step(true, 0), 64, 0);
    EXPECT_EQ(pace.rows(3, 1024), 496);  // 10 ms of 20 us, in sixteens
    EXPECT_EQ(pace.rows(3, 256), 256);
    EXPECT_EQ(pace.rows(1.001, 1024), 16);
    EXPECT_EQ(pace.rows(1.001, 8), 8);
}

// Steps without prompts are rare where prompts never end: what is known follows all the same.
TEST(StepPace, FollowsStepsOfBothKinds) {
    Machine m{.answers = 0.005, .row = 2e-5};
    StepPace pace;
    pace.see(m.step(false, 4096), 0, 4096);
    pace.see(m.step(true, 0), 1, 0);
    m = {.answers = 0.012, .row = 6e-5};
    double longest = 0;
    for (int i = 0; i < 100; ++i) {
        const int64_t rows = pace.rows(3, 1024);
        const double took = m.step(true, rows);
        pace.see(took, 64, rows);
        if (i >= 50) longest = std::max(longest, took);
    }
    EXPECT_LE(longest, 3.0 * 1.05 * m.answers);
    EXPECT_GE(pace.rows(3, 1024), 256);
    for (int i = 0; i < 40; ++i) pace.see(m.step(true, 0), 64, 0);
    EXPECT_NEAR(static_cast<double>(pace.rows(3, 1024)), 2 * m.answers / m.row, 0.1 * 2 * m.answers / m.row);
}

TEST(StepPace, TimesThatAreNoneAreNoTimes) {
    StepPace pace;
    pace.see(0.010, 8, 0);
    pace.see(0.010, 0, 100);
    const int64_t before = pace.rows(3, 1024);
    pace.see(0, 8, 0);
    pace.see(-1, 0, 10);
    EXPECT_EQ(pace.rows(3, 1024), before);
}

}  // namespace
}  // namespace nibble
