#include "train/trainer.h"

#include "architecture/embedding_factor.h"
#include "base/clock.h"
#include "model/cpu/trainable.h"
#include "model/loss.h"
#include "train/host_recipe.h"
#include "train/input_directions.h"
#include "train/lora.h"
#include "train/lora_export.h"
#include "train/rank_message.h"
#include "train/train_flops.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace nibble {

// One row of a batch in the form that the model takes.
struct Trainer::Row {
    Row(const TrainBatch& b, int64_t row) : batch(segments(b, row)) {
        const auto at = static_cast<size_t>(row * b.seq), n = static_cast<size_t>(b.seq);
        labels = std::span(b.labels).subspan(at, n);
        if (!b.weights.empty()) weights = std::span(b.weights).subspan(at, n);
    }
    static std::vector<Segment> segments(const TrainBatch& b, int64_t row) {
        const int64_t begin = row * b.seq, end = begin + b.seq;
        std::vector<Segment> list;
        auto at = std::ranges::lower_bound(b.documents, begin);
        while (at != b.documents.end() && *at < end) {
            const int64_t from = *at++, to = at == b.documents.end() ? end : std::min(*at, end);
            const auto tokens = std::span(b.tokens).subspan(static_cast<size_t>(from), static_cast<size_t>(to - from));
            list.push_back({.sequence = nullptr, .tokens = tokens, .logits_from = to - from});
        }
        return list;
    }
    Batch batch;
    std::span<const int32_t> labels;
    std::span<const float> weights;  // empty: all weights are 1
};

namespace {

// Computes the input of the first block: x [rows, hidden].
Status embed(const Model& model, const Batch& batch, float* x) {
    for (size_t s = 0; s < batch.segments().size(); ++s)
        NIBBLE_CHECK(model.embedding().forward(batch.segments()[s].tokens, x + batch.row(s) * model.config().hidden,
                                               model.workspace()));
    return Ok{};
}

// Returns the ids of the weights of blocks' linears; adapters are not included.
std::vector<size_t> block_matrices(const Model& model, const Parameters& parameters) {
    std::vector<size_t> ids;
    for (const Block& block : model.blocks())
        for (const Linear* linear : block.linears())
            if (const auto id = parameters.id(linear->name + ".weight"); id.ok()) ids.push_back(*id);
    return ids;
}

Result<Model> load_for_training(const std::shared_ptr<const Checkpoint>& checkpoint, const TrainerOptions& options,
                                ThreadPool& pool) {
    if (options.teacher) {
        NIBBLE_TRY(const ModelConfig config, model_config(*checkpoint));
        if (const int64_t other = options.teacher->config().vocab; other != config.vocab)
            return fail("the teacher has a vocabulary of {}, the model has {}", other, config.vocab);
    }
    NIBBLE_TRY(const ModelConfig model, model_config(*checkpoint));
    NIBBLE_CHECK(check_backward(model));
    for (const BlockConfig& block : model.blocks)
        if (std::holds_alternative<ParallelConfig>(block.mixer))
            return fail("{}: training of mixers that read the same rows is not supported", block.prefix);
    ModelOptions like;
    like.compute = options.precision.recipe == TrainRecipe::fp32 ? Compute::f32 : Compute::bf16;
    like.kernels = options.kernels;
    if (options.cache.format == KvFormat::fp8_page && options.cache.mirrored) like.kv = KvFormat::fp8_page;
    return Model::load(checkpoint, like, pool);
}

TrainRanks make_ranks(RankGroup* group, const Parameters& parameters) {
    std::vector<int64_t> sizes;
    for (size_t id = 0; id < parameters.count(); ++id) sizes.push_back(std::ssize(parameters.master(id)));
    return TrainRanks::make(group, sizes);
}

// Directions are computed from the first rows of a step, which must all belong to rank 0: rows [0, first).
Status check_first_share(const TrainPrecision& precision, const TrainRanks& ranks, std::span<const TrainBatch> batches,
                         int64_t first) {
    if (!has_directions(precision) || ranks.size() == 1) return Ok{};
    int64_t share = 0, all = 0, number = 0;
    for (const TrainBatch& b : batches)
        for (int64_t r = 0; r < b.rows; ++r, ++number) {
            all += b.seq;
            if (number < first) share += b.seq;
        }
    if (share >= std::min(InputDirections::most_observed, all)) return Ok{};
    return fail(
        "{} with {} ranks: the first rank has {} tokens of a step, but the first {} tokens, which give the directions, "
        "must be on one rank",
        train_precision_name(precision), ranks.size(), share, InputDirections::most_observed);
}

}  // namespace

