#include "rl/policy_trainer.h"

#include "base/clock.h"
#include "base/json_fields.h"
#include "rl/pass_at_k.h"
#include "train/schedule.h"

#include <algorithm>
#include <bit>
#include <chrono>

namespace nibble {
namespace {

// Returns true if all judged answers have the same reward after scaling (which may clamp). Fewer than two are equal.
bool all_equal(std::span<const Rollout> group, const std::optional<RewardScaling>& scaling) {
    std::optional<double> first;
    for (const Rollout& r : group) {
        if (!r.reward) continue;
        const double reward = scaling ? scaled_reward(*r.reward, *scaling) : *r.reward;
        if (first && reward != *first) return false;
        first = reward;
    }
    return true;
}

}  // namespace

std::vector<RolloutRow> rollout_rows(const RolloutBatch& batch, size_t first, size_t last, int64_t row_tokens) {
    std::vector<RolloutRow> rows;
    for (size_t i = first; i < last; ++i) {
        const Rollout& r = batch.rollouts[i];
        if (r.tokens.empty()) continue;
        const RolloutPrompt& prompt = batch.prompts[r.prompt];
        const auto tokens = std::ssize(prompt.tokens) + std::ssize(r.tokens) - 1;
        if (rows.empty() || rows.back().batch.seq + tokens > row_tokens) rows.push_back({.batch = {.rows = 1}});
        TrainBatch& row = rows.back().batch;
        row.documents.push_back(row.seq);
        row.tokens.insert(row.tokens.end(), prompt.tokens.begin(), prompt.tokens.end());
        row.tokens.insert(row.tokens.end(), r.tokens.begin(), r.tokens.end() - 1);
        row.labels.insert(row.labels.end(), prompt.tokens.size() - 1, -1);
        rows.back().parts.push_back({i, row.labels.size(), r.tokens.size()});
        for (size_t t = 0; t < r.tokens.size(); ++t) row.labels.push_back(r.written[t] ? r.tokens[t] : -1);
        row.seq += tokens;
    }
    return rows;
}

int64_t even_row_tokens(const RolloutBatch& batch, size_t first, size_t last, int64_t row_tokens) {
    std::vector<int64_t> sizes;
    for (size_t i = first; i < last; ++i) {
        const Rollout& r = batch.rollouts[i];
        if (!r.tokens.empty()) sizes.push_back(std::ssize(batch.prompts[r.prompt].tokens) + std::ssize(r.tokens) - 1);
    }
    const auto rows_of = [&](int64_t limit) {  // the same rule as in rollout_rows()
        uint64_t rows = 0;
        int64_t room = 0;
        for (const int64_t size : sizes) {
            if (rows == 0 || size > room) ++rows, room = limit;
            room -= size;
        }
        return rows;
    };
    const uint64_t most = std::bit_ceil(rows_of(row_tokens));
    int64_t low = 0, high = row_tokens;  // invariant: rows_of(high) <= most < rows_of(low), or low is 0
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        (rows_of(middle) <= most ? high : low) = middle;
    }
    return high;
}

// Two adjacent rows together hold more than row_tokens, and no row but the last has room for another answer. Each fact
// gives a bound.
int64_t most_rollout_rows(int64_t rollouts, int64_t length, int64_t row_tokens) {
    if (row_tokens < length) return rollouts;
    const int64_t tokens = rollouts * length;
    return std::min({rollouts, 2 * tokens / row_tokens + 1, tokens / (row_tokens - length + 1) + 1});
}

