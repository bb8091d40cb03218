#include "rl/policy_update.h"

#include "rl/advantage.h"
#include "train/schedule.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble {

void PolicyUpdate::pack(const RowPacking& packing) {
    const int64_t answers = std::ssize(batch_.rollouts);
    const int64_t each = config_.train_batch > 0 ? config_.train_batch : answers;
    for (int64_t at = 0; at < answers; at += each) {
        const auto first = static_cast<size_t>(at), last = static_cast<size_t>(at + each);
        const int64_t limit =
            packing.even_rows ? even_row_tokens(batch_, first, last, packing.row_tokens) : packing.row_tokens;
        if (auto rows = rollout_rows(batch_, first, last, limit); !rows.empty()) updates_.push_back(std::move(rows));
    }
    // A separate pass for the log-probabilities before the first update is needed only in two cases: there are several
    // updates, or these log-probabilities decide which answers are in the loss or are part of the reward.
    asks_ = each != answers || config_.seq_error_threshold || takes_off_kl();
    previous_.resize(batch_.rollouts.size()), reference_.resize(batch_.rollouts.size());
}

// Returns the weight of an answer in the loss: 1 or 0.
double PolicyUpdate::weight(const Rollout& r) const {
    return r.reward && !r.masked && !(config_.overlong_filtering && r.cut) ? 1.0 : 0.0;
}

Status PolicyUpdate::prepare() {
    std::vector<const RolloutRow*> rows;
    std::vector<const TrainBatch*> batches;
    for (const Rows& of_update : updates_)
        for (const RolloutRow& row : of_update) rows.push_back(&row), batches.push_back(&row.batch);
    const auto deal_to = [&rows](TokenValues& to) {
        return [&rows, &to](size_t i, std::span<const float> of_row) {
            for (const RolloutRow::Part& p : rows[i]->parts)
                to[p.rollout].assign(of_row.begin() + static_cast<ptrdiff_t>(p.begin),
                                     of_row.begin() + static_cast<ptrdiff_t>(p.begin + p.size));
            return Status(Ok{});
        };
    };
    if (asks_) NIBBLE_CHECK(trainer_.row_log_probs(batches, deal_to(previous_)));
    if (config_.loss.kl_penalty > 0) NIBBLE_CHECK(reference_policy_->log_probs(batches, deal_to(reference_)));
    if (takes_off_kl()) NIBBLE_CHECK(take_off_kl());
    if (config_.seq_error_threshold) mask_by_error();
    return Ok{};
}

// Excludes answers as NeMo RL's compute_and_apply_seq_logprob_error_masking does.
void PolicyUpdate::mask_by_error() {
    RlMasked seen{.most = -1e300, .least = 1e300};
    double answers = 0;
    for (size_t i = 0; i < batch_.rollouts.size(); ++i) {
        Rollout& r = batch_.rollouts[i];
        if (weight(r) == 0) continue;
        const auto error = seq_mult_prob_error({.generated = r.generated, .previous = previous_[i], .mask = r.written});
        if (!error) continue;
        seen.most = std::max(seen.most, *error), seen.least = std::min(seen.least, *error);
        seen.mean += *error, ++answers;
        r.masked = *error > *config_.seq_error_threshold;
        seen.answers += r.masked, seen.right += r.masked && *r.reward == 1;
    }
    if (answers > 0) seen.mean /= answers, step_.masked = seen;
}

// Subtracts the KL estimate of each generated token from its advantage (NeMo RL's use_kl_in_reward).
Status PolicyUpdate::take_off_kl() {
    std::vector<double> rewards;
    std::vector<int64_t> groups;
    std::vector<std::vector<double>> penalties;
    double sum = 0, tokens = 0;
    for (size_t i = 0; i < batch_.rollouts.size(); ++i) {
        const Rollout& r = batch_.rollouts[i];
        if (!r.reward) continue;
        rewards.push_back(r.shaped), groups.push_back(static_cast<int64_t>(r.prompt));
        std::vector<double>& of_answer = penalties.emplace_back();
        for (size_t t = 0; t < r.tokens.size(); ++t) {
            if (!r.written[t]) continue;
            const double kl = kl_estimate(previous_[i][t], reference_[i][t], config_.loss.kl_type);
            of_answer.push_back(config_.loss.kl_penalty * kl);
            sum += kl, ++tokens;
        }
    }
    NIBBLE_TRY(const auto values, token_advantages(rewards, groups, penalties, config_.advantage));
    auto of_answer = values.begin();
    for (Rollout& r : batch_.rollouts) {
        if (!r.reward) continue;
        r.advantages.assign(r.tokens.size(), 0);
        auto value = of_answer++->begin();
        for (size_t t = 0; t < r.tokens.size(); ++t)
            if (r.written[t]) r.advantages[t] = *value++;
    }
    step_.kl_in_reward = tokens > 0 ? sum / tokens : 0;
    return Ok{};
}

