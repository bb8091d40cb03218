#include "model/device/draft_state.h"
#include "model/device/model_deferred.h"

#include "base/checked.h"
#include "formats/minifloat.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstring>
#include <utility>

namespace nibble {
namespace {

constexpr int64_t usual_rows = 512;  // rows of a step for which memory is reserved at least, in addition to the weights

std::string gib(int64_t bytes) { return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30)); }

Status check_options(const ModelOptions& options) {
    if (options.compute == Compute::f32)
        return fail("--device cuda rounds to BF16 between operators: --compute f32 has no kernels there");
    if (!options.kernels.empty()) return fail("--kernels {} names kernels of the CPU, not of a GPU", options.kernels);
    if (options.sums != SumOrder::lanes) return fail("--sums tiles exists on the CPU only");
    return Ok{};
}

}  // namespace

Linear DeviceModel::head_of(const ModelConfig& config, const Head& head) {
    Linear l;
    const Linear& from = head.linear();
    l.name = config.head.ends_with(".weight") ? config.head.substr(0, config.head.size() - 7) : config.head;
    l.rows = from.rows, l.cols = from.cols, l.bias = from.bias;
    l.format = from.format, l.activation = from.activation, l.input_scale = from.input_scale;
    return l;
}

DeviceModel::DeviceModel(DeviceInfo device, Stream stream, ModelConfig config)
    : device_(std::move(device)), stream_(std::move(stream)), config_(std::move(config)), memory_(device_, stream_) {}

Result<DeviceModel::Outline> DeviceModel::open(const Checkpoint& checkpoint, const ModelOptions& options,
                                               const DeviceChoice& choice, ThreadPool& pool) {
    NIBBLE_CHECK(check_options(options));
    NIBBLE_TRY(DeviceInfo device, open_device(choice));
    NIBBLE_TRY(ModelConfig config, model_config(checkpoint));
    if (options.most_tokens > 0) choose_rope_factors(config, options.most_tokens);
    NIBBLE_CHECK(use_device(device.index));
    NIBBLE_CHECK(prepare_linears(device));
    NIBBLE_TRY(Stream stream, Stream::create(device.index));
    std::unique_ptr<DeviceModel> model(new DeviceModel(std::move(device), std::move(stream), std::move(config)));
    NIBBLE_TRY(Workspace host, Workspace::create(options.compute, options.kernels, pool));
    model->host_ = std::make_unique<Workspace>(std::move(host));
    NIBBLE_TRY(ModelParts parts, load_parts(model->config_, checkpoint, options, pool, WeightSource::Mode::outline));
    DeviceWeights plan = DeviceWeights::planner(checkpoint);
    plan.use_host(*model->host_);
    NIBBLE_CHECK(model->make_parts(parts, plan, options.stop_requested));
    return Outline{std::move(model), std::move(parts), plan.bytes()};
}

Result<std::unique_ptr<DeviceModel>> DeviceModel::load(std::shared_ptr<const Checkpoint> checkpoint,
                                                       const ModelOptions& options, const DeviceChoice& choice,
                                                       ThreadPool& pool) {
    NIBBLE_TRY(Outline outline, open(*checkpoint, options, choice, pool));
    std::unique_ptr<DeviceModel> model = std::move(outline.model);
    NIBBLE_CHECK(model->check_memory(outline.weight_bytes));
    NIBBLE_TRY(model->weights_,
               DeviceArena::create(model->device_.index, outline.weight_bytes + DeviceWeights::staging_bytes));
    NIBBLE_TRY(DeviceWeights weights, DeviceWeights::loader(*checkpoint, *model->weights_, model->stream_));
    weights.use_host(*model->host_);
    NIBBLE_CHECK(model->make_parts(outline.parts, weights, options.stop_requested));
    NIBBLE_CHECK(model->stream_.synchronize());
    model->w4a16_ = weights.w4a16();
    model->rounded_ = weights.rounded();
    NIBBLE_CHECK(model->make_fused_decode());
    return model;
}

