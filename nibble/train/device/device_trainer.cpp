#include "train/device/device_trainer.h"

#include "base/clock.h"
#include "kernels/loss_cuda.h"
#include "kernels/moe_backward_cuda.h"
#include "kernels/optimizer_cuda.h"
#include "kernels/prepare_training_cuda.h"
#include "model/device/linear.h"
#include "train/device/train_scratch.h"
#include "train/rank_message.h"
#include "train/train_flops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace nibble {
namespace {

std::byte* raw_bytes(const void* p) { return const_cast<std::byte*>(static_cast<const std::byte*>(p)); }

double weight_of(const MicroBatch& m, size_t i) {
    if (m.labels()[i] < 0) return 0;
    return m.weights().empty() ? 1.0 : double{m.weights()[i]};
}

}  // namespace

Result<std::unique_ptr<DeviceTrainer>> DeviceTrainer::create(std::shared_ptr<Parameters> parameters,
                                                             const DeviceTrainerOptions& options, ThreadPool& pool) {
    NIBBLE_CHECK(check(options.train.cache));
    const bool cached = options.train.cache.format == KvFormat::fp8;
    if (options.train.cache.format != KvFormat::none && !cached)
        return fail("--device cuda trains with a BF16 or fp8 KV cache; {} is supported on a CPU only",
                    kv_name(options.train.cache.format));
    NIBBLE_TRY(const ModelConfig config, model_config(*parameters));
    NIBBLE_CHECK(TrainWeights::check(config));
    NIBBLE_TRY(DeviceInfo device, open(options));
    NIBBLE_TRY(TrainWeights weights,
               TrainWeights::plan(parameters, config, options.train.precision, options.train.seed, pool, cached));
    std::unique_ptr<TrainWeights> generation;
    if (options.generation) {
        NIBBLE_CHECK(check_device_precision(*options.generation));
        // Seed 0: forward products draw no random numbers.
        NIBBLE_TRY(TrainWeights own, TrainWeights::plan(parameters, config, *options.generation, 0, pool));
        generation = std::make_unique<TrainWeights>(std::move(own));
    }
    return make(std::move(parameters), options, std::move(device), std::move(weights), std::move(generation), pool);
}

Result<DeviceInfo> DeviceTrainer::open(const DeviceTrainerOptions& options) {
    NIBBLE_CHECK(check_device_precision(options.train.precision));
    if (options.train.teacher)
        return fail("TrainerOptions::teacher is for CPU trainers; set DeviceTrainerOptions::teacher");
    if (!options.train.kernels.empty())
        return fail("--kernels {} names kernels of the CPU, not of a GPU", options.train.kernels);
    NIBBLE_TRY(DeviceInfo device, open_device(options.device));
    NIBBLE_CHECK(use_device(device.index));
    NIBBLE_CHECK(prepare_linears(device));
    NIBBLE_CHECK(cuda::prepare_training(device));
    return device;
}

Result<std::unique_ptr<DeviceTrainer>> DeviceTrainer::make(std::shared_ptr<Parameters> parameters,
                                                           const DeviceTrainerOptions& options, DeviceInfo device,
                                                           TrainWeights weights,
                                                           std::unique_ptr<TrainWeights> generation, ThreadPool& pool) {
    NIBBLE_TRY(Stream stream, Stream::create(device.index));
    std::unique_ptr<DeviceTrainer> made(new DeviceTrainer(std::move(parameters), options, std::move(device),
                                                          std::move(stream), std::move(weights), pool));
    made->generation_ = std::move(generation);
    if (options.teacher) {
        NIBBLE_TRY(made->teacher_, DeviceModel::load(options.teacher, {}, options.device, pool).within("the teacher"));
        if (const int64_t other = made->teacher_->config().vocab; other != made->config().vocab)
            return fail("the teacher has a vocabulary of {}, the model has {}", other, made->config().vocab);
    }
    NIBBLE_CHECK(made->allocate());
    return made;
}