Result<std::unique_ptr<PolicyTrainer>> PolicyTrainer::create(const RlConfig& config, TrainEngine& trainer,
                                                             RolloutTask& task, PolicyTrainerOptions options) {
    NIBBLE_CHECK(check(config));
    if (config.loss.kl_penalty > 0 && !options.reference)
        return fail("loss_fn.reference_policy_kl_penalty {}: there is no reference policy", config.loss.kl_penalty);
    if (trainer.sees_neighbours() && !config.loss.importance_sampling_correction)
        return fail(
            "policy.precision: this recipe has per-tensor scales, so rollouts and training differ in some bits; that "
            "needs loss_fn.use_importance_sampling_correction: true");
    std::unique_ptr<PolicyTrainer> made(new PolicyTrainer(config, trainer, task, std::move(options)));
    NIBBLE_CHECK(made->check_ranks());
    NIBBLE_CHECK(made->calibrate());  // before the pages of K and V are allocated
    auto generator = made->options_.generator;
    if (!generator) {
        NIBBLE_TRY(generator, trainer.serving());
    }
    EngineOptions engine;
    engine.sequences =
        std::min(made->options_.sequences, std::max(config.batch_prompts() * config.generations, int64_t{1}));
    engine.memory_share = made->options_.memory_share;
    engine.kv_memory = trainer.lent_bytes();
    engine.context = config.length;
    const int64_t prompts = config.async ? config.async->prompts_in_flight : config.batch_prompts();
    engine.queue = std::max(prompts * config.generations, config.validation_prompts * config.validation_answers);
    NIBBLE_TRY(made->engine_, Engine::create(std::move(generator), made->options_.tokenizer, engine));
    NIBBLE_CHECK(trainer.lend_memory());
    made->pool_.emplace(*made->engine_, task, config.generations, made->options_.ranks);
    return made;
}

Status PolicyTrainer::check_ranks() const {
    const int ranks = options_.ranks ? options_.ranks->size() : 1;
    if (ranks == 1) return Ok{};
    if (trainer_.sees_neighbours() || options_.generator_sees_neighbours)
        return fail(
            "policy.precision: this recipe has per-tensor scales, so rollouts depend on the other answers of a batch "
            "and {} ranks would not give the bits of one",
            ranks);
    return Ok{};
}

// Computes the first scales of FP8 caches and of stored inputs from the run's first prompts. A checkpoint's scales
// replace them.
Status PolicyTrainer::calibrate() {
    if (!trainer_.calibrates()) return Ok{};
    std::vector<TrainBatch> rows;
    for (int64_t p = 0; p < config_.prompts; ++p) {
        NIBBLE_TRY(RolloutPrompt prompt, task_.prompt(static_cast<uint64_t>(p)));
        const int64_t size = std::min(std::ssize(prompt.tokens), config_.length);
        prompt.tokens.resize(static_cast<size_t>(size));
        rows.push_back({.rows = 1, .seq = size, .tokens = std::move(prompt.tokens)});
        rows.back().labels.assign(static_cast<size_t>(size), -1);
        rows.back().documents = {0};
    }
    NIBBLE_CHECK(trainer_.calibrate(rows));
    if (options_.reference) NIBBLE_CHECK(options_.reference->calibrate(rows));
    return refresh_generator();
}

Status PolicyTrainer::refresh_generator() {
    if (generator_stale_ && options_.renew_generator) NIBBLE_CHECK(options_.renew_generator());
    generator_stale_ = false;
    return Ok{};
}

RolloutRequest PolicyTrainer::request(int64_t step, uint64_t first_prompt, int64_t prompts, int64_t answers) const {
    RolloutRequest r{.first_prompt = first_prompt,
                     .prompts = prompts,
                     .answers = answers,
                     .length = std::min(config_.length, engine_->limits().context),
                     .most_tokens = config_.generation.most_tokens,
                     .step = step,
                     .most_turns = config_.most_turns,
                     .sampling = config_.generation.sampling(),
                     .seed = config_.seed,
                     .end_tokens = options_.end_tokens,
                     .stop_texts = config_.generation.stop_texts,
                     .expected_length = [this](std::span<const int32_t> p) { return lengths_.expected(p); },
                     .cache_salt = std::to_string(version_),
                     .stop = options_.stop_requested};
    for (const int32_t id : config_.generation.stop_tokens)
        if (std::ranges::count(r.end_tokens, id) == 0) r.end_tokens.push_back(id);
    return r;
}

