#include "train/train_engine.h"

namespace nibble {

Result<double> TrainEngine::evaluate(std::span<const TrainBatch> batches) {
    NIBBLE_TRY(const auto loss, evaluate(batches, nullptr));
    return *loss;
}

Result<std::optional<double>> TrainEngine::evaluate(std::span<const TrainBatch> batches,
                                                    const std::atomic<bool>* stop) {
    double sum = 0, weight = 0;
    std::vector<float> values;
    for (const TrainBatch& b : batches) {
        NIBBLE_TRY(const bool stops, any(stop && stop->load()));
        if (stops) return std::optional<double>();
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
    return std::optional(sum / weight);
}

}  // namespace nibble