Trainer::Trainer(std::shared_ptr<Parameters> parameters, std::shared_ptr<const Checkpoint> base,
                 const TrainerOptions& options, Model model, ThreadPool& pool)
    : parameters_(std::move(parameters)),
      base_(std::move(base)),
      options_(options),
      ranks_(make_ranks(options.ranks, *parameters_)),
      pool_(pool),
      model_(std::make_unique<Model>(std::move(model))),
      gradients_(*parameters_, model_->config().head, base_ != nullptr, pool),
      optimizer_(*parameters_, options.optimizer, block_matrices(*model_, *parameters_), *model_->workspace().matmul,
                 options.seed, ranks_),
      norms_(options.optimizer.skip_above, options.optimizer.skip_window) {}

Result<std::unique_ptr<Trainer>> Trainer::create_adapters(std::shared_ptr<const Checkpoint> base,
                                                          const TrainerOptions& options, ThreadPool& pool) {
    if (options.cache.format != KvFormat::none) return fail("adapters are trained with a 16-bit KV cache only");
    NIBBLE_TRY(Model model, load_for_training(base, options, pool));
    const DType published = model.workspace().bf16() ? DType::bf16 : DType::f32;
    NIBBLE_TRY(auto adapters, lora_parameters(model.blocks(), options.lora, published, options.seed, pool));
    std::unique_ptr<Trainer> made(new Trainer(std::move(adapters), base, options, std::move(model), pool));
    NIBBLE_TRY(made->products_, LoraProducts::create(*made->model_, *base, *made->parameters_, options.lora, pool));
    made->model_->workspace().products = made->products_.get();
    return made;
}

Result<std::unique_ptr<Trainer>> Trainer::create(std::shared_ptr<Parameters> parameters, const TrainerOptions& options,
                                                 ThreadPool& pool) {
    NIBBLE_CHECK(check(options.cache));
    std::shared_ptr<const Checkpoint> read = parameters;
    std::shared_ptr<CacheScales> cache;
    if (options.cache.format == KvFormat::fp8) {
        NIBBLE_TRY(cache, cache_scales_of(parameters, options.cache, pool));
        if (options.cache.mirrored) read = std::make_shared<const CachedCheckpoint>(parameters, cache);
    }
    NIBBLE_TRY(Model model, load_for_training(read, options, pool));
    std::unique_ptr<Trainer> made(new Trainer(std::move(parameters), nullptr, options, std::move(model), pool));
    made->cache_ = std::move(cache);
    NIBBLE_TRY(made->products_,
               HostRecipe::create(*made->model_, *made->parameters_, options.precision, options.seed, pool));
    made->model_->workspace().products = made->products_.get();
    return made;
}

void Trainer::begin(int64_t step, int64_t steps) { step_ = step, steps_ = steps; }

Status Trainer::enter_phase(int64_t step, int64_t steps) {
    products_->begin_step(step, steps);
    products_->pause();
    return Ok{};
}

Status Trainer::renew() {
    parameters_->publish(pool_);
    return base_ ? Status(Ok{}) : model_->renew();
}