void PolicyTrainer::shape(RolloutBatch& batch) const {
    for (Rollout& r : batch.rollouts) {
        if (!r.reward) continue;
        r.shaped = config_.scaling ? scaled_reward(*r.reward, *config_.scaling) : *r.reward;
        if (config_.shaping) r.shaped = shaped_reward(r.shaped, r.length(), r.cut, *config_.shaping);
    }
}

// Returns the first prompts whose answers are whole; the others continue in the next step. Prompts that began too long
// ago are dropped.
Result<RolloutBatch> PolicyTrainer::collect_under_way(RlStep& step) {
    RolloutRequest asked = request(step.step, 0, 0, 0);
    asked.round_tokens = config_.async->round_tokens;
    step.dropped = pool_->drop_before(step.step - config_.async->most_age) * config_.generations;
    // No prompt begins before it is needed, because it would be older when it is used.
    for (; pool_->whole() < config_.prompts && pool_->prompts() < config_.async->prompts_in_flight; ++next_prompt_)
        NIBBLE_CHECK(pool_->begin(next_prompt_, asked));
    while (pool_->whole() < config_.prompts && !pool_->stopped()) NIBBLE_CHECK(pool_->round(asked));
    RolloutBatch batch = pool_->take_whole(config_.prompts);
    step.unfinished = pool_->prompts() * config_.generations;
    for (const RolloutPrompt& p : batch.prompts)
        step.mean_age += static_cast<double>(step.step - p.begun) / static_cast<double>(config_.prompts);
    for (const Rollout& r : batch.rollouts) step.generated_tokens += r.length();
    return batch;
}

// Collects the step's rollouts. With dynamic sampling it continues until enough prompts have answers of different
// rewards.
Result<RolloutBatch> PolicyTrainer::collect(RlStep& step) {
    RolloutBatch all;
    const auto group = static_cast<size_t>(config_.generations);
    for (step.sampling_batches = 1;; ++step.sampling_batches) {
        NIBBLE_TRY(
            RolloutBatch batch,
            roll_out(*engine_, task_, request(step.step, next_prompt_, config_.batch_prompts(), config_.generations),
                     options_.ranks));
        add_work(all.ranks, batch.ranks);
        all.generate_seconds += batch.generate_seconds, all.reward_seconds += batch.reward_seconds;
        all.stopped = batch.stopped;
        if (batch.stopped) return all;
        next_prompt_ += static_cast<uint64_t>(config_.batch_prompts());
        for (const Rollout& r : batch.rollouts) step.generated_tokens += r.length();
        for (size_t p = 0; p < batch.prompts.size() && std::ssize(all.prompts) < config_.prompts; ++p) {
            const auto answers = std::span(batch.rollouts).subspan(p * group, group);
            if (config_.dynamic_sampling && all_equal(answers, config_.scaling)) continue;
            for (Rollout& r : answers) {
                r.prompt = all.prompts.size();
                all.rollouts.push_back(std::move(r));
            }
            all.prompts.push_back(std::move(batch.prompts[p]));
        }
        if (std::ssize(all.prompts) == config_.prompts) return all;
        if (step.sampling_batches == config_.most_batches) {
            can_be_saved_ = true;  // every rank got the same error
            return fail(
                "grpo.dynamic_sampling_max_gen_batches: after {} batches {} of {} prompts have answers of "
                "different rewards",
                config_.most_batches, all.prompts.size(), config_.prompts);
        }
    }
}

