// Makes routers whose choices rounding cannot change.
#pragma once

#include "model/parameters.h"

#include <algorithm>
#include <random>
#include <vector>

namespace nibble::test {

// Each token ranks the experts in a fixed order with steps larger than any rounding difference from the CPU. Otherwise
// a flipped choice would look like a wrong gradient. The router reads the first columns of the stream, one per expert.
// Of the biases that affect the choice, one always selects an expert and one never does.
inline void prefer_experts(Parameters& parameters) {
    std::mt19937 random(12);
    int64_t experts = 0, hidden = 0;
    for (size_t id = 0; id < parameters.count(); ++id) {
        const CheckpointTensor& t = parameters.tensors()[id];
        if (!t.name.ends_with(".gate.weight")) continue;
        experts = t.rows(), hidden = t.cols();
        const std::span<float> w = parameters.master(id);
        std::ranges::fill(w, 0.0f);
        for (int64_t e = 0; e < experts; ++e) w[static_cast<size_t>(e * hidden + e)] = 0.25f;
    }
    for (size_t id = 0; experts > 0 && id < parameters.count(); ++id) {
        const CheckpointTensor& t = parameters.tensors()[id];
        const std::span<float> w = parameters.master(id);
        if (t.name.ends_with(".e_score_correction_bias")) {
            std::ranges::fill(w, 0.0f);
            w[5] = 2.0f, w[6] = -2.0f;
        }
        if (t.name.ends_with("norm.weight") && std::ssize(w) == hidden) std::fill_n(w.begin(), experts, 1.0f);
        if (!t.name.ends_with("embed_tokens.weight") && !t.name.ends_with("embeddings.weight")) continue;
        std::vector<float> steps;
        for (int64_t e = 0; e < experts; ++e) steps.push_back(0.5f * static_cast<float>(2 * e - experts + 1));
        for (int64_t row = 0; row < t.rows(); ++row) {
            std::ranges::shuffle(steps, random);
            std::ranges::copy(steps, w.begin() + row * hidden);
        }
    }
}

}  // namespace nibble::test
