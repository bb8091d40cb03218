// The clipped policy-gradient loss of GRPO and its variants, with its gradient, as defined in NeMo RL
// (nemo_rl/algorithms/loss/loss_functions.py, ClippedPGLossFn, read in August 2026). Log-probabilities of one generated
// token:
//     g  at generation                                   p  by the trainer before the first update of the step
//     c  under the weights that are being updated        f  under the frozen reference
// All four are FP32 and include the temperature. If one engine serves both sides, p equals g bit for bit.
#pragma once

#include "base/error.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace nibble {

enum class KlEstimator : uint8_t { k1, k2, k3 };  // with x = f - c: -x, x^2 / 2, e^x - 1 - x
enum class ImportanceTruncation : uint8_t {
    none,
    tis,           // w := clamp(w, low or 0, high)
    icepop,        // w := 0 outside [low, high]
    seq_mask_tis,  // an answer counts only if exp(mean of p - g) lies in [low, high]
};
inline constexpr std::array<std::string_view, 3> kl_estimator_names{"k1", "k2", "k3"};
inline constexpr std::array<std::string_view, 4> importance_truncation_names{"none", "tis", "icepop", "seq-mask-tis"};

struct PolicyLossOptions {
    double ratio_clip_min = 0.2, ratio_clip_max = 0.2;
    std::optional<double> ratio_clip_c;  // dual clip for negative advantages, > 1
    double kl_penalty = 0.01;            // beta; 0 needs no reference
    KlEstimator kl_type = KlEstimator::k3;
    // subtracts the KL term from the advantages (token_advantages()) instead of adding it to the loss
    bool kl_in_reward = false;
    bool token_level_loss = true;                   // mean over tokens; false: mean over answers of their means
    bool force_on_policy_ratio = false;             // the ratio is 1 with the gradient of c, and p := c
    bool disable_ppo_ratio = false;                 // the loss is -A c (REINFORCE, RLOO)
    bool sequence_level_importance_ratios = false;  // GSPO: one ratio per answer; requires token_level_loss = false
    bool use_cispo = false;                         // the loss is -A stop(clip(ratio)) c
    bool use_on_policy_kl_approximation = false;    // weighs the KL term by exp(c - g)
    bool importance_sampling_correction = false;    // weighs the loss by w = exp(p - g), without its gradient
    ImportanceTruncation truncation = ImportanceTruncation::none;
    std::optional<double> importance_high, importance_low;
};
// Returns an error that names the options of a meaningless combination.
Status check(const PolicyLossOptions& options);

// The generated tokens of one answer, including masked ones (tool output, prompts of later turns: mask 0).
struct AnswerTokens {
    std::span<const float> generated, previous, current, reference;  // g, p, c, f; f is empty if kl_penalty is 0
    std::span<const uint8_t> mask;                                   // 1: written by the model and part of the loss
    std::span<const uint8_t> stale;  // 1: g comes from older weights than p; empty: no token is stale
    double advantage = 0;
    std::span<const double> advantages;  // advantage of each token; empty: all tokens have `advantage`
    // 0 excludes the answer from the loss and its metrics (overlong filtering). Its tokens are compared all the same.
    double weight = 1;
};

// Returns the KL estimate of one token, clamp(k(clamp(f - p, -20, 20)), -10, 10) (NeMo RL's calculate_kl()).
// `kl_in_reward` subtracts beta times the estimate from the token's advantage. It has no gradient.
double kl_estimate(double p, double f, KlEstimator kind);

// Counts over the train global batch of all ranks. So the split into micro-batches and ranks does not change the
// gradient.
struct BatchCounts {
    int64_t tokens = 0, answers = 0;  // without masked ones
};

// NeMo RL's training metrics, under its names: sums over the tokens of the loss. Divide by BatchCounts::tokens unless
// stated otherwise.
struct PolicyMetrics {
    double loss = 0;
    double kl_penalty = 0;                 // the KL term divided by beta; this and `loss` are already normalized
    double token_mult_prob_error = 0;      // exp(|g - p|)
    double gen_kl_error = 0;               // k3(p - g)
    double policy_kl_error = 0;            // k3(g - p)
    double js_divergence_error = 0;        // M = (e^p + e^g) / 2; half of k3(p - log M) + k3(g - log M)
    double sampling_importance_ratio = 0;  // exp(p - g), not truncated
    double approx_entropy = 0;             // -exp(c - g) c
    double probs_ratio = 0, probs_ratio_clamped = 0;  // exp(c - p), also with disable_ppo_ratio
    double probs_ratio_min = 1e300, probs_ratio_max = -1e300;
    double outside_truncation = 0;   // tokens whose weight was changed by the truncation
    int64_t out_of_bounds = 0;       // tokens (seq-mask-tis: answers) outside the truncation's bounds, out of `bounded`
    int64_t bounded = 0;             // 0: no truncation
    double seq_mult_prob_error = 0;  // sum over answers of the mean of exp(|g - p|); divide by `answers`
    double seq_mult_prob_error_min = 1e300, seq_mult_prob_error_max = -1e300;
    int64_t filtered_tokens = 0;  // p or c is -inf; excluded from the loss and from all sums but the comparisons below
    int64_t tokens = 0, answers = 0;  // in the loss (num_valid_samples)
    // Comparisons cover all generated tokens that training computed, whatever the weight of their answers.
    int64_t compared_tokens = 0;    // tokens that are not stale
    int64_t mismatch_tokens = 0;    // compared tokens for which the bits of g and p differ
    double max_abs_diff = 0;        // largest |g - p| of the compared tokens, where p is not -inf
    int64_t off_policy_tokens = 0;  // stale tokens

    void add(const PolicyMetrics& other);
};

// Returns the mean of exp(|g - p|) over the answer's unmasked tokens with p > -inf, or nothing if there is no such
// token. grpo.seq_logprob_error_threshold is compared with it.
std::optional<double> seq_mult_prob_error(const AnswerTokens& answer);

// Adds the answer's share of the loss to `metrics` and writes its gradient by c to `gradient` [tokens] (0 where
// masked). `counts` cover the whole batch. A token that the trainer's top-p or top-k excludes (p or c is -inf) counts
// as masked. Errors: sizes differ; another log-probability of an unmasked token is not finite (names the token).
Status policy_loss(const AnswerTokens& answer, const PolicyLossOptions& options, const BatchCounts& counts,
                   std::span<double> gradient, PolicyMetrics& metrics);

}  // namespace nibble