// Writes the residual stream after every block to inputs_; without `keep` only the last.
Status Trainer::forward_row(const Row& row, bool keep) {
    Workspace& work = model_->workspace();
    const auto blocks = model_->blocks();
    const auto size = static_cast<size_t>(row.batch.rows() * model_->config().hidden);
    inputs_.resize(keep ? blocks.size() + 1 : 1);
    inputs_[0].resize(size);
    float* x = inputs_[0].data();
    const TraceSpan all(options_.trace, "forward");
    CacheScales* seen = keep ? cache_.get() : nullptr;
    if (seen) seen->begin_row();
    NIBBLE_CHECK(embed(*model_, row.batch, x));
    for (size_t b = 0; b < blocks.size(); ++b) {
        if (keep) {
            inputs_[b + 1] = inputs_[b];
            x = inputs_[b + 1].data();
        }
        const TraceSpan span(options_.trace, "block", static_cast<int64_t>(b));
        NIBBLE_CHECK(blocks[b].forward(row.batch, x, work, seen));
    }
    return Ok{};
}

Status Trainer::calibrate(std::span<const TrainBatch> batches) {
    if (!calibrates()) return fail("there are no scales to calibrate");
    for (const TrainBatch& b : batches) NIBBLE_CHECK(check(b, model_->config().vocab));
    products_->begin_calibration();
    for (const TrainBatch& b : batches)
        for (int64_t r = 0; r < b.rows; ++r) NIBBLE_CHECK(forward_row(Row(b, r), true));
    products_->end_calibration();
    if (!cache_) return Ok{};
    cache_->renew();
    return model_->renew();
}

Status Trainer::set_cache_scales(std::span<const float> state) {
    if (!cache_) return fail("there is no KV cache with scales");
    NIBBLE_CHECK(cache_->set_state(state));
    return model_->renew();
}

// Adds the row's gradient to the tree. Call it after forward_row(row, true).
Status Trainer::backward_row(const Row& row, std::span<const float> slopes, std::span<float> log_probs) {
    std::vector<float> dx(inputs_.back().size());
    {
        const TraceSpan span(options_.trace, "head and loss");
        NIBBLE_CHECK(label_gradient(model_->head(), inputs_.back().data(), row.labels, options_.sampling, slopes,
                                    dx.data(), log_probs, model_->workspace(), &gradients_));
    }
    return backward_blocks(row, dx);
}

// The same for the distillation loss.
Status Trainer::distil_row(const Row& row, std::span<const float> weights, std::span<float> losses) {
    const Model& teacher = *options_.teacher;
    std::vector<float> x(static_cast<size_t>(row.batch.rows() * teacher.config().hidden)), dx(inputs_.back().size());
    Status asked = embed(teacher, row.batch, x.data());
    for (size_t b = 0; asked.ok() && b < teacher.blocks().size(); ++b)
        asked = teacher.blocks()[b].forward(row.batch, x.data(), teacher.workspace(), nullptr);
    NIBBLE_CHECK(std::move(asked).within("the teacher"));
    NIBBLE_CHECK(distillation_gradient(
        model_->head(), inputs_.back().data(),
        {.head = teacher.head(), .x = x.data(), .work = teacher.workspace(), .cross_entropy = options_.cross_entropy},
        row.labels, weights, dx.data(), losses, model_->workspace(), &gradients_));
    return backward_blocks(row, dx);
}

// dx: gradient of the last block's output.
Status Trainer::backward_blocks(const Row& row, std::vector<float>& dx) {
    Workspace& work = model_->workspace();
    const auto blocks = model_->blocks();
    const ModelConfig& config = model_->config();
    const TraceSpan all(options_.trace, "backward");
    for (size_t b = blocks.size(); b-- > 0;) {
        const TraceSpan span(options_.trace, "block", static_cast<int64_t>(b));
        NIBBLE_CHECK(blocks[b].backward(row.batch, inputs_[b].data(), dx.data(), work, nullptr, &gradients_));
    }
    std::vector<int32_t> ids;
    for (const Segment& s : row.batch.segments()) ids.insert(ids.end(), s.tokens.begin(), s.tokens.end());
    NIBBLE_CHECK(
        gradients_.add_rows(config.embedding, ids, dx.data(), config.hidden, embedding_factor(config, work.bf16())));
    gradients_.end_row();
    return Ok{};
}

