#include "train/norm_history.h"

#include <algorithm>
#include <utility>

namespace nibble {

bool NormHistory::add(double norm) {
    if (!(factor_ > 0)) return false;
    bool outlier = false;
    if (std::ssize(norms_) == window_) {
        std::vector<double> sorted = norms_;
        std::ranges::sort(sorted);
        const size_t half = sorted.size() / 2;
        const double median = sorted.size() % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
        outlier = norm > factor_ * median;
        norms_.erase(norms_.begin());
    }
    norms_.push_back(norm);
    return outlier;
}

bool NormHistory::set_norms(std::vector<double> norms) {
    if (std::ssize(norms) > (factor_ > 0 ? window_ : 0)) return false;
    norms_ = std::move(norms);
    return true;
}

Error outlier_error(int64_t step, double norm) {
    return fail("step {}: gradient norm {} is an outlier and optimizer.outliers is stop; nothing was changed", step,
                norm);
}

}  // namespace nibble
