#include "rl/policy_loss.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace nibble {
namespace {

constexpr double tiny = 1e-8;  // NeMo RL adds it to every count that it divides by

double finite_or_zero(double x) { return std::isfinite(x) ? x : 0; }
double k3(double x) { return std::exp(x) - 1 - x; }

struct ValueSlope {
    double value = 0, slope = 0;  // slope: derivative by c
};

// Returns the surrogate loss of one token. For GSPO the slope is the derivative by the mean of c over the answer's
// tokens.
ValueSlope surrogate(double ratio, double c, double advantage, const PolicyLossOptions& o) {
    if (o.disable_ppo_ratio) return {-advantage * c, -advantage};
    const double clipped = std::clamp(ratio, 1 - o.ratio_clip_min, 1 + o.ratio_clip_max);
    if (o.use_cispo) return {-advantage * clipped * c, -advantage * clipped};
    ValueSlope loss{-advantage * ratio, -advantage * ratio};
    if (-advantage * clipped > loss.value) loss = {-advantage * clipped, 0};
    if (o.ratio_clip_c && advantage < 0 && loss.value > -advantage * *o.ratio_clip_c)
        loss = {-advantage * *o.ratio_clip_c, 0};
    return loss;
}

ValueSlope kl_of(double x, KlEstimator kind) {  // slope: derivative by x
    switch (kind) {
        case KlEstimator::k1:
            return {-x, -1};
        case KlEstimator::k2:
            return {x * x / 2, x};
        case KlEstimator::k3:
            break;
    }
    return {k3(x), std::exp(x) - 1};
}

double loss_kl_penalty(const PolicyLossOptions& o) { return o.kl_in_reward ? 0 : o.kl_penalty; }

// Returns beta clamp(u k(clamp(f - c, -20, 20)), -10, 10). u is 1 with the slope of exp(c - stop(c)), the
// score-function term; where f - c is clamped, the slope of u is 0. With the on-policy approximation u is exp(c - g).
ValueSlope kl_term(double c, double f, double g, const PolicyLossOptions& o) {
    const double difference = f - c, x = std::clamp(difference, -20.0, 20.0);
    const bool free = x == difference;
    const double u = o.use_on_policy_kl_approximation ? finite_or_zero(std::exp(c - g)) : 1;
    const auto [k, by_x] = kl_of(x, o.kl_type);
    const double value = u * k;
    if (value < -10 || value > 10) return {o.kl_penalty * std::clamp(value, -10.0, 10.0), 0};
    return {o.kl_penalty * value, free ? o.kl_penalty * u * (k - by_x) : 0};
}

// Sums over the tokens of one answer.
struct AnswerMeans {
    double tokens = 0;      // unmasked
    double ratio = 0;       // mean of c - p
    double weight_sum = 0;  // sum of p - g
};

// Returns true if the trainer's top-k or top-p excludes the token.
bool filtered_out(const AnswerTokens& a, size_t t) { return a.current[t] == -INFINITY || a.previous[t] == -INFINITY; }

AnswerMeans answer_means(const AnswerTokens& a) {
    AnswerMeans m;
    for (size_t t = 0; t < a.mask.size(); ++t)
        if (a.mask[t] && !filtered_out(a, t))
            ++m.tokens, m.ratio += double{a.current[t]} - a.previous[t],
                m.weight_sum += double{a.previous[t]} - a.generated[t];
    if (m.tokens > 0) m.ratio /= m.tokens;
    return m;
}

struct Weight {
    double value = 1;
    bool changed = false;  // true if the truncation changed `value`
};

Weight importance_weight(double p, double g, const AnswerMeans& means, const PolicyLossOptions& o) {
    if (!o.importance_sampling_correction) return {};
    const double raw = finite_or_zero(std::exp(o.sequence_level_importance_ratios ? means.weight_sum : p - g));
    const double low = o.importance_low.value_or(0), high = o.importance_high.value_or(HUGE_VAL);
    switch (o.truncation) {
        case ImportanceTruncation::none:
            return {raw};
        case ImportanceTruncation::tis:
            return {std::clamp(raw, low, high), raw < low || raw > high};
        case ImportanceTruncation::icepop:
            return raw < low || raw > high ? Weight{0, true} : Weight{raw};
        case ImportanceTruncation::seq_mask_tis: {
            const double mean = std::exp(means.weight_sum / means.tokens);
            return mean >= low && mean <= high ? Weight{raw} : Weight{0, true};
        }
    }
    return {raw};
}

// Compares g and p of every token of the answer, bit for bit.
void compare(const AnswerTokens& a, bool on_policy, PolicyMetrics& m) {
    for (size_t t = 0; t < a.mask.size(); ++t) {
        if (!a.mask[t]) continue;
        if (!a.stale.empty() && a.stale[t]) {
            ++m.off_policy_tokens;
            continue;
        }
        const float p = on_policy ? a.current[t] : a.previous[t], g = a.generated[t];
        ++m.compared_tokens;
        m.mismatch_tokens += std::bit_cast<uint32_t>(p) != std::bit_cast<uint32_t>(g);
        if (p != -INFINITY) m.max_abs_diff = std::max(m.max_abs_diff, std::fabs(double{p} - g));
    }
}

void note_difference(float p, float g, PolicyMetrics& m) {
    const double d = double{p} - g;
    m.token_mult_prob_error += std::exp(std::fabs(d));
    m.gen_kl_error += k3(d);
    m.policy_kl_error += k3(-d);
    // log((e^p + e^g) / 2) without overflow: the larger exponent is factored out.
    const double most = std::max(p, g), middle = most + std::log((1 + std::exp(-std::fabs(d))) / 2);
    m.js_divergence_error += (k3(p - middle) + k3(g - middle)) / 2;
    m.sampling_importance_ratio += std::exp(d);
}

Status check_tokens(const AnswerTokens& a, bool wants_reference, size_t gradient) {
    const size_t n = a.mask.size();
    if (a.generated.size() != n || a.previous.size() != n || a.current.size() != n || gradient != n ||
        (wants_reference && a.reference.size() != n) || (!a.advantages.empty() && a.advantages.size() != n) ||
        (!a.stale.empty() && a.stale.size() != n))
        return fail("policy loss: {} tokens have {}, {}, {} and {} log-probabilities and {} gradients", n,
                    a.generated.size(), a.previous.size(), a.current.size(), a.reference.size(), gradient);
    for (size_t t = 0; t < n; ++t)
        if (a.mask[t] && !(std::isfinite(a.generated[t]) && (std::isfinite(a.previous[t]) || filtered_out(a, t)) &&
                           (std::isfinite(a.current[t]) || filtered_out(a, t)) &&
                           (!wants_reference || std::isfinite(a.reference[t]))))
            return fail("policy loss: token {} has a log-probability that is not finite ({}, {}, {})", t,
                        a.generated[t], a.previous[t], a.current[t]);
    return Ok{};
}

}  // namespace