Result<std::unique_ptr<DeviceModel>> DeviceModel::over(Weights weights, const DeviceInfo& device, ThreadPool& pool) {
    NIBBLE_CHECK(use_device(device.index));
    NIBBLE_CHECK(prepare_linears(device));
    NIBBLE_TRY(Stream stream, Stream::create(device.index));
    std::unique_ptr<DeviceModel> model(new DeviceModel(device, std::move(stream), std::move(weights.config)));
    NIBBLE_TRY(Workspace host, Workspace::create(Compute::bf16, {}, pool));
    model->host_ = std::make_unique<Workspace>(std::move(host));
    model->layers_ = std::move(weights.layers);
    for (const DeviceLayer& layer : model->layers_)
        if (const Rope* rope = layer.mixer->rope()) model->memory_.rotary().add(*rope);
    model->embedding_ = weights.embedding;
    model->norm_ = weights.norm;
    model->head_ = std::move(weights.head);
    model->w4a16_ = std::move(weights.w4a16);
    NIBBLE_CHECK(model->make_fused_decode());
    return model;
}

Status DeviceModel::make_fused_decode() {
    NIBBLE_TRY(fused_decode_, DeviceFusedDecode::make(layers_, config_.norm_eps, config_.hidden, device_));
    return Ok{};
}

Status DeviceModel::make_parts(const ModelParts& parts, DeviceWeights& weights,
                               const std::atomic<bool>* stop_requested) {
    layers_.clear();
    NIBBLE_TRY(embedding_, weights.embedding(parts.embedding, config_.vocab, config_.hidden, *host_));
    for (const Block& block : parts.blocks) {
        NIBBLE_CHECK(check_loading_stop(stop_requested));
        NIBBLE_TRY(DeviceLayer layer, DeviceLayer::make(config_, block, weights));
        if (const Rope* rope = layer.mixer->rope()) memory_.rotary().add(*rope);
        layers_.push_back(std::move(layer));
    }
    NIBBLE_TRY(norm_, weights.vector(parts.head.norm()));
    NIBBLE_TRY(norm_bias_, weights.vector(parts.head.last_norm().bias));
    NIBBLE_TRY(head_, weights.linear(head_of(config_, parts.head)));
    if (!parts.predictor) return Ok{};
    NIBBLE_TRY(predictor_, DevicePredictor::make(config_, *parts.predictor, weights));
    for (const DeviceLayer& layer : predictor_->layers())
        if (const Rope* rope = layer.mixer->rope()) memory_.rotary().add(*rope);
    draft_state_ = std::make_unique<DraftState>();
    return Ok{};
}

Status DeviceModel::check_memory(int64_t weight_bytes) const {
    NIBBLE_TRY(const DeviceMemory memory, device_memory(device_.index));
    const int64_t weights = weight_bytes + DeviceWeights::staging_bytes, step = scratch_bytes(usual_rows, 1);
    if (weights + step <= memory.free) return Ok{};
    return fail("the model needs {} on cuda:{} ({} for weights, {} for a step of {} tokens); {} of {} are free",
                gib(weights + step), device_.index, gib(weights), gib(step), usual_rows, gib(memory.free),
                gib(memory.total));
}

Result<std::unique_ptr<KvPool>> DeviceModel::make_pool(int64_t tokens, int64_t sequences) const {
    const auto memory = [&](int64_t bytes) -> Result<std::unique_ptr<StateMemory>> {
        if (!time_shared_) return device_state_memory(bytes, device_.index, stream_);
        NIBBLE_TRY(TimeSharedPart part, time_shared_->join(std::string(rollouts), bytes));
        return time_shared_state_memory(std::move(part), stream_);
    };
    return KvPool::create(states(), tokens, sequences, memory);
}

std::vector<StateLayout> DeviceModel::states() const {
    std::vector<StateLayout> layouts;
    for (const DeviceLayer& layer : layers_) layouts.push_back(layer.mixer->state());
    if (predictor_)
        for (const DeviceLayer& layer : predictor_->layers()) layouts.push_back(layer.mixer->state());
    return layouts;
}