Result<TrainStep> Trainer::backward(std::span<const TrainBatch> batches) {
    double weight = 0;
    for (const TrainBatch& b : batches)
        for (size_t i = 0; i < b.labels.size(); ++i)
            if (b.labels[i] >= 0) weight += b.weights.empty() ? 1.0 : double{b.weights[i]};
    if (!(weight > 0)) return fail("no label of the step has a weight above 0");
    TrainStep step{.weight = weight};
    int64_t rows = 0, number = 0;
    for (const TrainBatch& b : batches) {
        NIBBLE_CHECK(check(b, model_->config().vocab));
        rows += b.rows, step.tokens += b.size();
    }
    const int64_t first = ranks_.rows_begin(rows), end = ranks_.rows_end(rows);
    NIBBLE_CHECK(check_first_share(options_.precision, ranks_, batches, ranks_.rows_begin(rows, 1)));
    gradients_.begin_step(first);
    products_->begin_step(step_, steps_);
    std::vector<float> slopes, values, seen;  // seen: log-probabilities, or losses, of this process's rows
    for (const TrainBatch& b : batches) {
        slopes.resize(static_cast<size_t>(b.seq));
        values.resize(static_cast<size_t>(b.seq));
        for (int64_t r = 0; r < b.rows; ++r, ++number) {
            if (number < first || number >= end) continue;
            const Row row(b, r);
            for (size_t i = 0; i < slopes.size(); ++i) {
                const double w = row.labels[i] < 0 ? 0.0 : row.weights.empty() ? 1.0 : double{row.weights[i]};
                slopes[i] = static_cast<float>((options_.teacher ? w : -w) / weight);
            }
            products_->begin_row(number, b.seq);
            NIBBLE_CHECK(forward_row(row, true));
            NIBBLE_CHECK(options_.teacher ? distil_row(row, slopes, values) : backward_row(row, slopes, values));
            seen.insert(seen.end(), values.begin(), values.end());
        }
    }
    NIBBLE_TRY(seen, of_all_ranks(ranks_.group, std::move(seen)));
    auto value = seen.begin();
    for (const TrainBatch& b : batches)
        for (size_t i = 0; i < b.labels.size(); ++i, ++value) {
            if (b.labels[i] < 0) continue;
            const double w = b.weights.empty() ? 1.0 : double{b.weights[i]};
            step.loss += (options_.teacher ? w : -w) * double{*value};
        }
    step.loss /= weight;
    NIBBLE_CHECK(gradients_.end_step(ranks_));
    products_->pause();
    NIBBLE_CHECK(share_seen());
    if (cache_) NIBBLE_CHECK(cache_->gather(ranks_.group));
    NIBBLE_TRY(step.gradient_norm, gradients_.norm(ranks_));
    return step;
}

Status Trainer::share_seen() {
    if (!ranks_.group) return Ok{};
    StepSeen all = products_->seen();
    if (all.largest.empty() && all.directions.empty()) return Ok{};
    RankBytes bytes;
    put_numbers(bytes, all.largest);
    if (ranks_.rank() == 0) put_numbers(bytes, all.directions);
    NIBBLE_TRY(const auto from, ranks_.group->gather(std::move(bytes)));
    for (size_t r = 0; r < from.size(); ++r) {
        RankReader in(from[r]);
        const auto largest = in.numbers<float>();
        for (size_t i = 0; i < all.largest.size(); ++i) all.largest[i] = std::max(all.largest[i], largest[i]);
        if (r == 0) all.directions = in.numbers<float>();
    }
    products_->set_seen(all);
    return Ok{};
}