Status DeviceTrainer::allocate() {
    const DeviceRanks::Options among{options_.sharding, options_.order, weights_.recipe().delayed(), options_.link};
    NIBBLE_TRY(ranks_, DeviceRanks::create(options_.train.ranks, weights_.flat(), among, device_.index));
    const int size = ranks_->size();
    NIBBLE_CHECK(DeviceOptimizer::check(options_.train.optimizer, size));
    NIBBLE_CHECK(check_sharding());
    weights_.keep_states(options_.train.optimizer);
    if (options_.rows < 1 || options_.seq < 1)
        return fail("a trainer for {} rows of {} tokens: both must be at least 1", options_.rows, options_.seq);
    if (size > 1 && (weights_.recipe().has_experts() || (generation_ && generation_->recipe().has_experts())))
        return fail("experts under a quantized recipe are trained on one GPU only; use bf16, or scope");
    if (options_.rows % size) return fail("{} rows of a step cannot be divided between {} ranks", options_.rows, size);
    NIBBLE_CHECK(check_device_share(options_.train.precision, options_.rows / size * options_.seq, size));
    const int64_t rows = options_.rows / size, seq = options_.seq, of_norm = int64_t{8} * 2 * cuda::square_sections;
    if (options_.micro_batch > rows)
        return fail("micro_batch: {} rows are more than the {} rows of a rank", options_.micro_batch, rows);
    NIBBLE_TRY(const int64_t free, free_memory());
    const bool cached = options_.train.cache.format == KvFormat::fp8;
    Status sized = Ok{};
    const auto sizes = [&](int64_t some, Recompute level) {
        TrainMemoryPlan plan{.micro_batch = some, .recompute = level};
        plan.items = parameter_sizes(options_.sharding, some);
        if (const int64_t frozen = weights_.frozen_bytes(); frozen > 0)
            plan.items.push_back({"frozen weights for the backward pass", frozen});
        auto pass = pass_sizes(pass_shape(some, level));
        if (!pass.ok()) {
            sized = std::move(pass).error();
            return plan;
        }
        plan.items.insert(plan.items.end(), pass->begin(), pass->end());
        if (options_.reference)
            plan.items.push_back({"reference", reference_bytes() + passing_bytes + 2 * DeviceArena::alignment});
        if (generation_)
            plan.items.push_back({"weights of rollouts", generation_->operand_bytes() + DeviceWeights::staging_bytes});
        if (cached) plan.items.push_back({"scales of K and V", DeviceCache::bytes(weights_.layers(), options_.rows)});
        plan.items.push_back({"optimizer", DeviceOptimizer::bytes(options_.train.optimizer, weights_)});
        if (teacher_) plan.items.push_back({"teacher's activations", teacher_bytes(some)});
        plan.items.push_back({"norm", of_norm + 4 * some * seq + scalar_bytes});
        return plan;
    };
    // Reserve for the driver, work lists and rotary tables.
    const int64_t reserve = int64_t{1} << 29;
    NIBBLE_TRY(const int64_t most,
               most_rows(rows, options_.micro_batch, seq, TrainWeights::most_tokens(weights_.config())));
    auto plan =
        choose_memory_plan(most, options_.micro_batch, options_.recompute, std::max<int64_t>(free - reserve, 0), sizes);
    NIBBLE_CHECK(std::move(sized));
    if (!plan.ok()) return std::move(plan).error();
    plan_ = *std::move(plan);
    const AccumulationPlan order = AccumulationPlan::make((rows + plan_.micro_batch - 1) / plan_.micro_batch);
    if (sharded())  // the limit applies to the first micro-batch
        NIBBLE_CHECK(check_device_share(options_.train.precision, plan_.micro_batch * seq, size));
    NIBBLE_CHECK(weights_.load(order.buffers, ranks_->shards(), ranks_->rank(), device_, stream_));
    if (generation_) NIBBLE_CHECK(generation_->load_operands(weights_, device_, stream_));
    if (cached) NIBBLE_CHECK(make_cache());
    NIBBLE_TRY(optimizer_,
               DeviceOptimizer::create(options_.train.optimizer, options_.train.seed, weights_, device_, stream_));
    if (sharded()) {
        NIBBLE_TRY(units_, ShardedUnits::create(weights_, *ranks_, trace_, device_, stream_));
    }
    if (options_.time_shared_part) NIBBLE_CHECK(make_time_shared_memory());
    NIBBLE_CHECK(make_pass());
    NIBBLE_TRY(ends_, DeviceArena::create(device_.index, of_norm + 4 * plan_.micro_batch * seq + scalar_bytes +
                                                             4 * DeviceArena::alignment));
    NIBBLE_TRY(scalars_, ends_->allocate(scalar_bytes));
    NIBBLE_TRY(log_probs_, ends_->allocate_array<float>(plan_.micro_batch * seq));
    if (options_.reference) {
        NIBBLE_TRY(first_,
                   DeviceArena::create(device_.index, reference_bytes() + passing_bytes + 2 * DeviceArena::alignment));
        NIBBLE_TRY(reference_, first_->allocate(reference_bytes()));
        NIBBLE_TRY(passing_, first_->allocate(passing_bytes));
        NIBBLE_CHECK(swap_reference(true));
    }
    if (teacher_) {
        const int64_t bytes = 2 * padded_rows(plan_.micro_batch * seq) * teacher_->config().hidden;
        NIBBLE_TRY(taught_, DeviceArena::create(device_.index, bytes));
        NIBBLE_TRY(teacher_rows_, taught_->allocate(bytes));
    }
    NIBBLE_TRY(norm_workspace_, ends_->allocate(of_norm));
    return reserve_host(rows * seq);
}

