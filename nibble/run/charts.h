// Draws charts over the steps of a run, for its pages.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace nibble {

struct ChartSample {
    double x = 0, y = 0;  // step and value; values that are not finite are left out
};

struct ChartCurve {
    std::string name;
    int style = 0;
    std::vector<ChartSample> samples;  // by ascending x
};

struct StepChart {
    std::string title, y_label;
    std::optional<double> y_low, y_high;  // absent: the range of the samples
    int width = 1040, height = 360;
};

// Returns a chart as SVG, or "" if no curve has a value. In a curve with more than 240 samples each point is the mean
// of several samples, and a band shows their range.
std::string step_chart(const StepChart& chart, const std::vector<ChartCurve>& curves);

}  // namespace nibble