Result<TrainStep> Trainer::backward(std::span<const TrainBatch> batches, const RowObjective& objective) {
    TrainStep step;
    std::vector<int64_t> tokens;  // tokens of every row
    for (const TrainBatch& b : batches) {
        NIBBLE_CHECK(check(b, model_->config().vocab));
        tokens.insert(tokens.end(), static_cast<size_t>(b.rows), b.seq);
        step.tokens += b.size();
    }
    const std::vector<int64_t> begins = divide_rows(tokens, ranks_.size());
    const int64_t first = begins[static_cast<size_t>(ranks_.rank())];
    const int64_t end = begins[static_cast<size_t>(ranks_.rank()) + 1];
    NIBBLE_CHECK(check_first_share(options_.precision, ranks_, batches, begins[1]));
    gradients_.begin_step(first);
    products_->begin_step(step_, steps_);
    std::vector<double> losses(tokens.size());
    std::vector<float> slopes, log_probs, seen;  // seen: log-probabilities of this process's rows
    int64_t number = 0;
    for (const TrainBatch& b : batches) {
        log_probs.resize(static_cast<size_t>(b.seq));
        for (int64_t r = 0; r < b.rows; ++r, ++number) {
            if (number < first || number >= end) continue;
            const Row row(b, r);
            products_->begin_row(number, b.seq);
            NIBBLE_CHECK(forward_row(row, true));
            NIBBLE_CHECK(label_log_probs(model_->head(), inputs_.back().data(), row.labels, options_.sampling,
                                         log_probs, model_->workspace()));
            slopes.assign(static_cast<size_t>(b.seq), 0.0f);
            NIBBLE_CHECK(objective(number, log_probs, slopes, losses[static_cast<size_t>(number)]));
            seen.insert(seen.end(), log_probs.begin(), log_probs.end());
            NIBBLE_CHECK(backward_row(row, slopes, log_probs));
        }
    }
    NIBBLE_TRY(seen, of_all_ranks(ranks_.group, std::move(seen)));
    NIBBLE_CHECK(ask_of_others(objective, tokens, {first, end}, seen, losses));
    for (const double loss : losses) step.loss += loss;
    NIBBLE_CHECK(gradients_.end_step(ranks_));
    products_->pause();
    NIBBLE_CHECK(share_seen());
    const auto start = std::chrono::steady_clock::now();
    if (cache_) NIBBLE_CHECK(cache_->gather(ranks_.group));
    if (cache_) step.recalibrate_seconds += seconds_since(start);
    NIBBLE_TRY(step.gradient_norm, gradients_.norm(ranks_));
    return step;
}

Status Trainer::update(TrainStep& step, double learning_rate) {
    step.learning_rate = learning_rate;
    if (!std::isfinite(step.loss) || !std::isfinite(step.gradient_norm)) {
        if (!options_.skip_nonfinite)
            return fail("step {}: loss {} or gradient norm {} is not finite; nothing was changed", optimizer_.steps(),
                        step.loss, step.gradient_norm);
        step.skipped = true;
    } else {
        step.outlier = norms_.add(step.gradient_norm);
        step.skipped = step.outlier;
        if (step.outlier && options_.optimizer.stop_at_outlier)
            return outlier_error(optimizer_.steps(), step.gradient_norm);
    }
    if (step.skipped) {
        products_->end_step(false);
        if (cache_) cache_->after_update(false);
        ++step_;
        return Ok{};
    }
    const TraceSpan span(options_.trace, "optimizer and weights");
    step.clip = clip_factor(step.gradient_norm, options_.optimizer.clip);
    optimizer_.update(*parameters_, gradients_, learning_rate, step.clip, pool_);
    const auto updated = std::chrono::steady_clock::now();
    if (cache_) cache_->after_update(true);
    if (cache_) step.recalibrate_seconds += seconds_since(updated);
    const auto start = std::chrono::steady_clock::now();
    NIBBLE_CHECK(share_masters());
    products_->end_step(true);
    ++step_;
    NIBBLE_CHECK(renew());
    step.publish_seconds = seconds_since(start);
    return Ok{};
}

Result<TrainStep> Trainer::step(std::span<const TrainBatch> batches, double learning_rate) {
    NIBBLE_TRY(TrainStep step, backward(batches));
    NIBBLE_CHECK(update(step, learning_rate));
    return step;
}

Result<TrainStep> Trainer::step(std::span<const TrainBatch> batches, const RowObjective& objective,
                                double learning_rate) {
    NIBBLE_TRY(TrainStep step, backward(batches, objective));
    NIBBLE_CHECK(update(step, learning_rate));
    return step;
}