Status DeviceTrainer::make_pass() {
    NIBBLE_TRY(pass_, TrainPass::create(weights_, units_.get(), trace_, pass_shape(plan_.micro_batch, plan_.recompute),
                                        device_, stream_, pool_, {time_shared_, time_shared_arena_.get()}));
    pass_->draw_from(cuda::drawn_from(options_.train.sampling));
    pass_->cache_in(cache_.get());
    return Ok{};
}

Status DeviceTrainer::reserve_host(int64_t tokens) {
    const int64_t bytes = scalar_bytes + 4 * tokens;
    if (landing_ && landing_->size() >= bytes) return Ok{};
    NIBBLE_CHECK(stream_.synchronize());
    landing_.reset();
    NIBBLE_TRY(landing_, PinnedBuffer::create(bytes));
    return Ok{};
}

Status DeviceTrainer::add(std::pair<int, int> b) {
    if (units_) return units_->add(weights_.gradient(b.first), weights_.gradient(b.second));
    return cuda::add_gradient(weights_.gradient(b.first), weights_.gradient(b.second), weights_.flat().elements,
                              stream_);
}

// Computes all rows forward and backward. The gradient ends in buffer result_ and its norm in the scalars. Waits at the
// end.
Result<TrainStep> DeviceTrainer::run(std::span<const TrainBatch> batches, const RowObjective* objective) {
    TrainStep step;
    int64_t tokens = 0;
    for (const TrainBatch& b : batches) {
        NIBBLE_CHECK(check(b, config().vocab));
        tokens += b.size();
    }
    std::vector<MicroBatch> pieces = cut_micro_batches(batches, plan_.micro_batch);
    const PieceRun share = ranks_->run(std::ssize(pieces));
    if (objective) {
        pieces = std::vector<MicroBatch>(pieces.begin() + share.begin, pieces.begin() + share.end);
    } else {
        NIBBLE_TRY(pieces, own_pieces(batches));
    }
    for (const MicroBatch& m : cut_micro_batches(batches, plan_.micro_batch))
        for (size_t i = 0; i < m.labels().size(); ++i) step.weight += weight_of(m, i);
    if (!objective && !(step.weight > 0)) return fail("no label of the step has a weight above 0");
    const AccumulationPlan order = AccumulationPlan::make(std::ssize(pieces));
    if (order.buffers > weights_.gradient_buffers())
        return fail("a step of {} micro-batches of {} rows is more than the planned {}", pieces.size(),
                    plan_.micro_batch, (options_.rows / ranks_->size() + plan_.micro_batch - 1) / plan_.micro_batch);
    DeviceCache::Rows own;  // statistics of this process's rows; empty if the other ranks have all rows
    for (const MicroBatch& m : pieces) own.end = m.first_row + m.rows, own.tokens += m.tokens();
    own.first = pieces.empty() ? 0 : pieces.front().first_row;
    if (cache_ && own.end > options_.rows)
        return fail("a step of {} rows is more than the planned {}", own.end, options_.rows);
    NIBBLE_CHECK(use_device(device_.index));
    NIBBLE_CHECK(reserve_host(tokens));
    NIBBLE_TRY(const bool others, weights_.recipe().begin_step(step_, steps_, ranks_->rank() == 0, stream_));
    if (others) NIBBLE_CHECK(weights_.republish());
    if (units_) {
        units_->begin_step();
    } else {
        NIBBLE_CHECK(weights_.recipe().look_at_weights(weights_.published(), stream_));
        NIBBLE_CHECK(weights_.recipe().draw(weights_.published(), stream_));
    }
    if (cache_) NIBBLE_CHECK(cache_->begin_step());
    auto* host = reinterpret_cast<float*>(landing_->data() + scalar_bytes);
    int64_t rows = 0;
    for (const TrainBatch& b : batches) rows += b.rows;
    std::vector<double> losses(static_cast<size_t>(rows));
    std::vector<float> slopes, seen;  // seen: log-probabilities of this process's rows, as passed to the objective
    for (size_t p = 0; p < pieces.size(); ++p) {
        const MicroBatch& m = pieces[p];
        float* gradient = weights_.gradient(order.pieces[p].target);
        slopes.assign(static_cast<size_t>(m.tokens()), 0.0f);
        const bool taught = teacher_ && !objective;
        if (taught) NIBBLE_CHECK(ask_teacher(m));
        pass_->teach(taught ? TrainPass::Teaching{&teacher_->head(), teacher_rows_, options_.train.cross_entropy}
                            : TrainPass::Teaching{});
        NIBBLE_CHECK(pass_->prepare(m));
        NIBBLE_CHECK(pass_->forward(true));
        if (objective) {
            NIBBLE_CHECK(pass_->log_probs(log_probs_));
            NIBBLE_CHECK(copy_to_host(raw_bytes(host), raw_bytes(log_probs_), 4 * m.tokens(), stream_));
            NIBBLE_CHECK(stream_.synchronize());
            const auto seq = static_cast<size_t>(m.batch->seq);
            for (int64_t r = 0; r < m.rows; ++r) {
                const size_t at = static_cast<size_t>(r) * seq;
                const int64_t row = m.first_row + r;
                NIBBLE_CHECK((*objective)(row, std::span<const float>(host + at, seq),
                                          std::span(slopes).subspan(at, seq), losses[static_cast<size_t>(row)]));
                seen.insert(seen.end(), host + at, host + at + seq);
            }
        } else {
            for (size_t i = 0; i < slopes.size(); ++i)
                slopes[i] = static_cast<float>((taught ? weight_of(m, i) : -weight_of(m, i)) / step.weight);
        }
        NIBBLE_CHECK(pass_->set_slopes(slopes));
        NIBBLE_CHECK(pass_->backward(gradient, log_probs_));
        NIBBLE_CHECK(copy_to_host(raw_bytes(host), raw_bytes(log_probs_), 4 * m.tokens(), stream_));
        host += m.tokens();
        for (const auto& pair : order.pieces[p].adds) NIBBLE_CHECK(add(pair));
    }
    weights_.recipe().pause();
    NIBBLE_CHECK(mark("sums and norm"));
    if (cache_) NIBBLE_CHECK(cache_->fetch(own));
    for (const auto& pair : order.last) NIBBLE_CHECK(add(pair));
    result_ = order.result;
    if (objective) {
        NIBBLE_CHECK(ask_of_other_pieces(*objective, batches, {own.first, own.end}, std::move(seen), losses));
        for (const double loss : losses) step.loss += loss;
    }
    if (units_) {
        sum_ = {weights_.gradient(result_), weights_.gradient(result_) + ranks_->elements()};
        NIBBLE_CHECK(units_->join());
    } else {
        const int present = objective ? share.present : ranks_->size();
        NIBBLE_TRY(sum_, ranks_->add(weights_.gradient(result_), present, stream_));
    }
    const FlatLayout& flat = weights_.flat();
    auto* parts = reinterpret_cast<double*>(norm_workspace_);
    for (const FlatRun& run : ranks_->shards().runs())
        if (run.rank == ranks_->rank())
            NIBBLE_CHECK(cuda::section_squares(sum_.matrices + run.local - run.begin, flat.matrix_elements,
                                               run.first_section, run.sections, parts + run.first_section, stream_));
    NIBBLE_CHECK(ranks_->gather_sections(parts, stream_));
    NIBBLE_CHECK(cuda::section_squares(sum_.vectors, flat.vector_elements(), 0, cuda::square_sections,
                                       parts + cuda::square_sections, stream_));
    NIBBLE_CHECK(cuda::sum_sections(parts, 2 * cuda::square_sections, reinterpret_cast<double*>(scalars_), stream_));
    step.tokens = tokens;
    if (objective) step.weight = 0;
    return step;
}