// An eighth of the largest step's scratch memory is added for attention plans, products and graphs.
Result<int64_t> DeviceModel::free_bytes(int64_t rows, int64_t wanted) const {
    NIBBLE_TRY(const DeviceMemory memory, device_memory(device_.index));
    int64_t step = scratch_bytes(rows, wanted);
    const int64_t held = memory_.scratch_bytes();
    if (predictor_) step = std::max(step, draft_bytes(rows, wanted)) + 4 * (rows + wanted) * config_.hidden;
    return std::max<int64_t>(0, memory.free + held - step - step / 8 - (int64_t{1} << 29));
}

int64_t DeviceModel::scratch_bytes(int64_t rows, int64_t wanted) const {
    int64_t mixer = 0;
    for (const DeviceLayer& layer : layers_) mixer = std::max(mixer, layer.mixer->scratch_bytes(rows));
    if (fused_decode_) mixer = std::max(mixer, fused_decode_->scratch_bytes());
    const int64_t ends = wanted * (6 * config_.vocab + 2 * config_.hidden) + 2 * padded_rows(wanted) * config_.hidden +
                         head_.scratch_bytes(wanted);
    return (rows * 6 + padded_rows(rows) * 2 + 2) * config_.hidden + std::max(mixer, ends) +
           16 * DeviceArena::alignment;
}

Status DeviceModel::reserve(int64_t rows, int64_t wanted) const {
    NIBBLE_CHECK(memory_.reserve(scratch_bytes(rows, wanted) + batch_.attention_workspace(), rows));
    return memory_.reserve_products(w4a16_, std::array{rows, wanted});
}

Result<std::vector<Sequence*>> DeviceModel::sequences_of(const Batch& batch, std::vector<Sequence>& whole) const {
    std::vector<Sequence*> sequences;
    for (const Segment& s : batch.segments())
        if (s.sequence) sequences.push_back(s.sequence);
    const auto segments = batch.segments();
    if (!sequences.empty() && sequences.size() < segments.size())
        return fail("a batch on a GPU cannot mix whole texts and sequences");
    for (const Sequence* s : sequences)
        if (&s->pool() != &sequences[0]->pool()) return fail("the sequences of a batch belong to several pools");
    if (sequences.empty()) {
        int64_t tokens = 0;
        for (const Segment& s : segments) tokens += round_up(std::ssize(s.tokens), kv_page_tokens);
        const int64_t tables = std::ranges::count_if(states(), [](const auto& s) { return s.page_bytes > 0; });
        if (!texts_ || texts_->pages() < tokens / kv_page_tokens * tables ||
            texts_->sequences() < std::ssize(segments)) {
            texts_.reset();
            NIBBLE_TRY(texts_, make_pool(tokens, std::ssize(segments)));
        }
        whole.reserve(segments.size());
        for (size_t i = 0; i < segments.size(); ++i) whole.push_back(texts_->sequence());
        for (Sequence& s : whole) sequences.push_back(&s);
    }
    for (size_t i = 0; i < segments.size(); ++i) NIBBLE_CHECK(sequences[i]->reserve(std::ssize(segments[i].tokens)));
    return sequences;
}

Result<DeviceModel::DeviceLogits> DeviceModel::pass(const Batch& batch, std::span<const TokenRequest> requests,
                                                    std::span<const int64_t> carried, const Landing* landing,
                                                    std::vector<Sequence>& whole) const {
    for (const Segment& s : batch.segments())
        for (const int32_t token : s.tokens)
            if (token < 0 || token >= config_.vocab)
                return fail("token id {} is not in the vocabulary of {}", token, config_.vocab);
    NIBBLE_CHECK(use_device(device_.index));
    if (time_shared_) NIBBLE_CHECK(time_shared_->check(rollouts));
    if (!pinned_) {
        NIBBLE_TRY(pinned_, PinnedBuffer::create(pinned_bytes));
    }
    chosen_from_ = nullptr;
    NIBBLE_TRY(const std::vector<Sequence*> sequences, sequences_of(batch, whole));
    NIBBLE_CHECK(batch_.make(batch, sequences, layers_, requests, carried, device_, stream_));
    if (launched_ > 0)
        NIBBLE_CHECK(batch_.carry(tokens_in(landings_[static_cast<size_t>((launched_ - 1) % 2)]), stream_));
    return run(batch, landing);
}

