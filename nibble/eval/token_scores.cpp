#include "eval/token_scores.h"

#include "base/fields.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

constexpr int median_resamples = 200;
constexpr uint64_t median_seed = 0x6b6c;

Estimate exponential(Estimate mean_nll) {
    const double value = std::exp(mean_nll.value);
    return {value, value * mean_nll.error};
}

Comparison compare(const TokenScores& s, Estimate perplexity) {
    Comparison c;
    c.reference_perplexity = exponential(mean(s.reference_nll));
    c.kl = mean(s.kl);
    std::vector<double> sorted = s.kl;
    std::ranges::sort(sorted);
    for (const double q : kl_quantiles) c.quantiles.push_back({q, quantile(sorted, q)});
    c.kl_max = sorted.back();
    const auto median = [](std::span<double> v) {
        const auto middle = v.begin() + ptrdiff_t(v.size() / 2);
        std::ranges::nth_element(v, middle);
        return *middle;
    };
    c.kl_median_interval = bootstrap(sorted, median, median_resamples, median_seed);
    c.same_top = share(s.same_top);

    std::vector<double> difference, squared;
    for (size_t i = 0; i < s.nll.size(); ++i) {
        difference.push_back(s.nll[i] - s.reference_nll[i]);
        const double p = std::exp(-s.nll[i]) - std::exp(-s.reference_nll[i]);
        squared.push_back(p * p);
    }
    c.log_ratio = mean(difference);
    const double a = perplexity.value, b = c.reference_perplexity.value;
    const double variance = perplexity.error * perplexity.error +
                            c.reference_perplexity.error * c.reference_perplexity.error -
                            2 * a * b * covariance_of_means(s.nll, s.reference_nll);
    c.perplexity_delta = {a - b, std::sqrt(std::max(0.0, variance))};
    const Estimate square = mean(squared);
    const double rms = std::sqrt(square.value);
    c.probability_rms = {rms, rms > 0 ? square.error / (2 * rms) : 0};
    return c;
}

}  // namespace

double kl_divergence(std::span<const float> log_p, std::span<const float> log_q) {
    double sum = 0;
    for (size_t i = 0; i < log_p.size(); ++i)
        if (const double p = std::exp(double(log_p[i])); p > 0) sum += p * (double(log_p[i]) - double(log_q[i]));
    return sum;
}

size_t likeliest(std::span<const float> row) {
    return static_cast<size_t>(std::ranges::max_element(row) - row.begin());
}

void TokenScores::add(std::span<const float> model, size_t target) { nll.push_back(-double(model[target])); }

void TokenScores::add(std::span<const float> model, std::span<const float> reference, size_t target) {
    add(model, target);
    reference_nll.push_back(-double(reference[target]));
    kl.push_back(kl_divergence(reference, model));
    same_top.push_back(likeliest(model) == likeliest(reference) ? 1 : 0);
}

void TokenScores::append(const TokenScores& o) {
    const auto join = [](std::vector<double>& to, const std::vector<double>& from) {
        to.insert(to.end(), from.begin(), from.end());
    };
    join(nll, o.nll);
    join(reference_nll, o.reference_nll);
    join(kl, o.kl);
    join(same_top, o.same_top);
}

Json to_json(const TokenScores& s) {
    Json json{{"nll", s.nll}};
    if (s.compared()) json.update({{"reference_nll", s.reference_nll}, {"kl", s.kl}, {"same_top", s.same_top}});
    return json;
}

Result<TokenScores> token_scores_from_json(const Json& json) {
    TokenScores s;
    Fields fields(json);
    NIBBLE_CHECK(fields.need("nll", s.nll));
    if (!json.contains("kl")) return s;
    NIBBLE_CHECK(fields.need("reference_nll", s.reference_nll));
    NIBBLE_CHECK(fields.need("kl", s.kl));
    NIBBLE_CHECK(fields.need("same_top", s.same_top));
    if (s.kl.size() != s.nll.size() || s.reference_nll.size() != s.nll.size() || s.same_top.size() != s.nll.size())
        return fail("lists of different lengths");
    return s;
}

double Comparison::at(double q) const {
    for (const Quantile& quantile : quantiles)
        if (quantile.q == q) return quantile.value;
    return NAN;
}

TextScore summarize_scores(const TokenScores& s) {
    TextScore score;
    score.tokens = static_cast<int64_t>(s.nll.size());
    score.perplexity = exponential(mean(s.nll));
    if (s.compared()) score.comparison = compare(s, score.perplexity);
    return score;
}

}  // namespace nibble
