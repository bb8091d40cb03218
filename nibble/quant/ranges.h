// The range of what flows through a place of a model, and the maximum its scale is made of.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace nibble {

struct RangeRule {
    enum class Kind : uint8_t {
        max,         // the largest |x| seen, as Model Optimizer
        percentile,  // the |x| that `percentile` % of the values do not exceed
        mse,         // of 64 fractions of the maximum the one whose FP8 grid has the least squared error
    } kind = Kind::max;
    double percentile = 99.99;
};

// Counts and maxima only, so the order in which values come never shows.
class Range {
public:
    explicit Range(RangeRule rule = {}) : rule_(rule) {}

    // One whose amax() is known.
    static Range known(int64_t rows, float amax) {
        Range range;
        range.rows_ = rows, range.values_ = rows, range.largest_ = amax;
        return range;
    }

    void add(const float* x, int64_t rows, int64_t cols);
    // What was counted elsewhere (on a GPU) of `values` numbers in `rows` rows that are BF16: the largest |x|, and how
    // many had each code without its sign [2^15]; counts are empty for Kind::max.
    void add_counts(int64_t rows, int64_t values, float largest, std::span<const uint64_t> counts);
    int64_t rows() const { return rows_; }
    float largest() const { return largest_; }  // 0 before the first row; NaN once a NaN came
    // By the rule; never above largest(). Buckets are the BF16 prefixes of |x|: within 1/128 of the exact percentile.
    float amax() const;

private:
    float percentile_amax() const;
    float mse_amax() const;

    RangeRule rule_;
    int64_t rows_ = 0, values_ = 0;
    float largest_ = 0;
    std::vector<int64_t> counts_;  // by the upper 15 bits of |x| below its sign; empty for Kind::max
};

}  // namespace nibble
