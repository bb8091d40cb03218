// Routers whose choices no rounding moves.
#pragma once

#include "model/parameters.h"

#include <algorithm>
#include <random>
#include <vector>

namespace nibble::test {

// Every token prefers the experts in an order of its own, by steps that no rounding between here and the CPU bridges:
// a choice that flips would show as a wrong gradient. The router reads the first columns of the stream, one an expert;
// what moves the choice takes one expert always and one never.
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