Status Trainer::log_probs(const TrainBatch& batch, std::span<float> out) {
    NIBBLE_CHECK(check(batch, model_->config().vocab));
    if (std::ssize(out) != batch.size())
        return fail("there is room for {} log-probabilities, but the batch has {} tokens", out.size(), batch.size());
    std::vector<float> own;
    for (int64_t r = ranks_.rows_begin(batch.rows); r < ranks_.rows_end(batch.rows); ++r) {
        own.resize(own.size() + static_cast<size_t>(batch.seq));
        NIBBLE_CHECK(own_log_probs(batch, r, std::span(own).last(static_cast<size_t>(batch.seq))));
    }
    NIBBLE_TRY(const auto all, of_all_ranks(ranks_.group, std::move(own)));
    std::ranges::copy(all, out.begin());
    return Ok{};
}

Status Trainer::own_log_probs(const TrainBatch& batch, int64_t row, std::span<float> out) {
    const Row one(batch, row);
    NIBBLE_CHECK(forward_row(one, false));
    return label_log_probs(model_->head(), inputs_[0].data(), one.labels, options_.sampling, out, model_->workspace());
}

Status Trainer::row_log_probs(std::span<const TrainBatch* const> rows, const OfRow& each) {
    const auto own = [&](const TrainBatch& row, std::span<float> out) -> Status {
        NIBBLE_CHECK(check(row, model_->config().vocab));
        return own_log_probs(row, 0, out);
    };
    return nibble::row_log_probs(ranks_.group, rows, own, each);
}

// Exchanges the updated parameters: sends this rank's and receives the others'.
Status Trainer::share_masters() {
    if (!ranks_.group) return Ok{};
    RankBytes own;
    for (size_t id = 0; id < parameters_->count(); ++id)
        if (ranks_.owns(id)) put_numbers<float>(own, std::span<const float>(parameters_->master(id)));
    NIBBLE_TRY(const auto all, ranks_.group->gather(std::move(own)));
    std::vector<RankReader> readers(all.begin(), all.end());
    for (size_t id = 0; id < parameters_->count(); ++id) {
        const auto values = readers[static_cast<size_t>(ranks_.owner[id])].numbers<float>();
        if (values.size() != parameters_->master(id).size()) return fail("a rank has different parameters");
        std::ranges::copy(values, parameters_->master(id).begin());
    }
    return Ok{};
}

Result<bool> Trainer::any(bool mine) { return ranks_.group ? ranks_.group->any(mine) : Result<bool>(mine); }

Status Trainer::sync() {
    if (!ranks_.group) return Ok{};
    while (true) {  // rank 0 releases this rank, or requests states
        NIBBLE_TRY(const RankBytes order, ranks_.group->share({std::byte{0}}));
        if (order != RankBytes{std::byte{1}} || ranks_.rank() == 0) return Ok{};
        TrainState none;
        NIBBLE_CHECK(collect_states(none));
    }
}

// Sends the optimizer's states of all parameters to rank 0.
Status Trainer::collect_states(TrainState& state) {
    std::vector<RankBytes> to(static_cast<size_t>(ranks_.size()));
    for (size_t id = 0; ranks_.rank() > 0 && id < parameters_->count(); ++id) {
        if (!ranks_.owns(id)) continue;
        put_numbers<std::byte>(to[0], bytes_of(std::as_const(optimizer_).m(id)));
        put_numbers<std::byte>(to[0], bytes_of(std::as_const(optimizer_).v(id)));
    }
    NIBBLE_TRY(const auto from, ranks_.group->exchange(std::move(to)));
    if (ranks_.rank() > 0) return Ok{};
    std::vector<RankReader> readers(from.begin(), from.end());
    for (size_t id = 0; id < parameters_->count(); ++id) {
        if (ranks_.owns(id)) continue;
        RankReader& in = readers[static_cast<size_t>(ranks_.owner[id])];
        for (StateNumbers* numbers : {&state.m[id], &state.v[id]}) {
            const auto bytes = in.numbers<std::byte>();
            std::visit([&]<class T>(std::vector<T>& to) { to.resize(bytes.size() / sizeof(T)); }, *numbers);
            std::ranges::copy(bytes, bytes_of(*numbers).begin());
        }
    }
    return Ok{};
}

