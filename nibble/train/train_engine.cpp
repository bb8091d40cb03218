#include "train/train_engine.h"

namespace nibble {

Result<double> TrainEngine::evaluate(std::span<const TrainBatch> batches) {
    double sum = 0, weight = 0;
    std::vector<float> values;
    for (const TrainBatch& b : batches) {
        values.resize(static_cast<size_t>(b.size()));
        NIBBLE_CHECK(log_probs(b, values));
        for (size_t i = 0; i < values.size(); ++i) {
            if (b.labels[i] < 0) continue;
            const double w = b.weights.empty() ? 1.0 : double{b.weights[i]};
            sum -= w * double{values[i]};
            weight += w;
        }
    }
    if (!(weight > 0)) return fail("no label has a weight above 0");
    return sum / weight;
}

}  // namespace nibble
