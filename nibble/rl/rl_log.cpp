#include "rl/rl_log.h"

#include <nlohmann/json.hpp>

namespace nibble {
namespace {

double per_token(double sum, const PolicyMetrics& m) { return m.tokens > 0 ? sum / static_cast<double>(m.tokens) : 0; }

// Adds fields that are defined only if the loss has tokens.
void add_means(const RlStep& s, Json& line) {
    const PolicyMetrics& m = s.metrics;
    if (m.tokens == 0) return;
    for (const auto& [name, sum] :
         {std::pair{"token_mult_prob_error", m.token_mult_prob_error}, std::pair{"gen_kl_error", m.gen_kl_error},
          std::pair{"policy_kl_error", m.policy_kl_error}, std::pair{"js_divergence_error", m.js_divergence_error},
          std::pair{"sampling_importance_ratio", m.sampling_importance_ratio},
          std::pair{"approx_entropy", m.approx_entropy}, std::pair{"probs_ratio", m.probs_ratio},
          std::pair{"probs_ratio_clamped", m.probs_ratio_clamped}})
        line[name] = per_token(sum, m);
    line["probs_ratio_min"] = m.probs_ratio_min, line["probs_ratio_max"] = m.probs_ratio_max;
    if (m.bounded > 0) line["is_oob_ratio"] = static_cast<double>(m.out_of_bounds) / static_cast<double>(m.bounded);
    const std::string suffix = s.masked ? "_after_mask" : "";
    line["max_seq_mult_prob_error" + suffix] = m.seq_mult_prob_error_max;
    line["mean_seq_mult_prob_error" + suffix] = m.seq_mult_prob_error / static_cast<double>(m.answers);
    line["min_seq_mult_prob_error" + suffix] = m.seq_mult_prob_error_min;
}

void add_masked(const RlMasked& masked, Json& line) {
    line["max_seq_mult_prob_error"] = masked.most;
    line["mean_seq_mult_prob_error"] = masked.mean;
    line["min_seq_mult_prob_error"] = masked.least;
    line["num_masked_seqs_by_logprob_error"] = masked.answers;
    line["masked_correct_pct"] =
        masked.answers > 0 ? static_cast<double>(masked.right) / static_cast<double>(masked.answers) : 0.0;
}

// Returns "no token compared" instead of a misleading count of 0.
std::string compared_text(const PolicyMetrics& m) {
    std::string text = m.compared_tokens > 0
                           ? fmt::format("mismatch_tokens {} of {}", m.mismatch_tokens, m.compared_tokens)
                           : "no token compared";
    if (m.tokens == 0) return text + ", no token in the loss";
    return text + fmt::format(", token_mult_prob_error {:.6f}", per_token(m.token_mult_prob_error, m));
}

std::string validation_text(const RlValidation& v) {
    const std::string reward = fmt::format(", validation reward {:.3f}", v.reward);
    if (v.answers == 1) return reward;
    return reward + fmt::format(", avg@{0} {1:.3f}, pass@{0} {2:.3f}, cons@{0} {3:.3f}", v.answers, v.avg_at_k,
                                v.pass_at_k, v.cons_at_k);
}

}  // namespace

void add_validation(const RlValidation& v, Json& line) {
    line["validation_reward"] = v.reward;
    line["validation_prompts"] = v.prompts;
    line["validation_answers"] = v.answers;
    line["avg_at_k"] = v.avg_at_k;
    line["pass_at_k"] = v.pass_at_k;
    line["cons_at_k"] = v.cons_at_k;
}

Json to_json(const RlStep& s, const std::optional<RlValidation>& validation, double seconds) {
    const PolicyMetrics& m = s.metrics;
    Json line{{"step", s.step},
              {"loss", m.loss},
              {"gradient_norm", s.update.gradient_norm},
              {"learning_rate", s.update.learning_rate},
              {"seconds", seconds},
              {"tokens", m.tokens},
              {"updates", s.updates},
              {"reward", s.reward},
              {"shaped_reward", s.shaped_reward},
              {"accuracy", s.accuracy},
              {"prompts", s.prompts},
              {"answers", s.answers},
              {"failures", s.failures},
              {"equal_groups", s.equal_groups},
              {"sampling_batches", s.sampling_batches},
              {"generated_tokens", s.generated_tokens},
              {"mean_gen_tokens_per_sample", s.mean_length},
              {"longest_answer", s.longest},
              {"cut_share", s.cut_share},
              {"turns_per_sample", s.mean_turns},
              {"max_turns_reached_rate", s.turn_limit_share},
              {"compared_tokens", m.compared_tokens},
              {"off_policy_tokens", m.off_policy_tokens},
              {"filtered_tokens", m.filtered_tokens},
              {"num_valid_samples", m.answers},
              {"num_masked_seqs_by_logprob_error", 0},
              {"masked_correct_pct", 0.0},
              {"kl_penalty", m.kl_penalty},
              {"outside_truncation", m.outside_truncation},
              {"generate_seconds", s.generate_seconds},
              {"reward_seconds", s.reward_seconds},
              {"train_seconds", s.train_seconds},
              {"handover_seconds", s.handover_seconds},
              {"recalibrate_seconds", s.recalibrate_seconds}};
    if (m.compared_tokens > 0) line["mismatch_tokens"] = m.mismatch_tokens, line["max_abs_diff"] = m.max_abs_diff;
    add_means(s, line);
    if (s.kl_in_reward) line["kl_in_reward"] = *s.kl_in_reward;
    if (s.masked) add_masked(*s.masked, line);
    if (s.cache) {
        line["kv_values"] = s.cache->values, line["kv_clipped"] = s.cache->clipped;
        if (s.cache->q_values > 0) line["q_values"] = s.cache->q_values, line["q_clipped"] = s.cache->q_clipped;
    }
    if (s.unfinished) {
        line["unfinished_answers"] = *s.unfinished;
        line["dropped_answers"] = s.dropped;
        line["trajectory_age"] = s.mean_age;
    }
    if (!s.ranks.empty()) {
        for (const RankWork& r : s.ranks) line["rank_tokens"].push_back(r.tokens);
        for (const RankWork& r : s.ranks) line["rank_seconds"].push_back(r.seconds);
        line["rank_tokens_most_to_median"] = tokens_most_to_median(s.ranks);
        line["rank_seconds_most_to_median"] = seconds_most_to_median(s.ranks);
    }
    if (s.update.skipped) line["skipped"] = true;
    if (!s.failure_reasons.empty()) line["failure_reasons"] = s.failure_reasons;
    if (validation) add_validation(*validation, line);
    return line;
}

void RlShares::add(const RlStep& step, double seconds) {
    ++steps_, seconds_ += seconds, handover_ += step.handover_seconds, recalibrate_ += step.recalibrate_seconds;
}

std::string RlShares::text() const {
    if (steps_ == 0) return {};
    const double all = std::max(1e-9, seconds_);
    return fmt::format(
        "{} step{} of {:.3f} s: {:.2f} % for handing weights to rollouts, {:.2f} % for scales of the cache", steps_,
        steps_ == 1 ? "" : "s", seconds_ / static_cast<double>(steps_), 100 * handover_ / all,
        100 * recalibrate_ / all);
}

std::string step_text(const RlStep& s, const std::optional<RlValidation>& validation, double seconds) {
    const PolicyMetrics& m = s.metrics;
    return fmt::format(
        "step {}: reward {:.3f}, accuracy {:.3f}, answers {} of {:.1f} tokens, cut {:.2f}, entropy {:.3f}, loss "
        "{:.4f}, "
        "gradient norm {:.3f}, {}, seconds {:.2f} ({:.2f} rollout, "
        "{:.2f} update){}{}{}",
        s.step, s.reward, s.accuracy, s.answers, s.mean_length, s.cut_share, per_token(m.approx_entropy, m), m.loss,
        s.update.gradient_norm, compared_text(m), seconds, s.generate_seconds, s.train_seconds,
        s.ranks.empty() ? "" : fmt::format(", slowest rank {:.2f} times the median", seconds_most_to_median(s.ranks)),
        s.failures > 0 ? fmt::format(", {} answers not judged: {}", s.failures, s.failure_reasons.front()) : "",
        validation ? validation_text(*validation) : "");
}

}  // namespace nibble
