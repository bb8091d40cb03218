// Which algorithm makes the codes of a weight from statistics of activations, with its parameters: what a recipe's
// `algorithm` block says, as a value of the plan.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nibble {

struct GptqOptions {
    float damping = 0.01f;  // perc_damp: times the mean of H's diagonal
    int32_t group = 128;    // block_size: columns whose errors are answered at once
    bool operator==(const GptqOptions&) const = default;
};

struct NibbleBestOptions {
    float damping = 0.03f;      // of H, times its mean diagonal
    float row_damping = 0.3f;   // of G
    float mix = 1.0f;           // uniform share of H, times the mean token weight; uniform alone without gradients
    bool token_weights = true;  // H weighs tokens by the squared gradient at the linear's output
    bool order_blocks = true;   // by importance
    // Of coordinate descent over the codes of 16 rows at a time. Lowers the error it sees by 4 to 6 %, but from 8,192
    // calibration tokens SmolLM2's mean KL did not follow (0.046 with 3 sweeps, 0.041 without; median 0.0271, 0.0275).
    int32_t sweeps = 0;
    bool row_feedback = true;  // errors of a row are answered by the rows after it, through G
    bool operator==(const NibbleBestOptions&) const = default;
};

struct WeightSolver {
    enum class Kind : uint8_t { none, local_hessian, gptq, nibble_best } kind = Kind::none;
    GptqOptions gptq;
    NibbleBestOptions best;
    bool operator==(const WeightSolver&) const = default;
    explicit operator bool() const { return kind != Kind::none; }
};

// What a solver had nothing to go by for.
struct SolveGaps {
    int64_t blind_blocks = 0;  // local_hessian: blocks whose candidates all lose alike, though their weights are not 0
    bool no_feedback = false;  // gptq, nibble_best: H is not positive definite after damping; errors are not answered
    bool too_small = false;    // nibble_best: the tensor scale has no reciprocal in FP32; rounded by the maximum
    bool operator==(const SolveGaps&) const = default;
};

std::string_view solver_name(WeightSolver::Kind kind);  // as recipes spell it; "none"
// "", "local_hessian", "gptq damping 0.01, block 128", ...
std::string to_string(const WeightSolver& solver);

// What a solver looks at, per linear.
struct StatisticsNeeds {
    bool local = false;      // LocalGram of the inputs
    bool inputs = false;     // Gram of the inputs
    bool gradients = false;  // of a sampled label's log-likelihood at the output: token weights of `inputs`
    bool outputs = false;    // Gram of those gradients
    bool any() const { return local || inputs; }
};
StatisticsNeeds needed_statistics(const WeightSolver& solver);

}  // namespace nibble