// Waits for the queued work and reads loss and norm.
Result<TrainStep> DeviceTrainer::finish(TrainStep step, std::span<const TrainBatch> batches,
                                        const RowObjective* objective) {
    NIBBLE_CHECK(copy_to_host(landing_->data(), scalars_, scalar_bytes, stream_));
    NIBBLE_CHECK(ranks_->wait(stream_));
    NIBBLE_CHECK(trace_.land(stream_));
    if (cache_) {
        const auto start = std::chrono::steady_clock::now();
        cache_->take();
        NIBBLE_CHECK(cache_->scales().gather(ranks_->group()));
        step.recalibrate_seconds += seconds_since(start);
    }
    double squares = 0;
    std::memcpy(&squares, landing_->data(), sizeof squares);
    step.gradient_norm = std::sqrt(squares);
    if (objective) return step;
    int64_t own = 0;
    NIBBLE_TRY(const auto pieces, own_pieces(batches));
    for (const MicroBatch& m : pieces) own += m.tokens();
    NIBBLE_TRY(const std::vector<float> all, of_all_pieces(batches, own));
    const float* host = all.data();
    for (const MicroBatch& m : cut_micro_batches(batches, plan_.micro_batch)) {
        for (size_t i = 0; i < m.labels().size(); ++i)
            if (m.labels()[i] >= 0) step.loss += (teacher_ ? weight_of(m, i) : -weight_of(m, i)) * double{host[i]};
        host += m.tokens();
    }
    step.loss /= step.weight;
    return step;
}

