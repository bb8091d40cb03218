#include "train/device/device_trainer.h"

#include "kernels/product_cuda.h"
#include "kernels/train_cuda.h"
#include "kernels/train_moe_cuda.h"
#include "train/rank_message.h"
#include "train/train_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace nibble {
namespace {

constexpr int64_t scalar_bytes = 256;                // at the begin of ends_ and of the landing
constexpr int64_t passing_bytes = int64_t{1} << 26;  // of a swap of weights

std::byte* raw_bytes(const void* p) { return const_cast<std::byte*>(static_cast<const std::byte*>(p)); }

double weight_of(const MicroBatch& m, size_t i) {
    if (m.labels()[i] < 0) return 0;
    return m.weights().empty() ? 1.0 : double{m.weights()[i]};
}

}  // namespace

Result<std::unique_ptr<DeviceTrainer>> DeviceTrainer::create(std::shared_ptr<Parameters> parameters,
                                                             const DeviceTrainerOptions& options, ThreadPool& pool) {
    if (options.train.precision.weights_only)
        return fail("--device cuda: weights_only (NVFP4 weights under BF16 inputs) trains on a CPU only");
    if (options.train.cache.format != KvFormat::none)
        return fail("--device cuda trains with a KV cache of BF16; {} is for a CPU",
                    kv_name(options.train.cache.format));
    if (options.train.sampling.temperature != 1 || options.train.sampling.filters())
        return fail("temperature {}, top-p {}, top-k {}: on a GPU only 1, 1 and 0 are built",
                    options.train.sampling.temperature, options.train.sampling.top_p, options.train.sampling.top_k);
    NIBBLE_CHECK(check_device_precision(options.train.precision));
    NIBBLE_CHECK(check_plain_optimizer(options.train.optimizer));
    if (options.train.teacher) return fail("teacher: distillation runs on a CPU; use --device cpu");
    if (!options.train.kernels.empty())
        return fail("--kernels {} names kernels of the CPU, not of a GPU", options.train.kernels);
    NIBBLE_TRY(const ModelConfig config, model_config(*parameters));
    NIBBLE_CHECK(TrainWeights::check(config));
    NIBBLE_TRY(DeviceInfo device, open_device(options.device));
    NIBBLE_CHECK(use_device(device.index));
    NIBBLE_CHECK(cuda::prepare_products(device));
    NIBBLE_CHECK(cuda::prepare_training(device));
    NIBBLE_CHECK(cuda::prepare_training_experts(device));
    NIBBLE_TRY(Stream stream, Stream::create(device.index));
    NIBBLE_TRY(TrainWeights weights,
               TrainWeights::plan(parameters, config, options.train.precision, options.train.seed, pool));
    std::unique_ptr<DeviceTrainer> made(new DeviceTrainer(std::move(parameters), options, std::move(device),
                                                          std::move(stream), std::move(weights), pool));
    NIBBLE_CHECK(made->allocate());
    return made;
}