// Computes advantages from rewards, and the statistics of the step. Unjudged answers are in no group.
Status PolicyTrainer::weigh(RolloutBatch& batch, RlStep& step) {
    shape(batch);
    std::vector<double> rewards;
    std::vector<int64_t> groups, lengths;
    std::vector<Rollout*> judged;
    int64_t generated = 0;  // without answers whose prompts left no room
    for (Rollout& r : batch.rollouts) {
        const int64_t length = r.length();
        generated += length > 0;
        step.mean_length += static_cast<double>(length);
        step.longest = std::max(step.longest, length);
        step.cut_share += r.cut;
        step.mean_turns += static_cast<double>(r.turns),
            step.turn_limit_share += !r.observation.empty() && r.turns == config_.most_turns;
        if (!r.reward) {
            ++step.failures;
            if (step.failure_reasons.size() < 4) step.failure_reasons.push_back(r.failure);
            continue;
        }
        step.reward += *r.reward, step.shaped_reward += r.shaped, step.accuracy += *r.reward == 1;
        judged.push_back(&r);
        rewards.push_back(r.shaped);
        groups.push_back(static_cast<int64_t>(r.prompt));
        lengths.push_back(length);
    }
    step.prompts = std::ssize(batch.prompts), step.answers = std::ssize(batch.rollouts);
    if (judged.empty())
        return fail("step {}: none of the {} answers could be judged: {}", step.step, step.answers,
                    step.failure_reasons.empty() ? "" : step.failure_reasons[0]);
    const auto all = static_cast<double>(std::max<int64_t>(generated, 1)),
               of_judged = static_cast<double>(judged.size());
    for (double* mean : {&step.mean_length, &step.cut_share, &step.mean_turns, &step.turn_limit_share}) *mean /= all;
    step.reward /= of_judged, step.shaped_reward /= of_judged, step.accuracy /= of_judged;
    NIBBLE_TRY(const auto values, advantages(rewards, groups, lengths, config_.advantage));
    for (size_t i = 0; i < judged.size(); ++i) judged[i]->advantage = values[i];
    const auto group = static_cast<size_t>(config_.generations);
    for (size_t p = 0; p < batch.prompts.size(); ++p) {
        const auto answers = std::span(std::as_const(batch.rollouts)).subspan(p * group, group);
        step.equal_groups += all_equal(answers, config_.scaling);
        int64_t length = 0;
        for (const Rollout& r : answers) length += r.length();
        if (options_.ranks)
            lengths_.note(batch.prompts[p].tokens, static_cast<double>(length) / static_cast<double>(group));
    }
    step.samples = choose_samples(batch, options_.samples, step.step);
    return Ok{};
}

// Returns the weight of an answer in the loss: 1 or 0.
double PolicyTrainer::weight(const Rollout& r) const {
    return r.reward && !r.masked && !(config_.overlong_filtering && r.cut) ? 1.0 : 0.0;
}

// Excludes answers as NeMo RL's compute_and_apply_seq_logprob_error_masking does.
void PolicyTrainer::mask_by_error(RolloutBatch& batch, std::span<const std::vector<float>> previous,
                                  RlStep& step) const {
    RlMasked seen{.most = -1e300, .least = 1e300};
    double answers = 0;
    for (size_t i = 0; i < batch.rollouts.size(); ++i) {
        Rollout& r = batch.rollouts[i];
        if (weight(r) == 0) continue;
        const auto error = seq_mult_prob_error({.generated = r.generated, .previous = previous[i], .mask = r.written});
        if (!error) continue;
        seen.most = std::max(seen.most, *error), seen.least = std::min(seen.least, *error);
        seen.mean += *error, ++answers;
        r.masked = *error > *config_.seq_error_threshold;
        seen.answers += r.masked, seen.right += r.masked && *r.reward == 1;
    }
    if (answers > 0) seen.mean /= answers, step.masked = seen;
}

