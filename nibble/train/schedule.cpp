#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace nibble {

double learning_rate(const TrainSchedule& s, double peak, int64_t step, int64_t steps) {
    if (step < s.warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(s.warmup);
    int64_t first = s.warmup;
    if (s.kind == ScheduleKind::wsd)
        first = std::max<int64_t>(first, steps - std::llround(s.decay_fraction * static_cast<double>(steps)));
    if (s.kind == ScheduleKind::constant || step < first) return peak;
    const double p = std::clamp(
        static_cast<double>(step - first) / static_cast<double>(std::max<int64_t>(steps - first, 1)), 0.0, 1.0);
    double left = 1 - p;
    if (s.kind == ScheduleKind::cosine) left = (1 + std::cos(std::numbers::pi * p)) / 2;
    if (s.kind == ScheduleKind::wsd) left = 1 - std::sqrt(p);
    return peak * (s.final_fraction + (1 - s.final_fraction) * left);
}

}  // namespace nibble
