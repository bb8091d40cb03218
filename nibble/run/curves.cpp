#include "run/curves.h"

#include "page/html.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace nibble {
namespace {

constexpr size_t most_points = 240;

struct Spread {
    double sum = 0, count = 0, low = INFINITY, high = -INFINITY;

    void add(double value) {
        if (!std::isfinite(value)) return;
        sum += value, ++count;
        low = std::min(low, value), high = std::max(high, value);
    }
    double mean() const { return count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN(); }
};

// Returns NaN for null, because JSON has no NaN, and for values of other types.
double number_in(const Json& value) {
    return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

double mean_of(std::span<const Json> lines, const std::string& key) {
    Spread all;
    for (const Json& line : lines)
        if (const auto value = line.find(key); value != line.end()) all.add(number_in(*value));
    return all.mean();
}

}  // namespace

Json curve_json(std::span<const CurveSample> samples) {
    const size_t stretch = (samples.size() + most_points - 1) / most_points;
    Json points = Json::array();
    for (size_t begin = 0; begin < samples.size(); begin += stretch) {
        const auto part = samples.subspan(begin, std::min(stretch, samples.size() - begin));
        Spread spread;
        for (const CurveSample& s : part) spread.add(s.value);
        if (part.size() == 1)
            points.push_back({part[0].step, rounded(spread.mean())});
        else
            points.push_back({part.front().step, part.back().step, rounded(spread.mean()), rounded(spread.low),
                              rounded(spread.high)});
    }
    return points;
}

Json number_fields(std::span<const Json> lines, size_t headline_steps) {
    std::map<std::string, std::vector<CurveSample>> curves;
    for (const Json& line : lines)
        for (const auto& [key, value] : line.items())
            if (key != "step" && (value.is_number() || value.is_null()))
                curves[key].push_back({line.value("step", int64_t{0}), number_in(value)});
    const size_t n = std::min(headline_steps, lines.size());
    Json fields = Json::object();
    for (const auto& [key, samples] : curves) {
        Spread all;
        for (const CurveSample& s : samples) all.add(s.value);
        if (all.count > 0)
            fields[key] = {{"curve", curve_json(samples)},
                           {"sum", all.sum},
                           {"first", mean_of(lines.first(n), key)},
                           {"last", mean_of(lines.last(n), key)}};
    }
    return fields;
}

}  // namespace nibble