// Subtracts the KL estimate of each generated token from its advantage (NeMo RL's use_kl_in_reward).
Status PolicyTrainer::take_off_kl(RolloutBatch& batch, std::span<const std::vector<float>> previous,
                                  std::span<const std::vector<float>> reference, RlStep& step) const {
    std::vector<double> rewards;
    std::vector<int64_t> groups;
    std::vector<std::vector<double>> penalties;
    double sum = 0, tokens = 0;
    for (size_t i = 0; i < batch.rollouts.size(); ++i) {
        const Rollout& r = batch.rollouts[i];
        if (!r.reward) continue;
        rewards.push_back(r.shaped), groups.push_back(static_cast<int64_t>(r.prompt));
        std::vector<double>& of_answer = penalties.emplace_back();
        for (size_t t = 0; t < r.tokens.size(); ++t) {
            if (!r.written[t]) continue;
            const double kl = kl_estimate(previous[i][t], reference[i][t], config_.loss.kl_type);
            of_answer.push_back(config_.loss.kl_penalty * kl);
            sum += kl, ++tokens;
        }
    }
    NIBBLE_TRY(const auto values, token_advantages(rewards, groups, penalties, config_.advantage));
    auto of_answer = values.begin();
    for (Rollout& r : batch.rollouts) {
        if (!r.reward) continue;
        r.advantages.assign(r.tokens.size(), 0);
        auto value = of_answer++->begin();
        for (size_t t = 0; t < r.tokens.size(); ++t)
            if (r.written[t]) r.advantages[t] = *value++;
    }
    step.kl_in_reward = tokens > 0 ? sum / tokens : 0;
    return Ok{};
}

