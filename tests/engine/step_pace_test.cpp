#include "engine/step_pace.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

// A machine whose steps take a fixed time for answers and, with prompts, another fixed time plus a time per row.
struct Machine {
    double answers = 0, begin = 0, row = 0;
    double step(int64_t prompts) const {
        return answers + (prompts > 0 ? begin + row * static_cast<double>(prompts) : 0);
    }
    // Runs 2 * steps steps with prompts waiting all the time; returns the longest duration in the second half.
    double longest(StepPace& pace, int steps) const {
        double most = 0;
        for (int i = 0; i < 2 * steps; ++i) {
            const int64_t rows = pace.rows();
            const double took = step(rows);
            pace.see(took, 64, rows);
            if (i >= steps) most = std::max(most, took);
        }
        return most;
    }
};

TEST(StepPace, HasNoEstimateAtFirst) {
    StepPace pace(3, 1024);
    EXPECT_EQ(pace.rows(), 1024);
    pace.see(0.5, 0, 128);  // the first step of the process
    pace.see(0.010, 8, 0);
    EXPECT_EQ(pace.rows(), 1024);
}

TEST(StepPace, PromptsGetTheRemainingTime) {
    const Machine m{.answers = 0.005, .begin = 0.001, .row = 2e-5};
    StepPace pace(3, 1024);
    pace.see(m.step(0), 64, 0);
    EXPECT_LE(m.longest(pace, 100), 3 * 1.02 * m.answers);
    while (pace.rows() == 0) pace.see(m.step(0), 64, 0);
    EXPECT_NEAR(static_cast<double>(pace.rows()), 450, 15);
}

// The estimate recovers from steps that were too short, where a row costs more than in long steps.
TEST(StepPace, RecoversFromFewRows) {
    StepPace pace(3, 1024);
    pace.see(0.005, 64, 0);
    for (int i = 0; i < 20; ++i) pace.see(1.0, 64, pace.rows());  // a machine that was busy
    EXPECT_EQ(pace.rows(), 16);
    const Machine m{.answers = 0.005, .begin = 0.002, .row = 1e-5};
    m.longest(pace, 100);
    while (pace.rows() == 0) pace.see(m.step(0), 64, 0);
    EXPECT_NEAR(static_cast<double>(pace.rows()), 800, 40);
}

// The time of answers is known for a few of them; then many run, with endless prompts.
TEST(StepPace, AdaptsToSlowerAnswers) {
    StepPace pace(3, 1024);
    for (int i = 0; i < 10; ++i) pace.see(0.001, 1, 0);
    const Machine m{.answers = 0.010, .begin = 0.001, .row = 1e-5};
    EXPECT_LE(m.longest(pace, 200), 3 * 1.02 * m.answers);
    while (pace.rows() == 0) pace.see(m.step(0), 64, 0);
    EXPECT_EQ(pace.rows(), 1024);
}

// A short last piece does not limit the number of rows.
TEST(StepPace, ShortPromptsDoNotReduceTheRows) {
    const Machine m{.answers = 0.005, .begin = 0.004, .row = 1e-5};
    StepPace pace(3, 512);
    pace.see(m.step(0), 64, 0);
    for (int i = 0; i < 10; ++i) pace.see(m.step(512), 64, 512);
    const int64_t before = pace.rows();
    for (int i = 0; i < 10; ++i) pace.see(m.step(20), 64, 20);
    EXPECT_GE(pace.rows(), before / 2);
    EXPECT_EQ(StepPace(2, 8).rows(), 8);
}

TEST(StepPace, InvalidTimesAreIgnored) {
    StepPace pace(3, 1024);
    pace.see(0.010, 8, 0);
    pace.see(0, 8, 100);
    pace.see(-1, 8, 100);
    EXPECT_EQ(pace.rows(), 1024);
}

}  // namespace
}  // namespace nibble