double kl_estimate(double p, double f, KlEstimator kind) {
    return std::clamp(kl_of(std::clamp(f - p, -20.0, 20.0), kind).value, -10.0, 10.0);
}

Status check(const PolicyLossOptions& o) {
    if (o.ratio_clip_min < 0 || o.ratio_clip_max < 0)
        return fail("ratio_clip_min and ratio_clip_max must be at least 0");
    if (o.ratio_clip_c && *o.ratio_clip_c <= 1) return fail("ratio_clip_c {}: must be above 1", *o.ratio_clip_c);
    if (o.kl_penalty < 0) return fail("kl_penalty {}: must be at least 0", o.kl_penalty);
    if (o.sequence_level_importance_ratios && o.token_level_loss)
        return fail("sequence_level_importance_ratios needs token_level_loss: false");
    if (o.use_cispo && (!o.token_level_loss || o.ratio_clip_c || o.disable_ppo_ratio))
        return fail("use_cispo needs token_level_loss: true, no ratio_clip_c and no disable_ppo_ratio");
    if (o.disable_ppo_ratio && o.ratio_clip_c) return fail("disable_ppo_ratio and ratio_clip_c exclude each other");
    if (o.disable_ppo_ratio && o.force_on_policy_ratio)
        return fail("disable_ppo_ratio and force_on_policy_ratio exclude each other");
    if (o.truncation != ImportanceTruncation::none && !o.importance_high)
        return fail("truncated_importance_sampling_type needs truncated_importance_sampling_ratio");
    if (o.truncation != ImportanceTruncation::none && !o.importance_sampling_correction)
        return fail("truncated_importance_sampling_type needs use_importance_sampling_correction: true");
    if ((o.truncation == ImportanceTruncation::icepop || o.truncation == ImportanceTruncation::seq_mask_tis) &&
        !o.importance_low)
        return fail("this truncated_importance_sampling_type needs truncated_importance_sampling_ratio_min");
    if (o.truncation == ImportanceTruncation::none && (o.importance_high || o.importance_low))
        return fail("truncated_importance_sampling_ratio and its _min need truncated_importance_sampling_type");
    if (o.importance_high && !(*o.importance_high > 0))
        return fail("truncated_importance_sampling_ratio {}: must be above 0", *o.importance_high);
    if (o.importance_high && o.importance_low && *o.importance_low > *o.importance_high)
        return fail("truncated_importance_sampling_ratio_min {} is above truncated_importance_sampling_ratio {}",
                    *o.importance_low, *o.importance_high);
    return Ok{};
}