// Queues the update. The device itself skips the update if the norm is not finite, so the host does not wait for the
// norm.
Status DeviceTrainer::queue_update(double learning_rate) {
    const TrainOptimizer& o = options_.train.optimizer;
    auto* squares = reinterpret_cast<double*>(scalars_);
    auto* clip = reinterpret_cast<float*>(scalars_ + 8);
    NIBBLE_CHECK(mark("optimizer"));
    NIBBLE_CHECK(cuda::clip_factor(squares, o.clip, clip, stream_));
    NIBBLE_CHECK(optimizer_->update(sum_, learning_rate, optimizer_steps_ + 1, clip, stream_));
    NIBBLE_CHECK(weights_.recipe().end_step(clip, *ranks_, stream_));
    NIBBLE_CHECK(mark("weights for the next step"));
    for (auto* event : {&publish_begins_, &published_})
        if (!*event) {
            NIBBLE_TRY(*event, Event::create());
        }
    NIBBLE_CHECK(publish_begins_->record(stream_));
    if (!units_) NIBBLE_CHECK(ranks_->gather_published(weights_.published(), stream_));
    NIBBLE_CHECK(weights_.republish());
    return published_->record(stream_);
}

Result<TrainStep> DeviceTrainer::step(std::span<const TrainBatch> batches, double learning_rate) {
    NIBBLE_TRY(const TrainStep step, run(batches, nullptr));
    return conclude(step, batches, nullptr, learning_rate);
}

Result<TrainStep> DeviceTrainer::step(std::span<const TrainBatch> batches, const RowObjective& objective,
                                      double learning_rate) {
    if (units_ || options_.order == GradientOrder::free)
        return fail("losses by row need parallel.shard: states and parallel.order: tree");
    NIBBLE_TRY(const TrainStep step, run(batches, &objective));
    return conclude(step, batches, &objective, learning_rate);
}

