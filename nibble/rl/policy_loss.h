// The clipped policy-gradient loss of GRPO and its variants, with its gradient, as NeMo RL defines it
// (nemo_rl/algorithms/loss/loss_functions.py, ClippedPGLossFn, read in August 2026). For one generated token:
//     g  log-probability when it was generated           p  the trainer's before the first update of the step
//     c  under the weights that are being updated        f  under the frozen reference
// All four are FP32 log-probabilities after the temperature. With one engine for both sides p is g, bit for bit.
#pragma once

#include "base/error.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace nibble {

enum class KlEstimator : uint8_t { k1, k2, k3 };  // of x = f - c: -x, x^2 / 2, e^x - 1 - x
enum class ImportanceTruncation : uint8_t {
    none,
    tis,           // w := clamp(w, low or 0, high)
    icepop,        // w := 0 outside [low, high]
    seq_mask_tis,  // an answer counts only if exp(mean of p - g) is inside [low, high]
};
inline constexpr std::array<std::string_view, 3> kl_estimator_names{"k1", "k2", "k3"};
inline constexpr std::array<std::string_view, 4> importance_truncation_names{"none", "tis", "icepop", "seq-mask-tis"};

struct PolicyLossOptions {
    double ratio_clip_min = 0.2, ratio_clip_max = 0.2;
    std::optional<double> ratio_clip_c;  // dual clip of negative advantages, > 1
    double kl_penalty = 0.01;            // beta; 0 needs no reference
    KlEstimator kl_type = KlEstimator::k3;
    bool kl_in_reward = false;     // the KL term is taken off the advantages (token_advantages()), not part of the loss
    bool token_level_loss = true;  // mean over tokens; otherwise mean over answers of their means
    bool force_on_policy_ratio = false;             // ratio 1 with the gradient of c, p := c
    bool disable_ppo_ratio = false;                 // -A c: REINFORCE and RLOO
    bool sequence_level_importance_ratios = false;  // GSPO: one ratio an answer; needs token_level_loss = false
    bool use_cispo = false;                         // -A stop(clip(ratio)) c
    bool use_on_policy_kl_approximation = false;    // the KL term is weighed by exp(c - g)
    bool importance_sampling_correction = false;    // w = exp(p - g), no gradient
    ImportanceTruncation truncation = ImportanceTruncation::none;
    std::optional<double> importance_high, importance_low;
};
// Error: a combination that has no meaning, by the names of its options.
Status check(const PolicyLossOptions& options);

// The generated tokens of one answer, masked ones included (tool output, prompt of a later turn: mask 0).
struct AnswerTokens {
    std::span<const float> generated, previous, current, reference;  // g, p, c, f; f empty where kl_penalty is 0
    std::span<const uint8_t> mask;                                   // 1: the model wrote the token and learns from it
    std::span<const uint8_t> stale;  // 1: g comes from weights before p's; empty: none does
    double advantage = 0;
    std::span<const double> advantages;  // of each token; empty: `advantage` is
    // 0: no part of the loss and its metrics (overlong filtering); the answer's tokens are compared all the same.
    double weight = 1;
};

// The KL estimate of one token, clamp(k(clamp(f - p, -20, 20)), -10, 10), that `kl_in_reward` takes off its advantage,
// times beta (NeMo RL's calculate_kl()). No gradient.
double kl_estimate(double p, double f, KlEstimator kind);

// Sums over the train global batch of all ranks, so that neither micro-batches nor ranks change a gradient.
struct BatchCounts {
    int64_t tokens = 0, answers = 0;  // masked ones left out
};

// NeMo RL's metrics of training, under its names: sums over the tokens of the loss, to be divided by
// BatchCounts::tokens unless said otherwise.
struct PolicyMetrics {
    double loss = 0;
    double kl_penalty = 0;                            // the KL term over beta; both are normalised already
    double token_mult_prob_error = 0;                 // exp(|g - p|)
    double gen_kl_error = 0;                          // k3(p - g)
    double policy_kl_error = 0;                       // k3(g - p)
    double js_divergence_error = 0;                   // M = (e^p + e^g) / 2; half of k3(p - log M) + k3(g - log M)
    double sampling_importance_ratio = 0;             // exp(p - g), not truncated
    double approx_entropy = 0;                        // -exp(c - g) c
    double probs_ratio = 0, probs_ratio_clamped = 0;  // exp(c - p), with disable_ppo_ratio, too
    double probs_ratio_min = 1e300, probs_ratio_max = -1e300;
    double outside_truncation = 0;   // tokens whose weight the truncation changed
    int64_t out_of_bounds = 0;       // of `bounded` tokens (seq-mask-tis: answers), outside the truncation's bounds
    int64_t bounded = 0;             // 0: nothing is truncated
    double seq_mult_prob_error = 0;  // of every answer the mean of exp(|g - p|): sum, to be divided by `answers`
    double seq_mult_prob_error_min = 1e300, seq_mult_prob_error_max = -1e300;
    int64_t filtered_tokens = 0;      // p or c is -inf; in no sum but the next four, and no part of the loss
    int64_t tokens = 0, answers = 0;  // of the loss: num_valid_samples
    // Of all generated tokens that training computed, whatever the weight of their answers.
    int64_t compared_tokens = 0;    // not stale
    int64_t mismatch_tokens = 0;    // of these: bits of g and p differ
    double max_abs_diff = 0;        // of these: of g and p, where p is not -inf
    int64_t off_policy_tokens = 0;  // stale ones

    void add(const PolicyMetrics& other);
};

// The mean of exp(|g - p|) over the answer's unmasked tokens, but for those where p is -inf; none: there is no such
// token. What grpo.seq_logprob_error_threshold is compared with.
std::optional<double> seq_mult_prob_error(const AnswerTokens& answer);

// Adds the answer's share of the loss to `metrics` and writes its gradient by c into `gradient` [tokens] (0 where
// masked). `counts` are those of the whole batch. A token that the trainer's top-p or top-k leave out (p or c is -inf)
// counts as masked. Error: sizes differ; another log-probability of an unmasked token that is not finite (names it).
Status policy_loss(const AnswerTokens& answer, const PolicyLossOptions& options, const BatchCounts& counts,
                   std::span<double> gradient, PolicyMetrics& metrics);

}  // namespace nibble
