// The gradient norms of the last steps, against which the next one is an outlier.
#pragma once

#include "base/error.h"

#include <cstdint>
#include <vector>

namespace nibble {

class NormHistory {
public:
    // `factor` 0: nothing is one, and nothing is kept.
    NormHistory(double factor, int64_t window) : factor_(factor), window_(window) {}

    // Whether the norm is above `factor` times the median of the last `window` ones; false until there are so many. The
    // norm then is part of them, an outlier too: after a lasting change half a window of steps is left out, not all.
    bool add(double norm);

    // Oldest first.
    const std::vector<double>& norms() const { return norms_; }
    // Of a checkpoint; false: more than the window has.
    bool set_norms(std::vector<double> norms);

private:
    double factor_;
    int64_t window_;
    std::vector<double> norms_;
};

// Of a run that stops there (TrainOptimizer::stop_at_outlier).
Error outlier_error(int64_t step, double norm);

}  // namespace nibble
