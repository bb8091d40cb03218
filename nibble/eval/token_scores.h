// Scores of tokens under a model, and under a model compared with a reference; their summary: perplexity and
// Kullback-Leibler divergence with uncertainties. Logarithms are natural.
#pragma once

#include "base/json.h"
#include "eval/statistics.h"

#include <optional>
#include <span>
#include <vector>

namespace nibble {

// KL(p || q) = sum p_i (log p_i - log q_i), summed by rising id in double. Both rows hold log-probabilities.
double kl_divergence(std::span<const float> log_p, std::span<const float> log_q);

// Returns the index of the largest value; the first of equal ones.
size_t likeliest(std::span<const float> row);

// One entry per counted token, in text order. The vectors for the reference are empty without one.
struct TokenScores {
    std::vector<double> nll;            // -log probability of the actual token
    std::vector<double> reference_nll;  // likewise under the reference
    std::vector<double> kl;             // KL(reference || model) over the vocabulary
    std::vector<double> same_top;       // 1: both models have the same likeliest token

    // Adds a token: log-probability rows of the model (and the reference), and the actual token.
    void add(std::span<const float> model, size_t target);
    void add(std::span<const float> model, std::span<const float> reference, size_t target);
    void append(const TokenScores& other);
    bool compared() const { return !kl.empty(); }
};
Json to_json(const TokenScores& scores);
Result<TokenScores> token_scores_from_json(const Json& json);

struct Quantile {
    double q = 0, value = 0;
};

struct Comparison {
    Estimate reference_perplexity;
    Estimate kl;                      // mean
    Interval kl_median_interval;      // 95 %, bootstrap
    std::vector<Quantile> quantiles;  // quantiles of KL, at kl_quantiles
    double kl_max = 0;
    Estimate same_top;
    Estimate log_ratio;         // ln(perplexity / reference perplexity), paired
    Estimate perplexity_delta;  // perplexity - reference perplexity, paired
    Estimate probability_rms;   // root mean square of p(token) - p_reference(token)

    double at(double q) const;  // `q` is one of kl_quantiles
};
inline constexpr double kl_quantiles[] = {0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999};

struct TextScore {
    int64_t tokens = 0;
    Estimate perplexity;  // exp(mean nll) +- its first-order error, like llama-perplexity
    std::optional<Comparison> comparison;
};
// Precondition: at least one token.
TextScore summarize_scores(const TokenScores& scores);

}  // namespace nibble
