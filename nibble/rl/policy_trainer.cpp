#include "rl/policy_trainer.h"

#include "base/clock.h"
#include "base/fields.h"
#include "rl/pass_at_k.h"
#include "rl/policy_update.h"
#include "rl/weigh_rollouts.h"

#include <algorithm>
#include <chrono>

namespace nibble {

Result<std::unique_ptr<PolicyTrainer>> PolicyTrainer::create(const RlConfig& config, TrainEngine& trainer,
                                                             RolloutTask& task, PolicyTrainerOptions options) {
    NIBBLE_CHECK(check(config));
    if (config.loss.kl_penalty > 0 && !options.reference)
        return fail("loss_fn.reference_policy_kl_penalty {}: there is no reference policy", config.loss.kl_penalty);
    if (trainer.recipe().sees_neighbours() && !config.loss.importance_sampling_correction)
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
    engine.kv_memory = trainer.time_shared_bytes();
    engine.context = config.length;
    const int64_t prompts = config.async ? config.async->prompts_in_flight : config.batch_prompts();
    engine.queue = std::max(prompts * config.generations, config.validation_prompts * config.validation_answers);
    NIBBLE_TRY(made->engine_, Engine::create(std::move(generator), made->options_.tokenizer, engine));
    NIBBLE_CHECK(trainer.give_memory_to_rollouts());
    made->pool_.emplace(*made->engine_, task, config.generations, made->options_.ranks);
    return made;
}

Status PolicyTrainer::check_ranks() const {
    const int ranks = options_.ranks ? options_.ranks->size() : 1;
    if (ranks == 1) return Ok{};
    if (trainer_.recipe().sees_neighbours() || options_.generator_sees_neighbours)
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

// Computes advantages. Keeps the lengths of answers, by which ranks deal prompts, and the samples for people.
Status PolicyTrainer::weigh(RolloutBatch& batch, RlStep& step) {
    NIBBLE_CHECK(weigh_rollouts(config_, batch, step));
    const auto group = static_cast<size_t>(config_.generations);
    for (size_t p = 0; options_.ranks && p < batch.prompts.size(); ++p) {
        int64_t length = 0;
        for (const Rollout& r : std::span(batch.rollouts).subspan(p * group, group)) length += r.length();
        lengths_.note(batch.prompts[p].tokens, static_cast<double>(length) / static_cast<double>(group));
    }
    step.samples = choose_samples(batch, options_.samples, step.step);
    return Ok{};
}

Status PolicyTrainer::learn(RolloutBatch& batch, RlStep& step) {
    PolicyUpdate update(config_, trainer_, options_.reference.get(),
                        {.row_tokens = options_.row_tokens, .even_rows = options_.even_rows}, batch, step);
    NIBBLE_CHECK(update.prepare());
    generator_stale_ = true;
    return update.learn();
}

Json PolicyTrainer::place() const {
    Json place{{"prompt", next_prompt_}};
    if (pool_->prompts() > 0) place["rollouts"] = pool_->state();
    return place;
}

Status PolicyTrainer::set_place(const Json& place) {
    uint64_t prompt = 0;
    NIBBLE_CHECK(Fields(place).need("prompt", prompt));
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
    auto switched = trainer_.give_memory_to_rollouts();
    if (!learned.ok()) {
        // Scales of caches and inputs may include rows of an update that was not made.
        can_be_saved_ = alone() && step.updates == 0 && !trainer_.calibrates();
        if (can_be_saved_) go_back();
        return std::move(learned).error();
    }
    NIBBLE_CHECK(std::move(switched));
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