Status DeviceModel::forward(const Batch& batch, std::span<float> logits, Observer* observer) const {
    if (observer) return fail("observers require a model on the CPU");
    NIBBLE_CHECK(check(batch, std::ssize(logits), config_.vocab));
    if (under_way() > 0) return fail("a step is under way");
    if (batch.segments().empty()) return Ok{};
    std::vector<Sequence> whole;
    NIBBLE_TRY(const DeviceLogits device_logits, pass(batch, {}, {}, nullptr, whole));
    NIBBLE_CHECK(fetch(batch, device_logits, logits));
    for (const Segment& s : batch.segments())
        if (s.sequence) s.sequence->advance(std::ssize(s.tokens));
    return Ok{};
}

Status DeviceModel::choose(const Batch& batch, std::span<const TokenRequest> requests,
                           std::span<ChosenToken> chosen) const {
    if (under_way() > 0) return fail("a step is under way");
    if (requests.size() != chosen.size())
        return fail("{} tokens are to be chosen for {} rows", requests.size(), chosen.size());
    if (batch.segments().empty()) return Ok{};
    NIBBLE_CHECK(launch(batch, requests, {}));
    return collect(chosen);
}

Status DeviceModel::launch(const Batch& batch, std::span<const TokenRequest> requests,
                           std::span<const int64_t> carried) const {
    NIBBLE_CHECK(check(batch, batch.wanted() * config_.vocab, config_.vocab));
    if (batch.segments().empty()) return fail("a step without tokens");
    if (std::ssize(requests) != batch.wanted())
        return fail("{} tokens are to be chosen for {} rows", requests.size(), batch.wanted());
    if (batch.wanted() * int64_t{sizeof(ChosenToken)} > landing_bytes)
        return fail("a step chooses {} tokens at most", landing_bytes / sizeof(ChosenToken));
    if (under_way() >= 2) return fail("two steps are under way");
    NIBBLE_CHECK(use_device(device_.index));
    while (landings_.size() < 2) {
        NIBBLE_TRY(PinnedBuffer memory, PinnedBuffer::create(flag_bytes() + landing_bytes));
        NIBBLE_TRY(Event done, Event::create());
        landings_.push_back({std::move(memory), std::move(done)});
    }
    const int64_t before = launched_ > 0 ? landings_[static_cast<size_t>((launched_ - 1) % 2)].wanted : 0;
    for (const int64_t row : carried)
        if (row >= before) return fail("the previous step has no row {}", row);
    if (!carried.empty() && std::ssize(carried) != std::ssize(batch.segments()))
        return fail("{} carried tokens for {} segments", carried.size(), batch.segments().size());
    Landing& landing = landings_[static_cast<size_t>(launched_ % 2)];
    std::vector<Sequence> whole;
    NIBBLE_TRY(landing.logits, pass(batch, requests, carried, &landing, whole));
    NIBBLE_CHECK(landing.done.record(stream_));
    landing.wanted = batch.wanted();
    ++launched_;
    for (const Segment& s : batch.segments())
        if (s.sequence) s.sequence->advance(std::ssize(s.tokens));
    return Ok{};
}

