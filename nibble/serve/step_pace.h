// How long steps take lately, so that prompts stretch the time between two tokens of a running answer by no more than
// is wanted. What a step holds changes no answer: nothing but times depends on these times.
#pragma once

#include <algorithm>
#include <cstdint>

namespace nibble {

class StepPace {
public:
    // A step with so many rows of answers and of prompts.
    void see(double seconds, int64_t answers, int64_t prompts) {
        if (!(seconds > 0)) return;
        if (prompts == 0) {
            approach(answers_, seconds);
        } else if (answers == 0 || answers_ == 0) {
            approach(row_, seconds / static_cast<double>(prompts));
        } else {  // both shares are off alike, as far as one step can tell
            const double expected = answers_ + row_ * static_cast<double>(prompts);
            const double change = 1 + weight * (seconds / expected - 1);
            answers_ *= change;
            row_ *= change;
        }
    }
    // Rows of prompts with which a step of running answers takes at most `stretch` times as long as without them:
    // `most` where nothing is known yet, and a few at least, so that prompts come to their end.
    int64_t rows(double stretch, int64_t most) const {
        if (answers_ == 0 || row_ == 0) return most;
        const double fit = std::max(0.0, stretch - 1) * answers_ / row_;
        return std::clamp(static_cast<int64_t>(std::min(fit, 1e9)) / least * least, std::min(least, most), most);
    }

private:
    static constexpr double weight = 1.0 / 8;  // of the newest step
    static constexpr int64_t least = 16;       // rows of a product's tile
    static void approach(double& mean, double now) { mean = mean == 0 ? now : mean + weight * (now - mean); }

    double answers_ = 0;  // seconds of a step without prompts; 0: none was seen
    double row_ = 0;      // seconds that a row of a prompt adds
};

}  // namespace nibble
