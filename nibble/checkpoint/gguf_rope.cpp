#include "checkpoint/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace nibble {
namespace {

double llama3_divisor(double wavelength, const Llama3Rope& r) {
    if (wavelength < r.original_length / r.high_freq_factor) return 1;
    if (wavelength > r.original_length / r.low_freq_factor) return r.factor;
    const double s = (r.original_length / wavelength - r.low_freq_factor) / (r.high_freq_factor - r.low_freq_factor);
    return 1 / ((1 - s) / r.factor + s);
}

bool produces(std::span<const float> divisors, double base, double factor, double original_length) {
    const auto n = static_cast<double>(divisors.size());
    for (size_t i = 0; i < divisors.size(); ++i) {
        const double wavelength = 2 * std::numbers::pi * std::pow(base, static_cast<double>(i) / n);
        const double expected = llama3_divisor(wavelength, {.factor = factor, .original_length = original_length});
        // also rejects NaNs
        if (!(std::abs(divisors[i] - expected) <= 1e-4 * expected)) return false;
    }
    return true;
}

}  // namespace

Result<Json> llama3_rope_scaling(std::span<const float> divisors, double base) {
    if (divisors.empty()) return fail("rope_freqs.weight is empty");
    const double factor = *std::ranges::max_element(divisors);
    std::vector<double> lengths{8192};
    for (double length = 32; length <= 1 << 22; length *= 2) lengths.push_back(length);
    for (const double length : lengths) {
        if (!produces(divisors, base, factor, length)) continue;
        Json scaling;
        scaling["rope_type"] = "llama3";
        // For the longest wavelengths the divisor is the factor itself. Factors have few digits, so FP32 represents
        // them exactly.
        scaling["factor"] = factor;
        scaling["low_freq_factor"] = Llama3Rope().low_freq_factor;
        scaling["high_freq_factor"] = Llama3Rope().high_freq_factor;
        scaling["original_max_position_embeddings"] = static_cast<int64_t>(length);
        return scaling;
    }
    return fail(
        "rope_freqs.weight ({} values, largest {}) is not a Llama-3 frequency scaling for base {}: no config.json "
        "field can express it",
        divisors.size(), factor, base);
}

std::vector<float> llama3_rope_divisors(const Llama3Rope& scaling, double base, int64_t head_dim) {
    std::vector<float> divisors;
    for (int64_t i = 0; i < head_dim / 2; ++i) {
        const double wavelength =
            2 * std::numbers::pi * std::pow(base, 2 * static_cast<double>(i) / static_cast<double>(head_dim));
        divisors.push_back(static_cast<float>(llama3_divisor(wavelength, scaling)));
    }
    return divisors;
}

}  // namespace nibble
