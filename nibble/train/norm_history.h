// Detects outliers among gradient norms by comparison with the norms of recent steps.
#pragma once

#include "base/error.h"

#include <cstdint>
#include <vector>

namespace nibble {

class NormHistory {
public:
    // `factor` 0 disables the detection; no norms are kept then.
    NormHistory(double factor, int64_t window) : factor_(factor), window_(window) {}

    // Returns true if the norm exceeds `factor` times the median of the last `window` norms, and false while there are
    // fewer. Then adds the norm to the history, even if it is an outlier. So after a lasting change only half a window
    // of steps is skipped.
    bool add(double norm);

    // Oldest first.
    const std::vector<double>& norms() const { return norms_; }
    // Restores the norms of a checkpoint. Returns false if there are more than the window holds.
    bool set_norms(std::vector<double> norms);

private:
    double factor_;
    int64_t window_;
    std::vector<double> norms_;
};

// Returns the error of a run that stops at an outlier (TrainOptimizer::stop_at_outlier).
Error outlier_error(int64_t step, double norm);

}  // namespace nibble