Status DeviceModel::collect(std::span<ChosenToken> chosen) const {
    if (under_way() == 0) return fail("no step is under way");
    const Landing& landing = landings_[static_cast<size_t>(collected_++ % 2)];
    if (std::ssize(chosen) != landing.wanted)
        return fail("the step has {} tokens, not {}", landing.wanted, chosen.size());
    NIBBLE_CHECK(landing.done.synchronize());
    // A NaN in any block reaches only the logits of its own rows, which are marked one by one (id -2).
    if (!chosen.empty()) std::memcpy(chosen.data(), tokens_in(landing), chosen.size_bytes());
    if (under_way() > 0) return Ok{};  // its logits are being overwritten by the next launch
    chosen_from_ = reinterpret_cast<const float*>(landing.logits.data);
    chosen_rows_ = landing.wanted;
    return Ok{};
}

Status DeviceModel::logits_of(int64_t wanted_row, std::span<float> logits) const {
    if (!chosen_from_ || wanted_row < 0 || wanted_row >= chosen_rows_ || std::ssize(logits) != config_.vocab)
        return fail("the last step kept no logits of row {}, or the buffer of {} has the wrong size", wanted_row,
                    logits.size());
    const int64_t bytes = 4 * config_.vocab;
    NIBBLE_CHECK(use_device(device_.index));
    NIBBLE_CHECK(copy_to_host(pinned_->data(),
                              reinterpret_cast<const std::byte*>(chosen_from_ + wanted_row * config_.vocab), bytes,
                              stream_));
    NIBBLE_CHECK(stream_.synchronize());
    std::memcpy(logits.data(), pinned_->data(), static_cast<size_t>(bytes));
    return Ok{};
}

int64_t DeviceModel::flag_bytes() const { return round_up<int64_t>(4 * std::ssize(layers_), 256); }

// Copies logits as BF16, if they are BF16, in pieces through page-locked memory.
Status DeviceModel::fetch(const Batch& batch, const DeviceLogits& from, std::span<float> logits) const {
    const int64_t flags = flag_bytes(), size = from.narrow ? 2 : 4;
    const int64_t n = std::ssize(logits), most = (pinned_bytes - flags) / size;
    std::byte* const host = pinned_->data() + flags;
    NIBBLE_CHECK(copy_to_host(pinned_->data(), reinterpret_cast<const std::byte*>(batch_.nonfinite()),
                              4 * std::ssize(layers_), stream_));
    for (int64_t at = 0; at < n || at == 0; at += most) {
        const int64_t count = std::min(most, n - at);
        if (count > 0) NIBBLE_CHECK(copy_to_host(host, from.data + at * size, count * size, stream_));
        NIBBLE_CHECK(stream_.synchronize());
        if (at == 0) NIBBLE_CHECK(check_rows(batch));
        constexpr int64_t piece = 1 << 17;
        std::atomic<int64_t> bad = count;
        host_->pool->parallel_for((count + piece - 1) / piece, [&](int64_t i) {
            const int64_t begin = i * piece, end = std::min(count, begin + piece);
            float* to = logits.data() + at;
            if (from.narrow)
                for (int64_t j = begin; j < end; ++j) to[j] = bf16_to_float(reinterpret_cast<const uint16_t*>(host)[j]);
            else
                std::memcpy(to + begin, host + 4 * begin, static_cast<size_t>(4 * (end - begin)));
            const int64_t first = host_->elementwise->first_nonfinite(to + begin, end - begin);
            if (first < 0) return;
            for (int64_t least = bad; begin + first < least && !bad.compare_exchange_weak(least, begin + first);) {
            }
        });
        if (bad < count)
            return fail("lm_head: {} in the logits of wanted row {}", logits[size_t(at + bad)],
                        (at + bad) / config_.vocab);
    }
    return Ok{};
}

// Returns an error for the first block whose sum holds a NaN or infinity.
Status DeviceModel::check_rows(const Batch& batch) const {
    const auto* rows = reinterpret_cast<const int32_t*>(pinned_->data());
    for (size_t i = 0; i < layers_.size(); ++i)
        if (rows[i] != INT_MAX) return nonfinite(layers_[i].config, batch, rows[i], "NaN or infinity");
    return Ok{};
}

