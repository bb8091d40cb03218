// What one token of a text says about a model, and about a model beside its reference; and what many tokens say
// together: perplexity and Kullback-Leibler divergence with their uncertainty. Logarithms are natural.
#pragma once

#include "base/json.h"
#include "eval/statistics.h"

#include <optional>
#include <span>
#include <vector>

namespace nibble {

// KL(p || q) = sum p_i (log p_i - log q_i), ids rising, in double. Both rows are log-probabilities.
double kl_divergence(std::span<const float> log_p, std::span<const float> log_q);

// Index of the largest value, of equal ones the first.
size_t likeliest(std::span<const float> row);

// One entry per counted token, in the order of the text. The vectors of the reference are empty without one.
struct TokenScores {
    std::vector<double> nll;            // -log probability of the token that came
    std::vector<double> reference_nll;  // the same of the reference
    std::vector<double> kl;             // KL(reference || model) over the vocabulary
    std::vector<double> same_top;       // 1: both find the same token likeliest

    // Row `log_p` of the model (and of the reference) and the token that came.
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
    std::vector<Quantile> quantiles;  // of KL: see kl_quantiles
    double kl_max = 0;
    Estimate same_top;
    Estimate log_ratio;         // ln(perplexity / reference perplexity), paired
    Estimate perplexity_delta;  // perplexity - reference perplexity, paired
    Estimate probability_rms;   // root mean square of p(token) - p_reference(token)

    double at(double q) const;  // one of kl_quantiles
};
inline constexpr double kl_quantiles[] = {0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999};

struct TextScore {
    int64_t tokens = 0;
    Estimate perplexity;  // exp(mean nll) +- its error to first order, as llama-perplexity prints it
    std::optional<Comparison> comparison;
};
// Not for no tokens.
TextScore summarize_scores(const TokenScores& scores);

}  // namespace nibble