Status PolicyTrainer::learn(RolloutBatch& batch, RlStep& step) {
    const int64_t answers = std::ssize(batch.rollouts);
    const int64_t each = config_.train_batch > 0 ? config_.train_batch : answers;
    const bool once = each == answers;
    std::vector<std::vector<RolloutRow>> updates;
    for (int64_t at = 0; at < answers; at += each) {
        const auto first = static_cast<size_t>(at), last = static_cast<size_t>(at + each);
        const int64_t limit =
            options_.even_rows ? even_row_tokens(batch, first, last, options_.row_tokens) : options_.row_tokens;
        if (auto rows = rollout_rows(batch, first, last, limit); !rows.empty()) updates.push_back(std::move(rows));
    }
    // Indexed by answer. A separate pass for the log-probabilities before the first update is needed only in two cases:
    // there are several updates, or these log-probabilities decide which answers are in the loss or are part of the
    // reward.
    const bool kl_in_reward = config_.loss.kl_in_reward && config_.loss.kl_penalty > 0;
    const bool asks = !once || config_.seq_error_threshold || kl_in_reward;
    std::vector<std::vector<float>> previous(batch.rollouts.size()), reference(batch.rollouts.size());
    const auto deal = [](const RolloutRow& row, std::span<const float> of_row, std::vector<std::vector<float>>& to) {
        for (const RolloutRow::Part& p : row.parts)
            to[p.rollout].assign(of_row.begin() + static_cast<ptrdiff_t>(p.begin),
                                 of_row.begin() + static_cast<ptrdiff_t>(p.begin + p.size));
    };
    std::vector<const RolloutRow*> all_rows;
    std::vector<const TrainBatch*> all_batches;
    for (const auto& rows : updates)
        for (const RolloutRow& row : rows) all_rows.push_back(&row), all_batches.push_back(&row.batch);
    if (asks)
        NIBBLE_CHECK(trainer_.row_log_probs(all_batches, [&](size_t i, std::span<const float> of_row) {
            deal(*all_rows[i], of_row, previous);
            return Status(Ok{});
        }));
    if (config_.loss.kl_penalty > 0)
        NIBBLE_CHECK(options_.reference->log_probs(all_batches, [&](size_t i, std::span<const float> of_row) {
            deal(*all_rows[i], of_row, reference);
            return Status(Ok{});
        }));
    if (kl_in_reward) NIBBLE_CHECK(take_off_kl(batch, previous, reference, step));
    if (config_.seq_error_threshold) mask_by_error(batch, previous, step);
    const double rate = learning_rate({.kind = ScheduleKind::constant, .warmup = config_.warmup},
                                      config_.optimizer.learning_rate, step.step, config_.steps);
    trainer_.begin(step.step, config_.steps);
    generator_stale_ = true;
    double norms = 0;
    for (const std::vector<RolloutRow>& rows : updates) {
        BatchCounts counts;
        std::vector<TrainBatch> batches;
        for (const RolloutRow& row : rows) {
            batches.push_back(row.batch);
            for (const RolloutRow::Part& p : row.parts)
                if (weight(batch.rollouts[p.rollout]) > 0)
                    counts.tokens += batch.rollouts[p.rollout].length(), ++counts.answers;
        }
        // Collected per row, then added in the order of rows, because ranks process rows in different orders.
        std::vector<PolicyMetrics> of_rows(rows.size());
        const auto of_answer = [&](const RolloutRow::Part& p, std::span<const float> log_probs, std::span<float> slopes,
                                   PolicyMetrics& metrics) -> Status {
            const Rollout& r = batch.rollouts[p.rollout];
            const auto current = log_probs.subspan(p.begin, p.size);
            AnswerTokens answer{.generated = r.generated,
                                .previous = asks ? std::span<const float>(previous[p.rollout]) : current,
                                .current = current,
                                .advantage = r.advantage,
                                .weight = weight(r)};
            answer.reference = reference[p.rollout];
            answer.advantages = r.advantages;
            answer.mask = r.written;
            for (RlSample& s : step.samples)
                if (s.rollout == p.rollout) {
                    s.previous.assign(answer.previous.begin(), answer.previous.end());
                    s.current.assign(current.begin(), current.end());
                }
            std::vector<uint8_t> stale;
            for (const int64_t s : r.steps) stale.push_back(s != step.step);
            answer.stale = stale;
            std::vector<double> gradient(p.size);
            NIBBLE_CHECK(policy_loss(answer, config_.loss, counts, gradient, metrics)
                             .within(fmt::format("answer {}", p.rollout)));
            for (size_t t = 0; t < p.size; ++t) slopes[p.begin + t] = static_cast<float>(gradient[t]);
            return Ok{};
        };
        const RowObjective objective = [&](int64_t row, std::span<const float> log_probs, std::span<float> slopes,
                                           double& loss) -> Status {
            PolicyMetrics& metrics = of_rows[static_cast<size_t>(row)];
            for (const RolloutRow::Part& p : rows[static_cast<size_t>(row)].parts)
                NIBBLE_CHECK(of_answer(p, log_probs, slopes, metrics));
            loss = metrics.loss;
            return Ok{};
        };
        // Scales are constant during the step. The next step's scales come from this batch.
        const bool last = &rows == &updates.back();
        trainer_.hold_scales(!last);
        if (trainer_.cache_scales() && last) trainer_.cache_scales()->renew_at_update();
        NIBBLE_TRY(step.update, trainer_.step(batches, objective, rate));
        norms += step.update.gradient_norm;
        for (const PolicyMetrics& metrics : of_rows) step.metrics.add(metrics);
        ++step.updates;
        step.handover_seconds += step.update.publish_seconds;
        step.recalibrate_seconds += step.update.recalibrate_seconds;
    }
    if (const CacheScales* cache = trainer_.cache_scales()) step.cache = cache->last_use();
    step.metrics.loss /= static_cast<double>(step.updates);
    step.metrics.kl_penalty /= static_cast<double>(step.updates);
    step.update.gradient_norm = norms / static_cast<double>(step.updates);
    return Ok{};
}

Json PolicyTrainer::place() const {
    Json place{{"prompt", next_prompt_}};
    if (pool_->prompts() > 0) place["rollouts"] = pool_->state();
    return place;
}

Status PolicyTrainer::set_place(const Json& place) {
    uint64_t prompt = 0;
    NIBBLE_CHECK(json_get(place, "prompt", prompt));
    const auto rollouts = place.find("rollouts");
    NIBBLE_CHECK(pool_->set_state(rollouts == place.end() ? Json::array() : *rollouts));
    next_prompt_ = prompt;
    generator_stale_ = true;
    return Ok{};
}

