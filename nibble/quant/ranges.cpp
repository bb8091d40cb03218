#include "quant/ranges.h"

#include "formats/minifloat.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace nibble {
namespace {

constexpr size_t buckets = 1 << 15;

size_t bucket_of(float x) { return (std::bit_cast<uint32_t>(x) & 0x7FFF'FFFF) >> 16; }
float lower_edge(size_t bucket) { return std::bit_cast<float>(static_cast<uint32_t>(bucket) << 16); }
float middle(size_t bucket) { return std::bit_cast<float>(static_cast<uint32_t>(bucket) << 16 | 0x8000); }

}  // namespace

void Range::add(const float* x, int64_t rows, int64_t cols) {
    const int64_t n = rows * cols;
    // Compared as integers: |x| of floats has the same order as its bits, and NaN is the largest.
    uint32_t largest = std::bit_cast<uint32_t>(largest_);
    for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7FFF'FFFF);
    largest_ = std::bit_cast<float>(largest);
    rows_ += rows;
    values_ += n;
    if (rule_.kind == RangeRule::Kind::max) return;
    if (counts_.empty()) counts_.assign(buckets, 0);
    for (int64_t i = 0; i < n; ++i) ++counts_[bucket_of(x[i])];
}

void Range::add_counts(int64_t rows, int64_t values, float largest, std::span<const uint64_t> counts) {
    largest_ = std::bit_cast<float>(
        std::max(std::bit_cast<uint32_t>(largest_), std::bit_cast<uint32_t>(largest) & 0x7FFF'FFFF));
    rows_ += rows;
    values_ += values;
    if (rule_.kind == RangeRule::Kind::max) return;
    if (counts_.empty()) counts_.assign(buckets, 0);
    for (size_t b = 0; b < std::min(buckets, counts.size()); ++b) counts_[b] += static_cast<int64_t>(counts[b]);
}

float Range::amax() const {
    if (values_ == 0 || !std::isfinite(largest_)) return largest_;
    switch (rule_.kind) {
        case RangeRule::Kind::percentile:
            return percentile_amax();
        case RangeRule::Kind::mse:
            return mse_amax();
        default:
            return largest_;
    }
}

float Range::percentile_amax() const {
    const double wanted = rule_.percentile / 100 * static_cast<double>(values_);
    int64_t below = 0;
    for (size_t b = 0; b + 1 < buckets; ++b) {
        below += counts_[b];
        if (static_cast<double>(below) < wanted) continue;
        return b == 0 ? largest_ : std::min(largest_, lower_edge(b + 1));  // if most values are zeros, the largest
                                                                           // value is used
    }
    return largest_;
}

float Range::mse_amax() const {
    double least = -1;
    float best = largest_;
    for (int step = 64; step >= 1; --step) {
        const float amax = largest_ * static_cast<float>(step) / 64, scale = amax / e4m3_max;
        double loss = 0;
        for (size_t b = 1; b < buckets; ++b) {
            if (counts_[b] == 0) continue;
            const float x = std::min(middle(b), largest_);
            const double error = x - e4m3_to_float(e4m3_from_float_saturating(x / scale)) * scale;
            loss += static_cast<double>(counts_[b]) * error * error;
        }
        if (least < 0 || loss < least) least = loss, best = amax;
    }
    return best;
}

}  // namespace nibble
