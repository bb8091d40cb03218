// The range of values at one place of a model, and the maximum from which its scale is made.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace nibble {

struct RangeRule {
    enum class Kind : uint8_t {
        max,         // the largest |x|, as in Model Optimizer
        percentile,  // the |x| that `percentile` % of the values do not exceed
        mse,         // among 64 fractions of the maximum, the one whose FP8 grid has the least squared error
    } kind = Kind::max;
    double percentile = 99.99;
};

// Holds only counts and maxima, so the result does not depend on the order of the values.
class Range {
public:
    explicit Range(RangeRule rule = {}) : rule_(rule) {}

    // Returns a range with a known amax().
    static Range known(int64_t rows, float amax) {
        Range range;
        range.rows_ = rows, range.values_ = rows, range.largest_ = amax;
        return range;
    }

    void add(const float* x, int64_t rows, int64_t cols);
    // Adds counts of `values` BF16 numbers in `rows` rows, made on a GPU: the largest |x|, and [2^15] counts per code
    // without sign (empty for Kind::max).
    void add_counts(int64_t rows, int64_t values, float largest, std::span<const uint64_t> counts);
    int64_t rows() const { return rows_; }
    float largest() const { return largest_; }  // 0 before the first row; NaN if there was a NaN
    // Returns the maximum by the rule, at most largest(). Counts are kept per BF16 prefix of |x|, so a percentile is
    // within 1/128 of the exact one.
    float amax() const;

private:
    float percentile_amax() const;
    float mse_amax() const;

    RangeRule rule_;
    int64_t rows_ = 0, values_ = 0;
    float largest_ = 0;
    std::vector<int64_t> counts_;  // counts by the upper 15 bits of |x| (without the sign); empty for Kind::max
};

}  // namespace nibble
