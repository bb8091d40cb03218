// The algorithm, with its parameters, that computes the codes of a weight from statistics of activations: the contents
// of a recipe's `algorithm` block, as part of a plan.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nibble {

struct GptqOptions {
    float damping = 0.01f;  // perc_damp: as a multiple of the mean of H's diagonal
    int32_t group = 128;    // block_size: columns whose errors are compensated at once
    bool operator==(const GptqOptions&) const = default;
};

struct NibbleBestOptions {
    float damping = 0.03f;     // damping of H, as a multiple of its mean diagonal
    float row_damping = 0.3f;  // damping of G
    float mix = 1.0f;  // uniform share of H, as a multiple of the mean token weight; without gradients H is the uniform
                       // part alone
    bool token_weights = true;  // H weights tokens by the squared gradient at the linear's output
    bool order_blocks = true;   // process blocks in order of importance
    // Sweeps of coordinate descent over the codes of 16 rows at a time. They reduce the error that the solver sees by 4
    // to 6 %. With 8,192 calibration tokens or more, SmolLM2's KL divergence did not improve: mean 0.046 with 3 sweeps,
    // 0.041 without; median 0.0271 and 0.0275.
    int32_t sweeps = 0;
    bool row_feedback = true;  // later rows compensate the errors of a row, through G
    bool operator==(const NibbleBestOptions&) const = default;
};

struct WeightSolver {
    enum class Kind : uint8_t { none, local_hessian, gptq, nibble_best } kind = Kind::none;
    GptqOptions gptq;
    NibbleBestOptions best;
    bool operator==(const WeightSolver&) const = default;
    explicit operator bool() const { return kind != Kind::none; }
};

// Cases in which a solver had no usable data.
struct SolveGaps {
    int64_t blind_blocks = 0;  // local_hessian: blocks whose candidates have equal losses although their weights are
                               // not 0
    bool no_feedback = false;  // gptq, nibble_best: H is not positive definite after damping; errors are not
                               // compensated
    bool too_small = false;  // nibble_best: the tensor scale has no finite reciprocal in FP32; rounded with the scales
                             // of maxima
    bool operator==(const SolveGaps&) const = default;
};

std::string_view solver_name(WeightSolver::Kind kind);  // returns the name used in recipes; "none" for Kind::none
// Returns "", "local_hessian", "gptq damping 0.01, block 128", ...
std::string to_string(const WeightSolver& solver);

// The statistics that a solver needs, per linear.
struct StatisticsNeeds {
    bool local = false;      // LocalGram of the inputs
    bool inputs = false;     // Gram of the inputs
    bool gradients = false;  // gradient of a sampled label's log-likelihood at the output: token weights of `inputs`
    bool outputs = false;    // Gram of those gradients
    bool any() const { return local || inputs; }
};
StatisticsNeeds needed_statistics(const WeightSolver& solver);

}  // namespace nibble