Result<RlStep> PolicyTrainer::step(int64_t number) {
    RlStep step{.step = number};
    can_be_saved_ = alone();
    const auto begin = std::chrono::steady_clock::now();
    NIBBLE_CHECK(refresh_generator());
    step.handover_seconds = seconds_since(begin);
    const uint64_t first_prompt = next_prompt_;
    const RolloutPool before = *pool_;
    const auto go_back = [&] { next_prompt_ = first_prompt, pool_.emplace(before); };
    auto collected = config_.async ? collect_under_way(step) : collect(step);
    if (!collected.ok() || collected->stopped) go_back();
    if (!collected.ok()) return std::move(collected).error();
    can_be_saved_ = true;  // from here on all ranks do the same, until the update
    step.stopped = collected->stopped;
    if (step.stopped) return step;
    if (auto weighed = weigh(*collected, step); !weighed.ok()) {
        go_back();
        return std::move(weighed).error();
    }
    can_be_saved_ = false;
    step.generate_seconds = collected->generate_seconds, step.reward_seconds = collected->reward_seconds;
    step.ranks = collected->ranks;
    const auto start = std::chrono::steady_clock::now();
    // Keys and values are lost with the memory, even if no weight changes.
    ++version_;
    NIBBLE_CHECK(trainer_.take_memory_back());
    auto learned = learn(*collected, step);
    auto lent = trainer_.lend_memory();
    if (!learned.ok()) {
        // Scales of caches and inputs may include rows of an update that was not made.
        can_be_saved_ = alone() && step.updates == 0 && !trainer_.calibrates();
        if (can_be_saved_) go_back();
        return std::move(learned).error();
    }
    NIBBLE_CHECK(std::move(lent));
    can_be_saved_ = true;
    step.train_seconds = seconds_since(start);
    return step;
}

Result<RlValidation> PolicyTrainer::validate() {
    const int64_t k = config_.validation_answers;
    can_be_saved_ = alone();
    NIBBLE_CHECK(refresh_generator());
    RolloutRequest asked = request(0, validation_prompts_from, config_.validation_prompts, k);
    if (const auto own = config_.generation.validation_temperature)
        asked.sampling.temperature = static_cast<float>(*own);
    if (const auto own = config_.generation.validation_top_p) asked.sampling.top_p = static_cast<float>(*own);
    NIBBLE_TRY(const RolloutBatch batch, roll_out(*engine_, task_, asked, options_.ranks));
    can_be_saved_ = true;
    RlValidation v{.stopped = batch.stopped, .answers = k};
    if (v.stopped) return v;
    int64_t judged = 0;
    for (const Rollout& r : batch.rollouts)
        if (r.reward) v.reward += *r.reward, ++judged;
    if (judged == 0) return fail("validation: no answer could be judged: {}", batch.rollouts[0].failure);
    v.reward /= static_cast<double>(judged);
    for (size_t p = 0; p < batch.prompts.size(); ++p) {
        const auto group = std::span(batch.rollouts).subspan(p * static_cast<size_t>(k), static_cast<size_t>(k));
        if (!std::ranges::all_of(group, [](const Rollout& r) { return r.reward.has_value(); })) continue;
        std::vector<std::string> answers;
        std::vector<uint8_t> right;
        for (const Rollout& r : group) answers.push_back(r.answer), right.push_back(*r.reward == 1);
        const auto rights = static_cast<int64_t>(std::ranges::count(right, 1));
        v.avg_at_k += static_cast<double>(rights) / static_cast<double>(k);
        v.pass_at_k += pass_at_k(k, rights, k);
        v.cons_at_k += cons_at_k(answers, right, k);
        ++v.prompts;
    }
    for (double* mean : {&v.avg_at_k, &v.pass_at_k, &v.cons_at_k}) *mean /= std::max<double>(1, double(v.prompts));
    return v;
}

}  // namespace nibble