BatchCounts PolicyUpdate::counts_of(const Rows& rows) const {
    BatchCounts counts;
    for (const RolloutRow& row : rows)
        for (const RolloutRow::Part& p : row.parts)
            if (weight(batch_.rollouts[p.rollout]) > 0)
                counts.tokens += batch_.rollouts[p.rollout].length(), ++counts.answers;
    return counts;
}

// Adds the loss of one answer in a row, and writes its slopes.
Status PolicyUpdate::add_answer(const RolloutRow::Part& p, const BatchCounts& counts, std::span<const float> log_probs,
                                std::span<float> slopes, PolicyMetrics& metrics) {
    const Rollout& r = batch_.rollouts[p.rollout];
    const auto current = log_probs.subspan(p.begin, p.size);
    AnswerTokens answer{.generated = r.generated,
                        .previous = asks_ ? std::span<const float>(previous_[p.rollout]) : current,
                        .current = current,
                        .advantage = r.advantage,
                        .weight = weight(r)};
    answer.reference = reference_[p.rollout];
    answer.advantages = r.advantages;
    answer.mask = r.written;
    for (RlSample& s : step_.samples)
        if (s.rollout == p.rollout) {
            s.previous.assign(answer.previous.begin(), answer.previous.end());
            s.current.assign(current.begin(), current.end());
        }
    std::vector<uint8_t> stale;
    for (const int64_t s : r.steps) stale.push_back(s != step_.step);
    answer.stale = stale;
    std::vector<double> gradient(p.size);
    NIBBLE_CHECK(
        policy_loss(answer, config_.loss, counts, gradient, metrics).within(fmt::format("answer {}", p.rollout)));
    for (size_t t = 0; t < p.size; ++t) slopes[p.begin + t] = static_cast<float>(gradient[t]);
    return Ok{};
}

Status PolicyUpdate::update(const Rows& rows, bool last, double rate) {
    const BatchCounts counts = counts_of(rows);
    std::vector<TrainBatch> batches;
    for (const RolloutRow& row : rows) batches.push_back(row.batch);
    // Collected per row, then added in the order of rows, because ranks process rows in different orders.
    std::vector<PolicyMetrics> of_rows(rows.size());
    const RowObjective objective = [&](int64_t row, std::span<const float> log_probs, std::span<float> slopes,
                                       double& loss) -> Status {
        PolicyMetrics& metrics = of_rows[static_cast<size_t>(row)];
        for (const RolloutRow::Part& p : rows[static_cast<size_t>(row)].parts)
            NIBBLE_CHECK(add_answer(p, counts, log_probs, slopes, metrics));
        loss = metrics.loss;
        return Ok{};
    };
    // Scales are constant during the step. The next step's scales come from this batch.
    trainer_.recipe().hold_scales(!last);
    if (trainer_.cache_scales() && last) trainer_.cache_scales()->renew_at_update();
    NIBBLE_TRY(step_.update, trainer_.step(batches, objective, rate));
    for (const PolicyMetrics& metrics : of_rows) step_.metrics.add(metrics);
    ++step_.updates;
    step_.handover_seconds += step_.update.publish_seconds;
    step_.recalibrate_seconds += step_.update.recalibrate_seconds;
    return Ok{};
}

Status PolicyUpdate::learn() {
    const double rate = learning_rate({.kind = ScheduleKind::constant, .warmup = config_.warmup},
                                      config_.optimizer.learning_rate, step_.step, config_.steps);
    trainer_.begin(step_.step, config_.steps);
    double norms = 0;
    for (const Rows& rows : updates_) {
        NIBBLE_CHECK(update(rows, &rows == &updates_.back(), rate));
        norms += step_.update.gradient_norm;
    }
    if (const CacheScales* cache = trainer_.cache_scales()) step_.cache = cache->last_use();
    step_.metrics.loss /= static_cast<double>(step_.updates);
    step_.metrics.kl_penalty /= static_cast<double>(step_.updates);
    step_.update.gradient_norm = norms / static_cast<double>(step_.updates);
    return Ok{};
}

}  // namespace nibble