Result<DeviceModel::DeviceLogits> DeviceModel::run(const Batch& batch, const Landing* landing) const {
    const DeviceBatchShape shape = batch_.shape();
    NIBBLE_CHECK(memory_.reserve_rotary(shape.most_tokens, *host_));
    NIBBLE_CHECK(reserve(shape.rows, batch.wanted()));
    if (predictor_) {
        NIBBLE_CHECK(reserve_states(draft_state_->of_model, shape.rows));
        draft_state_->of_model.rows = shape.rows;
    }
    DeviceStep step = memory_.step();
    batch_.describe(step);
    // Decoding steps (one token per sequence) repeat the same launches, so they are captured as graphs.
    if (std::ranges::any_of(layers_, [](const DeviceLayer& layer) { return layer.mixer->waits(); }))
        return queue(step, batch.wanted(), landing);
    if (shape.rows != shape.segments || batch.wanted() != shape.rows || !batch.segments()[0].sequence)
        return queue(step, batch.wanted(), landing);
    const GraphKey key{shape.rows,
                       shape.pitch,
                       step.page_stride,
                       step.pages,
                       batch_.base(),
                       step.rotary.empty() ? nullptr : step.rotary[0].second.cos,
                       landing ? landing->memory.data() : nullptr,
                       batch_.scored()};
    if (graphs_moves_ != memory_.moves()) graphs_.clear(), graphs_moves_ = memory_.moves();
    auto graph = graphs_.find(key);
    if (graph == graphs_.end()) {
        DeviceLogits logits;
        NIBBLE_TRY(Graph captured, Graph::capture(stream_, [&]() -> Status {
                       NIBBLE_TRY(logits, queue(step, batch.wanted(), landing));
                       return Ok{};
                   }));
        if (graphs_.size() >= most_graphs) {
            NIBBLE_CHECK(stream_.synchronize());  // one of the graphs may be running
            graphs_.clear();
        }
        graph = graphs_.emplace(key, std::pair(std::move(captured), logits)).first;
    }
    NIBBLE_CHECK(graph->second.first.launch(stream_));
    return graph->second.second;
}

Result<cuda::AddNorm> DeviceModel::queue_blocks(std::byte* x, DeviceStep& step) const {
    const int64_t rows = step.rows, hidden = config_.hidden;
    step.embedding = embedding_;
    NIBBLE_TRY(std::byte * h, step.scratch.allocate(2 * rows * hidden));
    NIBBLE_TRY(float* y, step.scratch.allocate_array<float>(rows * hidden));
    // one-row steps alternate between `h` and this buffer
    NIBBLE_TRY(std::byte * other, step.scratch.allocate(rows == 1 ? 2 * hidden : 0));
    // Without overlap: kernels with recurrent states read states and segments before they wait for the previous kernel,
    // which is safe if a step begins with a kernel that waits for all earlier work and empties the caches.
    NIBBLE_CHECK(cuda::embed(embedding_, step.tokens, rows, hidden, h, false, stream_));
    return queue_layers(layers_,
                        {.hidden = hidden,
                         .eps = config_.norm_eps,
                         .centered = config_.layer_norm,
                         .h = h,
                         .other = rows == 1 ? other : nullptr,
                         .x = x,
                         .y = y,
                         .nonfinite = batch_.nonfinite()},
                        fused_decode_ ? &*fused_decode_ : nullptr, step);
}

cuda::AddNorm DeviceModel::last_norm(int64_t rows, std::byte* h, const cuda::RowsOut& out) const {
    return {.tokens = rows,
            .width = config_.hidden,
            .h = h,
            .weight = norm_,
            .bias = norm_bias_,
            .eps = config_.norm_eps,
            .centered = config_.layer_norm,
            .out = out};
}

Status DeviceModel::queue_logits(const cuda::RowsOut& from, int64_t rows, float* logits, DeviceStep& step) const {
    NIBBLE_CHECK(head_.forward({.x = from.data, .ordered = !from.row_major()}, rows, logits, config_.vocab, step));
    if (config_.logit_scale == 1.0f && config_.logit_cap == 0) return Ok{};
    return cuda::round_rows(logits, rows * config_.vocab, step.overlap, stream_,
                            {config_.logit_scale, config_.logit_cap});
}

