// Charts over the steps of a run, for its pages.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace nibble {

struct ChartSample {
    double x = 0, y = 0;  // step, value; what is not finite is left out
};

struct ChartCurve {
    std::string name;
    int style = 0;
    std::vector<ChartSample> samples;  // by rising x
};

struct StepChart {
    std::string title, y_label;
    std::optional<double> y_low, y_high;  // none: from the samples
    int width = 1040, height = 360;
};

// One chart as SVG. Of a curve with more than 240 samples each point is the mean of a stretch, in a band over what lies
// in it. Empty where no curve has a value.
std::string step_chart(const StepChart& chart, const std::vector<ChartCurve>& curves);

}  // namespace nibble
