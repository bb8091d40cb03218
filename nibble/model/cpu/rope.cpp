#include "model/cpu/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace nibble {
namespace {

// "llama3" scaling: low frequencies are divided by the factor, high ones are kept, and those between are interpolated.
double llama3(const Rope& rope, double frequency) {
    const double context = static_cast<double>(rope.original_context);
    const double wave = 2 * std::numbers::pi / frequency;
    if (wave < context / rope.high_freq_factor) return frequency;
    if (wave > context / rope.low_freq_factor) return frequency / rope.factor;
    const double s = (context / wave - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
    return (1 - s) * frequency / rope.factor + s * frequency;
}

// YaRN (Peng et al. 2023), as transformers computes it.
class Yarn {
public:
    explicit Yarn(const Rope& rope) : rope_(rope) {
        low_ = correction(rope.beta_fast), high_ = correction(rope.beta_slow);
        if (rope.truncate) low_ = std::floor(low_), high_ = std::ceil(high_);
        low_ = std::max(low_, 0.0), high_ = std::min(high_, rope.dims - 1.0);
        if (low_ == high_) high_ += 0.001;
    }
    double operator()(int pair, double frequency) const {
        const double ramp = std::clamp((pair - low_) / (high_ - low_), 0.0, 1.0);
        return frequency / rope_.factor * ramp + frequency * (1 - ramp);
    }

private:
    // Returns the (fractional) index of the pair that turns `rotations` times within the original context.
    double correction(double rotations) const {
        const double context = static_cast<double>(rope_.original_context);
        return rope_.dims * std::log(context / (rotations * 2 * std::numbers::pi)) / (2 * std::log(rope_.theta));
    }
    const Rope& rope_;
    double low_ = 0, high_ = 0;
};

}  // namespace

std::vector<float> rope_frequencies(const Rope& rope) {
    std::vector<float> frequencies;
    for (int i = 0; i < rope.dims / 2; ++i) {
        const double f = std::pow(rope.theta, -2.0 * i / rope.dims);
        switch (rope.scaling) {
            case Rope::Scaling::none:
                frequencies.push_back(static_cast<float>(f));
                break;
            case Rope::Scaling::linear:
                frequencies.push_back(static_cast<float>(f / rope.factor));
                break;
            case Rope::Scaling::llama3:
                frequencies.push_back(static_cast<float>(llama3(rope, f)));
                break;
            case Rope::Scaling::yarn:
                frequencies.push_back(static_cast<float>(Yarn(rope)(i, f)));
                break;
            case Rope::Scaling::proportional:
                frequencies.push_back(i < rope.pairs ? static_cast<float>(f / rope.factor) : 0.0f);
                break;
            case Rope::Scaling::longrope:
                frequencies.push_back(static_cast<float>(f / rope.factors[static_cast<size_t>(i)]));
                break;
        }
    }
    return frequencies;
}

}  // namespace nibble