double Trainer::flops(int64_t seq) const { return train_flops(model_->blocks(), model_->head(), seq); }

Result<std::shared_ptr<const LanguageModel>> Trainer::serving() {
    // does not own the model; the trainer does
    return std::shared_ptr<const LanguageModel>(std::shared_ptr<void>(), model_.get());
}

Result<std::shared_ptr<const Checkpoint>> Trainer::trained() {
    std::shared_ptr<const Checkpoint> model = parameters_;
    if (base_) model = std::make_shared<const MergedCheckpoint>(*base_, *parameters_, options_.lora);
    return model;
}

Result<Format> Trainer::codes_format(int64_t steps) {
    // If a run was resumed at its end, no step has set the phase of the recipe.
    NIBBLE_CHECK(enter_phase(steps - 1, steps));
    return TrainedCodes::format_of(*products_);
}

Result<std::unique_ptr<TrainedCodes>> Trainer::trained_codes(int64_t steps) {
    NIBBLE_CHECK(codes_format(steps));
    return TrainedCodes::create(parameters_, *products_, pool_);
}

std::vector<float> Trainer::recipe_state() const {
    std::vector<float> all = products_->state();
    if (cache_) std::ranges::copy(cache_->state(), std::back_inserter(all));
    return all;
}

Result<TrainState> Trainer::state() {
    TrainState s{.optimizer_steps = optimizer_.steps(), .recipe = recipe_state(), .norms = norms_.norms()};
    const auto copy = [](std::span<const float> values) { return std::vector<float>(values.begin(), values.end()); };
    for (size_t id = 0; id < parameters_->count(); ++id) {
        s.masters.push_back(copy(parameters_->master(id)));
        s.m.push_back(optimizer_.m(id));
        s.v.push_back(optimizer_.v(id));
    }
    if (!ranks_.group) return s;
    NIBBLE_CHECK(ranks_.group->share({std::byte{1}}));
    NIBBLE_CHECK(collect_states(s));
    return s;
}

Status Trainer::set_state(const StoredTrainState& s) {
    NormHistory norms = norms_;
    if (!norms.set_norms(s.norms))
        return fail("the state has {} gradient norms of earlier steps, which is too many", s.norms.size());
    const size_t of_cache = cache_ ? std::min(cache_->state().size(), s.recipe.size()) : 0;
    const auto end = s.recipe.end() - static_cast<ptrdiff_t>(of_cache);
    const std::vector<float> before = products_->state();
    const bool keeps = s.recipe.empty();  // a fork keeps the current state of the recipe
    if (!keeps) NIBBLE_CHECK(products_->set_state({s.recipe.begin(), end}));
    if (cache_ && !keeps) {
        const Status scales = cache_->set_state(std::span(s.recipe).last(of_cache));
        if (!scales.ok()) NIBBLE_CHECK(products_->set_state(before));
        NIBBLE_CHECK(scales);
    }
    norms_ = std::move(norms);
    const auto copy = [](Bytes from, std::span<std::byte> to) {
        if (!to.empty()) std::memcpy(to.data(), from.data(), to.size());
    };
    for (size_t id = 0; id < parameters_->count(); ++id) {
        copy(s.masters[id], std::as_writable_bytes(parameters_->master(id)));
        if (!ranks_.owns(id)) continue;
        copy(s.m[id], bytes_of(optimizer_.m(id)));
        copy(s.v[id], bytes_of(optimizer_.v(id)));
    }
    optimizer_.set_steps(s.optimizer_steps);
    return renew();
}

std::vector<std::string> Trainer::notes() const {
    return {fmt::format("kernels: {}; quantized operands are emulated exactly, sums are FP32", model_->kernels())};
}

double Trainer::memory_gib() const {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_maxrss) / (1 << 20);
}

}  // namespace nibble