void PolicyMetrics::add(const PolicyMetrics& o) {
    loss += o.loss, kl_penalty += o.kl_penalty, token_mult_prob_error += o.token_mult_prob_error;
    gen_kl_error += o.gen_kl_error, policy_kl_error += o.policy_kl_error;
    js_divergence_error += o.js_divergence_error, sampling_importance_ratio += o.sampling_importance_ratio;
    approx_entropy += o.approx_entropy, probs_ratio += o.probs_ratio, probs_ratio_clamped += o.probs_ratio_clamped;
    probs_ratio_min = std::min(probs_ratio_min, o.probs_ratio_min);
    probs_ratio_max = std::max(probs_ratio_max, o.probs_ratio_max);
    outside_truncation += o.outside_truncation, out_of_bounds += o.out_of_bounds, bounded += o.bounded;
    seq_mult_prob_error += o.seq_mult_prob_error;
    seq_mult_prob_error_min = std::min(seq_mult_prob_error_min, o.seq_mult_prob_error_min);
    seq_mult_prob_error_max = std::max(seq_mult_prob_error_max, o.seq_mult_prob_error_max);
    compared_tokens += o.compared_tokens, mismatch_tokens += o.mismatch_tokens;
    off_policy_tokens += o.off_policy_tokens, filtered_tokens += o.filtered_tokens;
    max_abs_diff = std::max(max_abs_diff, o.max_abs_diff);
    tokens += o.tokens, answers += o.answers;
}

std::optional<double> seq_mult_prob_error(const AnswerTokens& a) {
    double sum = 0, tokens = 0;
    for (size_t t = 0; t < a.mask.size(); ++t)
        if (a.mask[t] && a.previous[t] != -INFINITY)
            sum += std::exp(std::fabs(double{a.previous[t]} - a.generated[t])), ++tokens;
    return tokens > 0 ? std::optional(sum / tokens) : std::nullopt;
}

Status policy_loss(const AnswerTokens& a, const PolicyLossOptions& o, const BatchCounts& counts,
                   std::span<double> gradient, PolicyMetrics& metrics) {
    NIBBLE_CHECK(check_tokens(a, loss_kl_penalty(o) > 0, gradient.size()));
    std::ranges::fill(gradient, 0.0);
    compare(a, o.force_on_policy_ratio, metrics);
    const AnswerMeans means = answer_means(a);
    if (means.tokens == 0 || a.weight == 0) return Ok{};
    // Factor of each token's loss.
    const double share = o.token_level_loss
                             ? a.weight / (static_cast<double>(counts.tokens) + tiny)
                             : a.weight / (means.tokens + tiny) / (static_cast<double>(counts.answers) + tiny);
    double errors = 0;     // sum of exp(|g - p|)
    bool outside = false;  // true if the weight of at least one token is outside the bounds
    double whole = 0;      // GSPO: slope by the mean of c
    for (size_t t = 0; t < a.mask.size(); ++t) {
        if (!a.mask[t]) continue;
        if (filtered_out(a, t)) {
            ++metrics.filtered_tokens;
            continue;
        }
        const double c = a.current[t], g = a.generated[t];
        const float p = o.force_on_policy_ratio ? a.current[t] : a.previous[t];
        const double ratio =
            std::exp(o.sequence_level_importance_ratios && !o.force_on_policy_ratio ? means.ratio : c - p);
        const Weight w = importance_weight(p, g, means, o);
        const ValueSlope pg = surrogate(ratio, c, a.advantages.empty() ? a.advantage : a.advantages[t], o);
        metrics.loss += share * w.value * pg.value;
        if (o.sequence_level_importance_ratios)
            whole += share * w.value * pg.slope;
        else
            gradient[t] += share * w.value * pg.slope;
        if (loss_kl_penalty(o) > 0) {
            const ValueSlope kl = kl_term(c, a.reference[t], g, o);
            metrics.loss += share * kl.value, metrics.kl_penalty += share * kl.value / o.kl_penalty;
            gradient[t] += share * kl.slope;
        }
        note_difference(p, a.generated[t], metrics);
        errors += std::exp(std::fabs(double{p} - g));
        metrics.approx_entropy += -std::exp(c - g) * c;
        const double clamped = std::clamp(ratio, 1 - o.ratio_clip_min, 1 + o.ratio_clip_max);
        metrics.probs_ratio += ratio, metrics.probs_ratio_clamped += clamped;
        metrics.probs_ratio_min = std::min(metrics.probs_ratio_min, ratio);
        metrics.probs_ratio_max = std::max(metrics.probs_ratio_max, ratio);
        metrics.outside_truncation += w.changed, outside |= w.changed;
        if (o.truncation != ImportanceTruncation::none && o.truncation != ImportanceTruncation::seq_mask_tis)
            metrics.out_of_bounds += w.changed, ++metrics.bounded;
        ++metrics.tokens;
    }
    ++metrics.answers;
    if (o.truncation == ImportanceTruncation::seq_mask_tis) metrics.out_of_bounds += outside, ++metrics.bounded;
    const double error = errors / means.tokens;
    metrics.seq_mult_prob_error += error;
    metrics.seq_mult_prob_error_min = std::min(metrics.seq_mult_prob_error_min, error);
    metrics.seq_mult_prob_error_max = std::max(metrics.seq_mult_prob_error_max, error);
    if (o.sequence_level_importance_ratios)
        for (size_t t = 0; t < a.mask.size(); ++t)
            if (a.mask[t] && !filtered_out(a, t)) gradient[t] += whole / means.tokens;
    return Ok{};
}

}  // namespace nibble