Status DeviceTrainer::allocate() {
    const int64_t numbers = weights_.recipe().delayed();
    NIBBLE_TRY(ranks_, DeviceRanks::create(options_.train.ranks, weights_.flat(), options_.sharding,
                                            numbers, device_.index, options_.link));
    const int size = ranks_->size();
    if (options_.rows < 1 || options_.seq < 1)
        return fail("a trainer for {} rows of {} tokens", options_.rows, options_.seq);
    if (options_.rows % size) return fail("{} rows of a step for {} ranks", options_.rows, size);
    NIBBLE_CHECK(check_device_share(options_.train.precision, options_.rows / size * options_.seq, size));
    if (sharded() && options_.reference) return fail("parallel.shard: all keeps no reference beside the weights");
    const int64_t rows = options_.rows / size, seq = options_.seq, of_norm = int64_t{8} * 2 * cuda::square_sections;
    if (options_.micro_batch > rows)
        return fail("micro_batch: {} rows of {} that a rank has", options_.micro_batch, rows);
    NIBBLE_TRY(const DeviceMemory memory, device_memory(device_.index));
    Status sized = Ok{};
    const int64_t of_shard = weights_.shard_bytes(ranks_->shards(), ranks_->shards().largest());
    const std::string share = size > 1 ? fmt::format(" (1/{})", size) : "";
    const auto sizes = [&](int64_t some, Recompute level) {
        TrainMemoryPlan plan{.micro_batch = some, .recompute = level};
        const int buffers = AccumulationPlan::make((rows + some - 1) / some).buffers;
        plan.items = {
            {"masters" + share, of_shard},
            {"states" + share, 2 * of_shard},
            {"gradients" + (sharded() ? share : ""), buffers * (sharded() ? of_shard : weights_.master_bytes())}};
        if (sharded()) {
            plan.items.push_back({"weights" + share, weights_.published_bytes(ranks_->shards(), ranks_->shards().largest())});
            plan.items.push_back({"weights of blocks in hand", weights_.slot_bytes()});
            plan.items.push_back({"gradients of blocks in hand", ShardedUnits::bytes(weights_, *ranks_)});
        } else {
            plan.items.push_back({"weights", weights_.published_bytes() + weights_.operand_bytes() +
                                                 DeviceWeights::staging_bytes});
        }
        auto pass = TrainPass::sizes(weights_, {some, seq, level}, device_);
        if (!pass.ok()) {
            sized = std::move(pass).error();
            return plan;
        }
        plan.items.insert(plan.items.end(), pass->begin(), pass->end());
        if (options_.reference)
            plan.items.push_back({"reference", reference_bytes() + passing_bytes + 2 * DeviceArena::alignment});
        plan.items.push_back({"norm", of_norm + 4 * some * seq + scalar_bytes});
        plan.items.push_back({"of other ranks", ranks_->bytes()});
        return plan;
    };
    // All ranks plan alike.
    int64_t free = memory.free;
    if (ranks_->group()) {
        RankBytes own;
        put_number(own, free);
        NIBBLE_TRY(const auto all, ranks_->group()->gather(std::move(own)));
        for (const RankBytes& part : all) free = std::min(free, RankReader(part).number());
    }
    // What the driver, work lists and rotary tables take beside.
    const int64_t beside = int64_t{1} << 29;
    NIBBLE_TRY(const int64_t most,
               most_rows(rows, options_.micro_batch, seq, TrainWeights::most_tokens(weights_.config())));
    auto plan = choose_memory_plan(most, options_.micro_batch, options_.recompute,
                                   std::max<int64_t>(free - beside, 0), sizes);
    NIBBLE_CHECK(std::move(sized));
    if (!plan.ok()) return std::move(plan).error();
    plan_ = *std::move(plan);
    const AccumulationPlan order = AccumulationPlan::make((rows + plan_.micro_batch - 1) / plan_.micro_batch);
    if (sharded())  // of the first micro-batch
        NIBBLE_CHECK(check_device_share(options_.train.precision, plan_.micro_batch * seq, size));
    NIBBLE_CHECK(
        weights_.load(order.buffers, options_.sharding, ranks_->shards(), ranks_->rank(), device_, stream_));
    if (sharded()) {
        NIBBLE_TRY(units_, ShardedUnits::create(weights_, *ranks_, trace_, device_, stream_));
    }
    NIBBLE_TRY(pass_, TrainPass::create(weights_, units_.get(), trace_, {plan_.micro_batch, seq, plan_.recompute}, device_, stream_, pool_));
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
    NIBBLE_TRY(norm_workspace_, ends_->allocate(of_norm));
    return reserve_host(rows * seq);
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

// Forward and back of all rows; the gradient ends in buffer result_, its norm in the scalars. Waits at the end.
Result<TrainStep> DeviceTrainer::run(std::span<const TrainBatch> batches, const RowObjective* objective) {
    TrainStep step;
    int64_t tokens = 0;
    for (const TrainBatch& b : batches) {
        NIBBLE_CHECK(check(b, config().vocab));
        tokens += b.size();
    }
    if (objective && ranks_->group()) return fail("an objective of rows is for one process");
    NIBBLE_TRY(const std::vector<MicroBatch> pieces, own_pieces(batches));
    for (const MicroBatch& m : cut_micro_batches(batches, plan_.micro_batch))
        for (size_t i = 0; i < m.labels().size(); ++i) step.weight += weight_of(m, i);
    if (!objective && !(step.weight > 0)) return fail("no label of the step has a weight above 0");
    const AccumulationPlan order = AccumulationPlan::make(std::ssize(pieces));
    if (order.buffers > weights_.gradient_buffers())
        return fail("a step of {} micro-batches of {} rows: {} were planned for", pieces.size(), plan_.micro_batch,
                    (options_.rows / ranks_->size() + plan_.micro_batch - 1) / plan_.micro_batch);
    NIBBLE_CHECK(use_device(device_.index));
    NIBBLE_CHECK(reserve_host(tokens));
    NIBBLE_TRY(const bool others, weights_.recipe().begin_step(step_, steps_, ranks_->rank() == 0, stream_));
    if (others) NIBBLE_CHECK(weights_.republish());
    if (!units_) NIBBLE_CHECK(weights_.recipe().draw(weights_.published(), stream_));
    auto* host = reinterpret_cast<float*>(landing_->data() + scalar_bytes);
    std::vector<float> slopes;
    for (size_t p = 0; p < pieces.size(); ++p) {
        const MicroBatch& m = pieces[p];
        float* gradient = weights_.gradient(order.pieces[p].target);
        slopes.assign(static_cast<size_t>(m.tokens()), 0.0f);
        NIBBLE_CHECK(pass_->prepare(m));
        NIBBLE_CHECK(pass_->forward(true));
        if (objective) {
            NIBBLE_CHECK(pass_->log_probs(log_probs_));
            NIBBLE_CHECK(copy_to_host(raw_bytes(host), raw_bytes(log_probs_), 4 * m.tokens(), stream_));
            NIBBLE_CHECK(stream_.synchronize());
            const auto seq = static_cast<size_t>(m.batch->seq);
            for (int64_t r = 0; r < m.rows; ++r) {
                double loss = 0;
                const size_t at = static_cast<size_t>(r) * seq;
                NIBBLE_CHECK((*objective)(m.first_row + r, std::span<const float>(host + at, seq),
                                          std::span(slopes).subspan(at, seq), loss));
                step.loss += loss;
            }
        } else {
            for (size_t i = 0; i < slopes.size(); ++i) slopes[i] = static_cast<float>(-weight_of(m, i) / step.weight);
        }
        NIBBLE_CHECK(pass_->set_slopes(slopes));
        NIBBLE_CHECK(pass_->backward(gradient, log_probs_));
        NIBBLE_CHECK(copy_to_host(raw_bytes(host), raw_bytes(log_probs_), 4 * m.tokens(), stream_));
        host += m.tokens();
        for (const auto& pair : order.pieces[p].adds) NIBBLE_CHECK(add(pair));
    }
    weights_.recipe().pause();
    NIBBLE_CHECK(mark("sums and norm"));
    for (const auto& pair : order.last) NIBBLE_CHECK(add(pair));
    result_ = order.result;
    if (units_) {
        sum_ = {weights_.gradient(result_), weights_.gradient(result_) + ranks_->elements()};
        NIBBLE_CHECK(units_->join());
    } else {
        NIBBLE_TRY(sum_, ranks_->add(weights_.gradient(result_), stream_));
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

// Waits for what was queued; loss and norm.
Result<TrainStep> DeviceTrainer::finish(TrainStep step, std::span<const TrainBatch> batches,
                                        const RowObjective* objective) {
    NIBBLE_CHECK(copy_to_host(landing_->data(), scalars_, scalar_bytes, stream_));
    NIBBLE_CHECK(ranks_->wait(stream_));
    NIBBLE_CHECK(trace_.land(stream_));
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
            if (m.labels()[i] >= 0) step.loss -= weight_of(m, i) * double{host[i]};
        host += m.tokens();
    }
    step.loss /= step.weight;
    return step;
}

Result<std::vector<MicroBatch>> DeviceTrainer::own_pieces(std::span<const TrainBatch> batches) const {
    std::vector<MicroBatch> pieces = cut_micro_batches(batches, plan_.micro_batch);
    if (!ranks_->group()) return pieces;
    NIBBLE_TRY(const std::vector<int> owner, ranks_->deal(std::ssize(pieces)));
    std::vector<MicroBatch> own;
    for (size_t p = 0; p < pieces.size(); ++p)
        if (owner[p] == ranks_->rank()) own.push_back(pieces[p]);
    return own;
}

Result<std::vector<float>> DeviceTrainer::of_all_pieces(std::span<const TrainBatch> batches, int64_t tokens) const {
    const auto* host = reinterpret_cast<const float*>(landing_->data() + scalar_bytes);
    std::vector<float> own(host, host + tokens), all;
    if (!ranks_->group()) return own;
    RankBytes bytes;
    put_numbers(bytes, own);
    NIBBLE_TRY(const auto from, ranks_->group()->gather(std::move(bytes)));
    std::vector<std::vector<float>> of_rank;
    for (const RankBytes& part : from) of_rank.push_back(RankReader(part).numbers<float>());
    const std::vector<MicroBatch> pieces = cut_micro_batches(batches, plan_.micro_batch);
    NIBBLE_TRY(const std::vector<int> owner, ranks_->deal(std::ssize(pieces)));
    std::vector<size_t> taken(of_rank.size());
    for (size_t p = 0; p < pieces.size(); ++p) {
        const auto r = static_cast<size_t>(owner[p]);
        const auto count = static_cast<size_t>(pieces[p].tokens());
        if (taken[r] + count > of_rank[r].size()) return fail("rank {} has other micro-batches", r);
        const auto first = of_rank[r].begin() + static_cast<ptrdiff_t>(taken[r]);
        all.insert(all.end(), first, first + static_cast<ptrdiff_t>(count));
        taken[r] += count;
    }
    return all;
}

// Nothing changes where the norm is not finite: the device sees that itself, so that nobody waits for it here.
Status DeviceTrainer::queue_update(double learning_rate) {
    const TrainOptimizer& o = options_.train.optimizer;
    const FlatLayout& flat = weights_.flat();
    auto* squares = reinterpret_cast<double*>(scalars_);
    auto* clip = reinterpret_cast<float*>(scalars_ + 8);
    NIBBLE_CHECK(mark("optimizer"));
    NIBBLE_CHECK(cuda::clip_factor(squares, o.clip, clip, stream_));
    const auto t = static_cast<double>(optimizer_steps_ + 1);
    cuda::AdamW a{.beta2 = static_cast<float>(o.beta2),
                  .rest1 = static_cast<float>(1 - o.beta1),
                  .rest2 = static_cast<float>(1 - o.beta2),
                  .epsilon = static_cast<float>(o.epsilon),
                  .rate = static_cast<float>(learning_rate / (1 - std::pow(o.beta1, t))),
                  .root = static_cast<float>(std::sqrt(1 - std::pow(o.beta2, t)))};
    for (const bool matrices : {true, false}) {
        const auto part = [&](const TrainWeights::Kept& kept) { return matrices ? kept.matrices : kept.vectors; };
        a.count = matrices ? ranks_->elements() : flat.vector_elements();
        a.keep = matrices ? static_cast<float>(1 - learning_rate * o.weight_decay) : 1.0f;
        a.decay = matrices && o.weight_decay != 0;
        a.master = part(weights_.master());
        a.m = part(weights_.m());
        a.v = part(weights_.v());
        a.gradient = matrices ? sum_.matrices : sum_.vectors;
        a.published = matrices ? weights_.published_shard() : weights_.published_vectors();
        a.clip = clip;
        if (a.count > 0) NIBBLE_CHECK(cuda::adamw_update(a, stream_));
    }
    NIBBLE_CHECK(weights_.recipe().end_step(clip, *ranks_, stream_));
    NIBBLE_CHECK(mark("weights for the next step"));
    if (!units_) NIBBLE_CHECK(ranks_->gather_published(weights_.published(), stream_));
    return weights_.republish();
}

Result<TrainStep> DeviceTrainer::step(std::span<const TrainBatch> batches, double learning_rate) {
    NIBBLE_TRY(TrainStep step, run(batches, nullptr));
    NIBBLE_CHECK(queue_update(learning_rate));
    NIBBLE_TRY(step, finish(step, batches, nullptr));
    return updated(step, learning_rate);
}

Result<TrainStep> DeviceTrainer::step(std::span<const TrainBatch> batches, const RowObjective& objective,
                                      double learning_rate) {
    NIBBLE_TRY(TrainStep step, run(batches, &objective));
    if (!std::isfinite(step.loss)) {  // of the objective: nothing may follow from it
        NIBBLE_TRY(step, finish(step, batches, &objective));
        return updated(step, learning_rate);
    }
    NIBBLE_CHECK(queue_update(learning_rate));
    NIBBLE_TRY(step, finish(step, batches, &objective));
    return updated(step, learning_rate);
}

Result<TrainStep> DeviceTrainer::updated(TrainStep step, double learning_rate) {
    step.learning_rate = learning_rate;
    ++step_;
    if (!std::isfinite(step.loss) || !std::isfinite(step.gradient_norm)) {
        if (!options_.train.skip_nonfinite)
            return fail("step {}: loss {}, gradient norm {}: not finite, nothing was changed", optimizer_steps_,
                        step.loss, step.gradient_norm);
        step.skipped = true;
        return step;
    }
    step.clip = clip_factor(step.gradient_norm, options_.train.optimizer.clip);
    ++optimizer_steps_;
    NIBBLE_TRY(const bool others, weights_.recipe().count_step(stream_));
    if (others) NIBBLE_CHECK(weights_.republish());
    return step;
}

Result<TrainStep> DeviceTrainer::backward(std::span<const TrainBatch> batches,
                                          std::vector<std::vector<float>>& gradients) {
    if (units_) return fail("parallel.shard: all leaves no gradient in one place");
    NIBBLE_TRY(TrainStep step, run(batches, nullptr));
    NIBBLE_TRY(step, finish(step, batches, nullptr));
    NIBBLE_CHECK(weights_.copy_from(weights_.gradient(result_), gradients));
    NIBBLE_CHECK(stream_.synchronize());
    return step;
}

Status DeviceTrainer::log_probs(const TrainBatch& batch, std::span<float> out) {
    NIBBLE_CHECK(check(batch, config().vocab));
    if (std::ssize(out) != batch.size()) return fail("{} log-probabilities of {} tokens", out.size(), batch.size());
    NIBBLE_CHECK(use_device(device_.index));
    NIBBLE_CHECK(reserve_host(batch.size()));
    auto* host = reinterpret_cast<float*>(landing_->data() + scalar_bytes);
    // Ranks that have no whole share (fewer rows than in a step) compute all of it.
    std::vector<MicroBatch> pieces = cut_micro_batches({&batch, 1}, plan_.micro_batch);
    const bool dealt = ranks_->group() && ranks_->deal(std::ssize(pieces)).ok();
    if (dealt) {
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
    if (dealt) {
        NIBBLE_TRY(const auto all, of_all_pieces({&batch, 1}, own));
        std::ranges::copy(all, out.begin());
    } else {
        std::memcpy(out.data(), landing_->data() + scalar_bytes, out.size_bytes());
    }
    for (size_t i = 0; i < out.size(); ++i)
        if (!std::isfinite(out[i])) return fail("lm_head: a logit of row {} is not finite", i);
    return Ok{};
}

double DeviceTrainer::flops(int64_t seq) const {
    return train_flops(weights_.outline().blocks, weights_.outline().head, seq);
}

Result<std::shared_ptr<const Checkpoint>> DeviceTrainer::trained() {
    NIBBLE_TRY(const TrainState now, state());
    for (size_t id = 0; id < parameters_->count(); ++id)
        std::ranges::copy(now.masters[id], parameters_->master(id).begin());
    parameters_->publish(pool_);
    return std::shared_ptr<const Checkpoint>(parameters_);
}

Result<Format> DeviceTrainer::codes_format(int64_t) {
    return fail("export: codes of training on a GPU are not built; quantize what the run exports in BF16");
}

Result<std::unique_ptr<TrainedCodes>> DeviceTrainer::trained_codes(int64_t steps) {
    NIBBLE_TRY(const Format format, codes_format(steps));
    return fail("export: {}", format_name(format));
}

Result<std::shared_ptr<const LanguageModel>> DeviceTrainer::serving() {
    if (units_) return fail("parallel.shard: all: no GPU has the whole model, so none serves it; use shard: states");
    NIBBLE_TRY(std::shared_ptr<const LanguageModel> model, DeviceModel::over(weights_.served(), device_, pool_));
    return model;
}

Result<TrainState> DeviceTrainer::state() {
    if (ranks_->group()) NIBBLE_CHECK(ranks_->group()->share({std::byte{1}}));
    TrainState state;
    NIBBLE_CHECK(collect(state));
    return state;
}

// The whole state, in rank 0.
Status DeviceTrainer::collect(TrainState& state) {
    NIBBLE_TRY(state, weights_.download());
    NIBBLE_TRY(state.recipe, weights_.recipe().state(stream_));
    state.optimizer_steps = optimizer_steps_;
    RankGroup* group = ranks_->group();
    if (!group) return Ok{};
    const auto of = [](TrainState& s, size_t id) {
        return std::array{&s.masters[id], &std::get<std::vector<float>>(s.m[id]),
                          &std::get<std::vector<float>>(s.v[id])};
    };
    std::vector<RankBytes> to(static_cast<size_t>(group->size()));
    for (size_t id = 0; group->rank() > 0 && id < parameters_->count(); ++id)
        NIBBLE_CHECK(weights_.owned(id, [&](int64_t first, int64_t at, int64_t count) -> Status {
            if (at >= weights_.flat().matrix_elements) return Ok{};  // rank 0 has it too
            put_number(to[0], static_cast<int64_t>(id));
            put_number(to[0], first);
            for (const std::vector<float>* values : of(state, id))
                put_numbers(to[0], std::span<const float>(*values).subspan(size_t(first), size_t(count)));
            return Ok{};
        }));
    for (RankBytes& bytes : to)
        if (!bytes.empty()) put_number(bytes, -1);
    NIBBLE_TRY(const auto from, group->exchange(std::move(to)));
    for (int r = 1; group->rank() == 0 && r < group->size(); ++r) {
        if (from[static_cast<size_t>(r)].empty()) continue;
        RankReader in(from[static_cast<size_t>(r)]);
        for (int64_t id = in.number(); id >= 0 && id < std::ssize(state.masters); id = in.number()) {
            const int64_t first = in.number();
            for (std::vector<float>* values : of(state, static_cast<size_t>(id))) {
                const auto part = in.numbers<float>();
                if (first + std::ssize(part) > std::ssize(*values)) return fail("rank {} has other parameters", r);
                std::ranges::copy(part, values->begin() + first);
            }
        }
    }
    return Ok{};
}

Status DeviceTrainer::sync() {
    RankGroup* group = ranks_->group();
    while (group) {  // rank 0 says `go on`, or asks for states
        NIBBLE_TRY(const RankBytes order, group->share({std::byte{0}}));
        if (order != RankBytes{std::byte{1}} || group->rank() == 0) return Ok{};
        TrainState own;
        NIBBLE_CHECK(collect(own));
    }
    return Ok{};
}

Result<bool> DeviceTrainer::any(bool mine) { return ranks_->group() ? ranks_->group()->any(mine) : Result<bool>(mine); }

Status DeviceTrainer::set_state(const StoredTrainState& state) {
    NIBBLE_CHECK(weights_.recipe().set_state(state.recipe, stream_));
    for (size_t id = 0; id < parameters_->count(); ++id) {
        const std::span<float> master = parameters_->master(id);
        if (!master.empty()) std::memcpy(master.data(), state.masters[id].data(), master.size_bytes());
    }
    parameters_->publish(pool_);
    NIBBLE_CHECK(weights_.upload(&state));
    optimizer_steps_ = state.optimizer_steps;
    return Ok{};
}

int64_t DeviceTrainer::reference_bytes() const {
    return 2 * weights_.flat().elements + 4 * weights_.flat().vector_elements();
}

// In pieces, through memory of one piece. first: the reference becomes what is there now.
Status DeviceTrainer::swap_reference(bool first) {
    std::byte* kept = reference_;
    const auto swap = [&](std::byte* now, int64_t size) -> Status {
        for (int64_t at = 0; at < size; at += passing_bytes) {
            const int64_t bytes = std::min(passing_bytes, size - at);
            NIBBLE_CHECK(copy_on_device(passing_, now + at, bytes, stream_));
            if (!first) NIBBLE_CHECK(copy_on_device(now + at, kept + at, bytes, stream_));
            NIBBLE_CHECK(copy_on_device(kept + at, passing_, bytes, stream_));
        }
        kept += size;
        return Ok{};
    };
    NIBBLE_CHECK(swap(weights_.published(), 2 * weights_.flat().elements));
    NIBBLE_CHECK(swap(raw_bytes(weights_.master().vectors), 4 * weights_.flat().vector_elements()));
    return first ? Status(Ok{}) : weights_.republish();
}

Status DeviceTrainer::reference_log_probs(std::span<const TrainBatch* const> rows, const OfRow& each) {
    if (!reference_) return fail("the trainer keeps no reference");
    NIBBLE_CHECK(use_device(device_.index));
    NIBBLE_CHECK(swap_reference());
    Status done = Ok{};
    for (size_t i = 0; done.ok() && i < rows.size(); ++i) {
        std::vector<float> of_row(rows[i]->tokens.size());
        done = log_probs(*rows[i], of_row);
        if (done.ok()) done = each(i, of_row);
    }
    NIBBLE_CHECK(swap_reference());
    return done;
}

std::vector<UnitLine> DeviceTrainer::table() const { return weights_.recipe().table(); }

std::vector<std::string> DeviceTrainer::notes() const {
    return {fmt::format("kernels: {}; gradients of activations BF16, of the residual stream and of parameters FP32",
                        device_.name),
            fmt::format("micro-batches of {} row{}, {}", plan_.micro_batch, plan_.micro_batch == 1 ? "" : "s",
                        plan_.recompute == Recompute::block ? "blocks computed again on the way back"
                                                            : "nothing computed again"),
            "memory: " + plan_.text()};
}

std::string DeviceTrainer::arithmetic() const { return fmt::format("cuda, micro-batches of {}", plan_.micro_batch); }

double DeviceTrainer::memory_gib() const { return static_cast<double>(plan_.total()) / (1 << 30); }

}  // namespace nibble