// The update is queued before the host knows loss and norm, unless the norm decides whether there is an update.
Result<TrainStep> DeviceTrainer::conclude(TrainStep step, std::span<const TrainBatch> batches,
                                          const RowObjective* objective, double learning_rate) {
    const bool guarded = options_.train.optimizer.skip_above > 0;
    const bool lost = objective && !std::isfinite(step.loss);  // no update may follow
    if (!guarded && !lost) NIBBLE_CHECK(queue_update(learning_rate));
    NIBBLE_TRY(step, finish(step, batches, objective));
    if (guarded && std::isfinite(step.loss) && std::isfinite(step.gradient_norm)) {
        step.outlier = norms_.add(step.gradient_norm);
        if (!step.outlier) NIBBLE_CHECK(queue_update(learning_rate));
    }
    return updated(step, learning_rate);
}

Result<TrainStep> DeviceTrainer::updated(TrainStep step, double learning_rate) {
    step.learning_rate = learning_rate;
    ++step_;
    if (!std::isfinite(step.loss) || !std::isfinite(step.gradient_norm)) {
        if (!options_.train.skip_nonfinite)
            return fail("step {}: loss {} or gradient norm {} is not finite; nothing was changed", optimizer_steps_,
                        step.loss, step.gradient_norm);
        step.skipped = true;
        if (cache_) cache_->scales().after_update(false);
        NIBBLE_CHECK(weights_.recipe().skip_step(stream_));
        return step;
    }
    step.skipped = step.outlier;
    if (step.outlier && options_.train.optimizer.stop_at_outlier)
        return outlier_error(optimizer_steps_, step.gradient_norm);
    if (step.skipped) {
        if (cache_) cache_->scales().after_update(false);
        NIBBLE_CHECK(weights_.recipe().skip_step(stream_));
        return step;
    }
    step.clip = clip_factor(step.gradient_norm, options_.train.optimizer.clip);
    ++optimizer_steps_;
    NIBBLE_TRY(const bool others, weights_.recipe().count_step(stream_));
    if (others) NIBBLE_CHECK(weights_.republish());
    NIBBLE_TRY(const bool landed, published_->happened());  // false if the host waited for the norm before the update
    if (landed) {
        NIBBLE_TRY(const float milliseconds, published_->since(*publish_begins_));
        step.publish_seconds = double{milliseconds} / 1e3;
    }
    if (cache_) {
        const auto start = std::chrono::steady_clock::now();
        const std::vector<float> before = cache_->scales().state();
        cache_->scales().after_update(true);
        if (cache_->scales().state() != before) NIBBLE_CHECK(cache_was_renewed());
        step.recalibrate_seconds += seconds_since(start);
    }
    return step;
}

Result<TrainStep> DeviceTrainer::backward(std::span<const TrainBatch> batches,
                                          std::vector<std::vector<float>>& gradients) {
    if (units_) return fail("with parallel.shard: all no GPU has the whole gradient");
    NIBBLE_TRY(TrainStep step, run(batches, nullptr));
    NIBBLE_TRY(step, finish(step, batches, nullptr));
    NIBBLE_CHECK(weights_.copy_from(weights_.gradient(result_), gradients));
    NIBBLE_CHECK(stream_.synchronize());
    return step;
}

Status DeviceTrainer::log_probs(const TrainBatch& batch, std::span<float> out) {
    NIBBLE_CHECK(check(batch, config().vocab));
    if (std::ssize(out) != batch.size())
        return fail("there is room for {} log-probabilities, but the batch has {} tokens", out.size(), batch.size());
    NIBBLE_CHECK(use_device(device_.index));
    NIBBLE_CHECK(reserve_host(batch.size()));
    auto* host = reinterpret_cast<float*>(landing_->data() + scalar_bytes);
    // If some rank would have no part of the batch (fewer rows than in a step), every rank computes all of it.
    std::vector<MicroBatch> pieces = cut_micro_batches({&batch, 1}, plan_.micro_batch);
    const bool divided = ranks_->group() && ranks_->owners(std::ssize(pieces)).ok();
    if (divided) {
        NIBBLE_TRY(pieces, own_pieces({&batch, 1}));
    }
    int64_t own = 0;
    for (const MicroBatch& m : pieces) {
        NIBBLE_CHECK(pass_->prepare(m));
        NIBBLE_CHECK(pass_->forward(false));
        NIBBLE_CHECK(pass_->log_probs(log_probs_));
        NIBBLE_CHECK(copy_to_host(raw_bytes(host + own), raw_bytes(log_probs_), 4 * m.tokens(), stream_));
        own += m.tokens();
    }
    NIBBLE_CHECK(ranks_->wait(stream_));
    if (divided) {
        NIBBLE_TRY(const auto all, of_all_pieces({&batch, 1}, own));
        std::ranges::copy(all, out.begin());
    } else {
        std::memcpy(out.data(), landing_->data() + scalar_bytes, out.size_bytes());
    }
    const bool filters = options_.train.sampling.filters();  // -inf: the sampling filters exclude the label
    for (size_t i = 0; i < out.size(); ++i)
        if (std::isnan(out[i]) || (std::isinf(out[i]) && !filters))
            return fail("lm_head: a logit of row {} is not finite", i);
    return Ok{};
}