// Allocates in the same order for every batch of a shape, so that graphs stay valid.
Result<DeviceModel::DeviceLogits> DeviceModel::queue(DeviceStep& step, int64_t wanted, const Landing* landing) const {
    const int64_t rows = step.rows, hidden = config_.hidden;
    NIBBLE_TRY(std::byte * x, step.scratch.allocate(2 * padded_rows(rows) * hidden));
    NIBBLE_TRY(cuda::AddNorm norm, queue_blocks(x, step));
    cuda::RowsOut to;
    if (wanted > 0) {
        NIBBLE_TRY(const InputPlan plan, head_.plan(wanted, step, true));
        to = plan.order;
    }
    to.data = x;
    norm.out = to;
    const auto keep_states = [&] {
        return cuda::add_norm(last_norm(rows, norm.h, {draft_state_->of_model.data}), step.overlap, stream_);
    };
    if (wanted == rows) {
        norm.weight = norm_, norm.bias = norm_bias_;
        NIBBLE_CHECK(cuda::add_norm(norm, step.overlap, stream_));
        if (predictor_) NIBBLE_CHECK(keep_states());
    } else {
        norm.weight = nullptr;
        norm.out = {};
        NIBBLE_CHECK(cuda::add_norm(norm, step.overlap, stream_));
        if (predictor_) NIBBLE_CHECK(keep_states());
        if (wanted == 0) {
            if (landing) NIBBLE_CHECK(queue_choice(step, nullptr, 0, *landing));
            return DeviceLogits{};
        }
        NIBBLE_TRY(std::byte * some, step.scratch.allocate(2 * wanted * hidden));
        NIBBLE_TRY(to.data, step.scratch.allocate(2 * padded_rows(wanted) * hidden));
        NIBBLE_CHECK(cuda::embed(norm.h, batch_.wanted_rows(), wanted, hidden, some, step.overlap, stream_));
        NIBBLE_CHECK(cuda::add_norm(last_norm(wanted, some, to), step.overlap, stream_));
    }
    NIBBLE_TRY(float* logits, step.scratch.allocate_array<float>(wanted * config_.vocab));
    NIBBLE_CHECK(queue_logits(to, wanted, logits, step));
    if (landing) {
        NIBBLE_CHECK(queue_choice(step, logits, wanted, *landing));
        return DeviceLogits{.data = reinterpret_cast<const std::byte*>(logits)};
    }
    DeviceLogits out{.data = reinterpret_cast<const std::byte*>(logits), .narrow = config_.vocab % 8 == 0};
    if (!out.narrow) {
        NIBBLE_CHECK(cuda::round_rows(logits, wanted * config_.vocab, step.overlap, stream_));
        return out;
    }
    NIBBLE_TRY(std::byte * narrow, step.scratch.allocate(2 * wanted * config_.vocab));
    NIBBLE_CHECK(cuda::to_rows(logits, 0, wanted, config_.vocab, {narrow}, step.overlap, stream_));
    out.data = narrow;
    return out;
}

// The kernel writes tokens directly to host memory.
Status DeviceModel::queue_choice(DeviceStep& step, float* logits, int64_t wanted, const Landing& landing) const {
    if (wanted > 0)
        return cuda::sample({.rows = wanted,
                             .width = config_.vocab,
                             .logits = logits,
                             .requests = batch_.requests(),
                             .seen = batch_.seen(),
                             .scored = batch_.scored(),
                             .out = tokens_in(landing),
                             .words = batch_.nonfinite(),
                             .words_out = reinterpret_cast<int32_t*>(landing.memory.data()),
                             .word_count = std::ssize(layers_)},
                            step.overlap, stream_);
    return copy_to_host(landing.memory.data(), reinterpret_cast<const std::byte*>(batch_.nonfinite()),
                        4 * std::ssize(layers_), stream_);
}

}  // namespace nibble
