#include "run/charts.h"

#include "page/numbers.h"
#include "page/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

constexpr size_t most_points = 240;

Series series_of(const ChartCurve& curve) {
    Series series{.name = curve.name, .style = curve.style};
    const std::vector<ChartSample>& samples = curve.samples;
    const size_t stretch = (samples.size() + most_points - 1) / most_points;
    for (size_t begin = 0; begin < samples.size(); begin += stretch) {
        const size_t end = std::min(begin + stretch, samples.size());
        SeriesPoint p{.x = samples[begin].x, .low = samples[begin].y, .high = samples[begin].y};
        double sum = 0;
        for (size_t i = begin; i < end; ++i) {
            p.low = std::min(p.low, samples[i].y);
            p.high = std::max(p.high, samples[i].y);
            sum += samples[i].y;
        }
        p.mid = sum / double(end - begin);
        p.tooltip = end - begin == 1
                        ? fmt::format("{}, step {}: {}", curve.name, p.x, human_value(p.mid))
                        : fmt::format("{}, steps {} to {}: {} ({} to {})", curve.name, p.x, samples[end - 1].x,
                                      human_value(p.mid), human_value(p.low), human_value(p.high));
        series.points.push_back(std::move(p));
    }
    return series;
}

}  // namespace

std::string step_chart(const StepChart& c, const std::vector<ChartCurve>& curves) {
    LineChart chart{.title = c.title, .x_label = "step", .y_label = c.y_label, .width = c.width, .height = c.height};
    double low = INFINITY, high = -INFINITY, last = 1;
    for (const ChartCurve& curve : curves) {
        for (const ChartSample& s : curve.samples) {
            last = std::max(last, s.x);
            if (!std::isfinite(s.y)) continue;
            low = std::min(low, s.y);
            high = std::max(high, s.y);
        }
        if (!curve.samples.empty()) chart.series.push_back(series_of(curve));
    }
    if (!(low <= high)) return {};
    const double margin = high > low ? 0.04 * (high - low) : high != 0 ? std::abs(high) * 0.1 : 1;
    chart.x_low = 0;
    chart.x_high = last;
    chart.y_low = c.y_low.value_or(low >= 0 && low < margin ? 0 : low - margin);
    chart.y_high = c.y_high.value_or(high + margin);
    return draw(chart);
}

}  // namespace nibble