double DeviceTrainer::flops(int64_t seq) const {
    return train_flops(weights_.outline().blocks, weights_.outline().head, seq);
}

Result<std::shared_ptr<const LanguageModel>> DeviceTrainer::serving() {
    if (units_) return fail("parallel.shard: all: no GPU has the whole model for serving; use shard: states");
    return serve(weights_.served());
}

Status DeviceTrainer::set_state(const StoredTrainState& state) {
    NormHistory norms = norms_;
    if (!norms.set_norms(state.norms))
        return fail("the state has {} gradient norms of earlier steps, which is too many", state.norms.size());
    const size_t of_cache = cache_ ? std::min(cache_->scales().state().size(), state.recipe.size()) : 0;
    const auto end = state.recipe.end() - static_cast<ptrdiff_t>(of_cache);
    const bool keeps = state.recipe.empty();  // a fork keeps the current state of the recipe
    if (cache_ && !keeps) NIBBLE_CHECK(set_cache_scales({end, state.recipe.end()}));
    if (!keeps) NIBBLE_CHECK(weights_.recipe().set_state({state.recipe.begin(), end}, stream_));
    for (size_t id = 0; id < parameters_->count(); ++id) {
        const std::span<float> master = parameters_->master(id);
        if (!master.empty()) std::memcpy(master.data(), state.masters[id].data(), master.size_bytes());
    }
    parameters_->publish(pool_);
    NIBBLE_CHECK(weights_.upload(&state));
    optimizer_steps_ = state.optimizer_steps;
    norms_ = std::move(norms);
    return Ok{};
}

TrainPassShape DeviceTrainer::pass_shape(int64_t rows, Recompute recompute) const {
    TrainPassShape shape{rows, options_.seq, recompute};
    if (!teacher_) return shape;
    const int64_t slab = TrainScratch::slab(shape.tokens(), config().vocab);
    const DeviceLinear& head = teacher_->head();
    shape.taught = whole(2 * slab * config().vocab) + whole(head.scratch_bytes(slab)) +
                   whole(std::max(head.rounded_bytes(slab), head.rounded_bytes(std::min<int64_t>(slab, 64))));
    return shape;
}

std::vector<std::string> DeviceTrainer::notes() const {
    std::vector<std::string> notes{
        fmt::format("kernels: {}; gradients of activations BF16, of the residual stream and of parameters FP32",
                    device_.name),
        fmt::format(
            "micro-batches of {} row{}, {}", plan_.micro_batch, plan_.micro_batch == 1 ? "" : "s",
            plan_.recompute == Recompute::block ? "blocks recomputed in the backward pass" : "nothing recomputed"),
        "memory: " + plan_.text()};
    if (time_shared_)
        notes.push_back(fmt::format("shared memory: {}; activations during updates, keys and values during rollouts",
                                    gib_of(time_shared_->bytes())));
    if (ranks_->size() > 1) notes.push_back(sharding_note());
    if (const std::string rounded = weights_.rounded().text(); !rounded.empty()) notes.push_back(rounded);
    return notes;
}

std::string DeviceTrainer::arithmetic() const { return fmt::format("cuda, micro-batches of {}", plan_.micro_batch); }

double DeviceTrainer::memory_gib() const { return static_cast<double>(plan_.total()) / (1 << 30); }

}  // namespace nibble
