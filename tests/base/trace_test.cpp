#include "base/trace.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace nibble {
namespace {

TEST(Trace, SpansNestAndComeOutAsChromeReadsThem) {
    Trace trace;
    { const TraceSpan before(&trace, "not recorded"); }
    trace.record(true);
    {
        const TraceSpan outer(&trace, "step", 3);
        const TraceSpan inner(&trace, "block");
    }
    const auto start = Trace::Clock::now();
    trace.add("kernel", "GPU", start, start + std::chrono::microseconds(250));
    trace.record(false);
    { const TraceSpan after(&trace, "not recorded"); }
    { const TraceSpan none(nullptr, "nothing"); }
    EXPECT_EQ(trace.spans(), 3);
    const Json events = trace.to_json()["traceEvents"];
    ASSERT_EQ(events.size(), 5u);  // two lanes have names
    EXPECT_EQ(events[0]["args"]["name"], "host");
    EXPECT_EQ(events[1]["args"]["name"], "GPU");
    const Json &inner = events[2], &outer = events[3], &kernel = events[4];
    EXPECT_EQ(inner["name"], "block");
    EXPECT_EQ(outer["name"], "step 3");
    EXPECT_EQ(outer["ts"], 0.0);
    EXPECT_GE(inner["ts"].get<double>(), 0.0);
    EXPECT_LE(inner["ts"].get<double>() + inner["dur"].get<double>(), outer["dur"].get<double>() + 1e-3);
    EXPECT_EQ(kernel["tid"], 1);
    EXPECT_NEAR(kernel["dur"].get<double>(), 250, 1e-6);
}

TEST(Trace, StaysSmall) {
    Trace trace(2);
    trace.record(true);
    for (int i = 0; i < 5; ++i) const TraceSpan span(&trace, "span");
    EXPECT_EQ(trace.spans(), 2);
    EXPECT_EQ(Trace().to_json()["traceEvents"].size(), 0u);
}

}  // namespace
}  // namespace nibble
