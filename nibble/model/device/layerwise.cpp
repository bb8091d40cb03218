#include "model/device/layerwise.h"

#include "base/checked.h"
#include "formats/minifloat.h"
#include "kernels/observe_cuda.h"

#include <algorithm>
#include <array>
#include <climits>

namespace nibble {
namespace {

constexpr int64_t logits_bytes = int64_t{1} << 29;  // bytes of logits of each of the two models in a divergence

std::string gib_text(int64_t bytes) { return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30)); }
std::byte* bytes_of(void* p) { return static_cast<std::byte*>(p); }

const Rope* rope_of(const MixerConfig& mixer) {
    if (const auto* a = std::get_if<AttentionConfig>(&mixer)) return &a->rope;
    if (const auto* a = std::get_if<LatentAttentionConfig>(&mixer)) return &a->rope;
    if (const auto* all = std::get_if<ParallelConfig>(&mixer))
        for (const Branch& branch : all->branches)
            if (const Rope* rope = rope_of(branch.mixer)) return rope;
    return nullptr;
}

// Rejects blocks that read what other blocks leave, because blocks run one after the other over all texts.
Status check_alone(const BlockConfig& block) {
    const auto* a = std::get_if<AttentionConfig>(&block.mixer);
    if ((a && a->kv_block >= 0) || std::holds_alternative<PerLayerInputConfig>(block.mixer))
        return fail("{}: a pass block by block on --device cuda does not support {}; use --device cpu", block.prefix,
                    a ? "keys and values that layers share" : "per-layer embeddings");
    return Ok{};
}

// Names the tensor that DeviceWeights reads: the embedding's for a tied head.
Linear named(const Linear& from, const std::string& tensor) {
    Linear l;
    l.name = tensor.ends_with(".weight") ? tensor.substr(0, tensor.size() - 7) : tensor;
    l.rows = from.rows, l.cols = from.cols, l.bias = from.bias;
    l.format = from.format, l.activation = from.activation, l.input_scale = from.input_scale;
    return l;
}

int64_t rows_together(int64_t vocab) { return std::clamp<int64_t>(logits_bytes / (4 * vocab) / 64 * 64, 64, 4096); }

}  // namespace

DeviceLayerwise::DeviceLayerwise(const Checkpoint& checkpoint, std::span<const std::vector<int32_t>> texts,
                                 DeviceInfo device, Stream stream, ModelConfig config, Workspace host, ThreadPool& pool)
    : checkpoint_(&checkpoint),
      device_(std::move(device)),
      stream_(std::move(stream)),
      config_(std::move(config)),
      host_(std::move(host)),
      pool_(&pool),
      texts_(texts),
      memory_(device_, stream_) {}

Result<std::unique_ptr<DeviceLayerwise>> DeviceLayerwise::create(const Checkpoint& checkpoint,
                                                                 std::span<const std::vector<int32_t>> texts,
                                                                 const DeviceChoice& choice, const Options& options,
                                                                 ThreadPool& pool) {
    NIBBLE_TRY(DeviceInfo device, open_device(choice));
    NIBBLE_TRY(ModelConfig config, model_config(checkpoint));
    NIBBLE_CHECK(use_device(device.index));
    NIBBLE_CHECK(prepare_linears(device));
    NIBBLE_TRY(Stream stream, Stream::create(device.index));
    NIBBLE_TRY(Workspace host, Workspace::create(Compute::bf16, {}, pool));
    std::unique_ptr<DeviceLayerwise> layerwise(new DeviceLayerwise(
        checkpoint, texts, std::move(device), std::move(stream), std::move(config), std::move(host), pool));
    for (const auto& text : texts) {
        for (const int32_t token : text)
            if (token < 0 || token >= layerwise->config_.vocab)
                return fail("token id {} is not in the vocabulary of {}", token, layerwise->config_.vocab);
        layerwise->tokens_ += std::ssize(text);
        layerwise->longest_ = std::max(layerwise->longest_, std::ssize(text));
    }
    layerwise->batches_ = whole_batches(texts, options.batch_tokens);
    for (const BatchPiece& piece : layerwise->batches_) {
        int64_t tokens = 0;
        for (const Segment& s : piece.batch.segments()) tokens += round_up(std::ssize(s.tokens), kv_page_tokens);
        layerwise->most_rows_ = std::max(layerwise->most_rows_, piece.batch.rows());
        layerwise->pool_tokens_ = std::max(layerwise->pool_tokens_, tokens);
        layerwise->pool_sequences_ = std::max<int64_t>(layerwise->pool_sequences_, std::ssize(piece.batch.segments()));
    }
    for (const BlockConfig& block : layerwise->config_.blocks) NIBBLE_CHECK(check_alone(block));
    for (const BlockConfig& block : layerwise->config_.blocks)
        if (const Rope* rope = rope_of(block.mixer); rope && rope->dims > 0) layerwise->memory_.rotary().add(*rope);
    NIBBLE_CHECK(layerwise->check_memory(options));
    NIBBLE_CHECK(layerwise->memory_.reserve_rotary(layerwise->longest_, layerwise->host_));
    return layerwise;
}

// Observers and heads allocate additional memory themselves.
Status DeviceLayerwise::check_memory(const Options& options) {
    NIBBLE_TRY(const DeviceMemory memory, device_memory(device_.index));
    const int64_t streams = options.streams * tokens_ * config_.hidden * 2;
    int64_t largest = 0, all = 0, batch = 0;
    DeviceWeights plan = DeviceWeights::planner(*checkpoint_);
    for (size_t b = 0; b < config_.blocks.size(); ++b) {
        NIBBLE_TRY(const std::vector<Block> outline, outlines(*checkpoint_, b, 1, false));
        DeviceLayers layers;
        NIBBLE_CHECK(make_layers(outline, plan, layers));
        largest = std::max(largest, plan.bytes() - all);
        all = plan.bytes();
        const DeviceMixer& mixer = *layers.layers_[0].mixer;
        const StateLayout state = mixer.state();
        batch = std::max(batch, scratch_bytes(mixer, most_rows_) + pool_tokens_ / kv_page_tokens * state.page_bytes +
                                    pool_sequences_ * state.floats * 4);
    }
    const int64_t weights = (options.all_blocks ? all + largest : largest) + 2 * DeviceWeights::staging_bytes;
    if (streams + weights + batch <= memory.free) return Ok{};
    return fail(
        "{} tokens need {} on cuda:{} ({} for residual streams, {} for the weights of {}, {} for a batch of {} rows); "
        "{} of {} are free",
        tokens_, gib_text(streams + weights + batch), device_.index, gib_text(streams), gib_text(weights),
        options.all_blocks ? "all blocks" : "a block", gib_text(batch), most_rows_, gib_text(memory.free),
        gib_text(memory.total));
}

Result<DeviceStreams> DeviceLayerwise::embed() {
    DeviceStreams x;
    const int64_t hidden = config_.hidden;
    NIBBLE_TRY(x.memory_, DeviceArena::create(device_.index, std::max<int64_t>(tokens_ * hidden * 2, 1)));
    NIBBLE_TRY(x.data_, x.memory_->allocate(tokens_ * hidden * 2));
    WeightSource ends(*checkpoint_, weights(false), *pool_, WeightSource::Mode::outline);
    NIBBLE_TRY(const Embedding embedding, Embedding::load(config_, ends));
    std::vector<float> rows;
    std::vector<uint16_t> narrow;
    int64_t at = 0;
    for (const std::vector<int32_t>& text : texts_) {
        const auto n = static_cast<int64_t>(text.size()) * hidden;
        rows.resize(static_cast<size_t>(n)), narrow.resize(rows.size());
        NIBBLE_CHECK(embedding.forward(text, rows.data(), host_));
        for (size_t i = 0; i < rows.size(); ++i) narrow[i] = bf16_from_float(rows[i]);
        NIBBLE_CHECK(copy_to_device(x.data_ + at * 2, bytes_of(narrow.data()), 2 * n, stream_));
        NIBBLE_CHECK(stream_.synchronize());
        at += n;
    }
    return x;
}

Result<DeviceStreams> DeviceLayerwise::copy(const DeviceStreams& from) {
    DeviceStreams x;
    NIBBLE_TRY(x.memory_, DeviceArena::create(device_.index, tokens_ * config_.hidden * 2));
    NIBBLE_TRY(x.data_, x.memory_->allocate(tokens_ * config_.hidden * 2));
    NIBBLE_CHECK(copy(from, x));
    return x;
}

Status DeviceLayerwise::copy(const DeviceStreams& from, DeviceStreams& to) {
    return copy_on_device(to.data_, from.data_, tokens_ * config_.hidden * 2, stream_);
}

Result<std::vector<Block>> DeviceLayerwise::outlines(const Checkpoint& from, size_t first, size_t count,
                                                     bool quantize_inputs) const {
    WeightSource source(from, weights(quantize_inputs), *pool_, WeightSource::Mode::outline);
    std::vector<Block> blocks;
    for (size_t b = first; b < first + count; ++b) {
        NIBBLE_TRY(Block block, Block::load(config_, config_.blocks[b], source));
        blocks.push_back(std::move(block));
    }
    return blocks;
}

Status DeviceLayerwise::make_layers(std::span<const Block> outlines, DeviceWeights& weights,
                                    DeviceLayers& layers) const {
    layers.layers_.clear();
    for (const Block& block : outlines) {
        NIBBLE_TRY(DeviceLayer layer, DeviceLayer::make(config_, block, weights));
        layers.layers_.push_back(std::move(layer));
    }
    return Ok{};
}

Result<DeviceLayers> DeviceLayerwise::load(const Checkpoint& from, size_t first, size_t count, bool quantize_inputs) {
    NIBBLE_TRY(const std::vector<Block> blocks, outlines(from, first, count, quantize_inputs));
    DeviceLayers layers;
    layers.first_ = first;
    DeviceWeights plan = DeviceWeights::planner(from);
    NIBBLE_CHECK(make_layers(blocks, plan, layers));
    NIBBLE_TRY(layers.weights_, DeviceArena::create(device_.index, plan.bytes() + DeviceWeights::staging_bytes));
    NIBBLE_TRY(DeviceWeights weights, DeviceWeights::loader(from, *layers.weights_, stream_));
    NIBBLE_CHECK(make_layers(blocks, weights, layers));
    NIBBLE_CHECK(stream_.synchronize());
    layers.w4a16_ = weights.w4a16();
    rounded_.add(weights.rounded());
    return layers;
}

Result<DeviceHead> DeviceLayerwise::load_head(const Checkpoint& from, bool quantize_inputs) {
    WeightSource source(from, weights(quantize_inputs), *pool_, WeightSource::Mode::outline);
    NIBBLE_TRY(const Head outline, Head::load(config_, source));
    const Linear linear = named(outline.linear(), config_.head);
    DeviceHead head;
    DeviceWeights plan = DeviceWeights::planner(from);
    const auto make = [&](DeviceWeights& weights) -> Status {
        NIBBLE_TRY(head.norm_, weights.vector(outline.norm()));
        NIBBLE_TRY(head.norm_bias_, weights.vector(outline.last_norm().bias));
        NIBBLE_TRY(head.linear_, weights.linear(linear));
        return Ok{};
    };
    NIBBLE_CHECK(make(plan));
    NIBBLE_TRY(head.weights_, DeviceArena::create(device_.index, plan.bytes() + DeviceWeights::staging_bytes));
    NIBBLE_TRY(DeviceWeights weights, DeviceWeights::loader(from, *head.weights_, stream_));
    NIBBLE_CHECK(make(weights));
    NIBBLE_CHECK(stream_.synchronize());
    rounded_.add(weights.rounded());
    return head;
}

Result<KvPool*> DeviceLayerwise::pool_for(const StateLayout& layout) {
    for (const auto& [kind, pool] : pools_)
        if (kind.page_bytes == layout.page_bytes && kind.window == layout.window && kind.floats == layout.floats)
            return pool.get();
    NIBBLE_TRY(auto pool, KvPool::create({layout}, pool_tokens_, pool_sequences_, [&](int64_t bytes) {
                   return device_state_memory(bytes, device_.index, stream_);
               }));
    pools_.emplace_back(layout, std::move(pool));
    return pools_.back().second.get();
}

int64_t DeviceLayerwise::scratch_bytes(const DeviceMixer& mixer, int64_t rows) const {
    return (4 * rows + 2 * padded_rows(rows)) * config_.hidden + mixer.scratch_bytes(rows) + 4 * DeviceArena::alignment;
}

Status DeviceLayerwise::forward(const DeviceLayers& layers, size_t index, DeviceStreams& x, DeviceObserver* observer,
                                const std::function<Status(int64_t rows)>& each) {
    NIBBLE_CHECK(use_device(device_.index));
    for (const BatchPiece& piece : batches_) {
        NIBBLE_CHECK(run(layers, index - layers.first_, piece, x, observer));
        if (each) NIBBLE_CHECK(each(piece.batch.rows()));
    }
    return Ok{};
}

Status DeviceLayerwise::run(const DeviceLayers& layers, size_t place, const BatchPiece& piece, DeviceStreams& x,
                            DeviceObserver* observer) {
    const std::span<const DeviceLayer> one(&layers.layers_[place], 1);
    const DeviceLayer& layer = one[0];
    const Batch& batch = piece.batch;
    const int64_t rows = batch.rows(), hidden = config_.hidden;
    NIBBLE_TRY(KvPool * pool, pool_for(layer.mixer->state()));
    std::vector<Sequence> texts;
    std::vector<Sequence*> sequences;
    texts.reserve(batch.segments().size());
    for (const Segment& s : batch.segments()) {
        texts.push_back(pool->sequence());
        NIBBLE_CHECK(texts.back().reserve(std::ssize(s.tokens)));
        sequences.push_back(&texts.back());
    }
    NIBBLE_CHECK(batch_.make(batch, sequences, one, {}, {}, device_, stream_));
    NIBBLE_CHECK(memory_.reserve(scratch_bytes(*layer.mixer, rows) + batch_.attention_workspace(), rows));
    NIBBLE_CHECK(memory_.reserve_products(layers.w4a16_, std::array{rows}));
    DeviceStep s = memory_.step();
    batch_.describe(s);
    s.observer = observer;
    s.overlap = false;  // see DeviceModel::queue_blocks
    NIBBLE_TRY(std::byte * in, s.scratch.allocate(2 * padded_rows(rows) * hidden));
    NIBBLE_TRY(float* out, s.scratch.allocate_array<float>(rows * hidden));
    NIBBLE_TRY(const cuda::AddNorm sum, queue_layers(one,
                                                     {.hidden = hidden,
                                                      .eps = config_.norm_eps,
                                                      .centered = config_.layer_norm,
                                                      .h = x.data_ + piece.row * hidden * 2,
                                                      .x = in,
                                                      .y = out,
                                                      .nonfinite = batch_.nonfinite()},
                                                     nullptr, s));
    NIBBLE_CHECK(cuda::add_norm(sum, s.overlap, stream_));
    int32_t row = INT_MAX;
    NIBBLE_CHECK(copy_to_host(bytes_of(&row), bytes_of(batch_.nonfinite()), 4, stream_));
    NIBBLE_CHECK(stream_.synchronize());
    if (row != INT_MAX) return nonfinite(layer.config, batch, row, "NaN or infinity");
    return Ok{};
}

Status DeviceLayerwise::show_head(const Checkpoint& from, const DeviceStreams& x, DeviceObserver& observer) {
    WeightSource source(from, weights(false), *pool_, WeightSource::Mode::outline);
    NIBBLE_TRY(const Head outline, Head::load(config_, source));
    const std::vector<std::string> names{outline.linear().name};
    const int64_t hidden = config_.hidden, most = std::min<int64_t>(tokens_, 4096);
    const std::span<const float> bias_values = outline.last_norm().bias;
    const auto norm_bytes = static_cast<int64_t>(outline.norm().size_bytes());
    NIBBLE_CHECK(memory_.reserve(most * hidden * 2 + 2 * norm_bytes + 4 * DeviceArena::alignment, most));
    DeviceStep s = memory_.step();
    NIBBLE_TRY(float* norm, s.scratch.allocate_array<float>(hidden));
    NIBBLE_TRY(float* bias, s.scratch.allocate_array<float>(hidden));
    NIBBLE_TRY(std::byte * in, s.scratch.allocate(most * hidden * 2));
    NIBBLE_CHECK(
        copy_to_device(bytes_of(norm), bytes_of(const_cast<float*>(outline.norm().data())), norm_bytes, stream_));
    if (!bias_values.empty())
        NIBBLE_CHECK(
            copy_to_device(bytes_of(bias), bytes_of(const_cast<float*>(bias_values.data())), norm_bytes, stream_));
    for (int64_t at = 0; at < tokens_; at += most) {
        const int64_t rows = std::min(most, tokens_ - at);
        NIBBLE_CHECK(cuda::add_norm({.tokens = rows,
                                     .width = hidden,
                                     .h = x.data_ + at * hidden * 2,
                                     .weight = norm,
                                     .bias = bias_values.empty() ? nullptr : bias,
                                     .eps = config_.norm_eps,
                                     .centered = config_.layer_norm,
                                     .out = {in}},
                                    false, stream_));
        NIBBLE_CHECK(observer.input(names, in, rows, hidden, stream_));
    }
    return stream_.synchronize();
}

Status DeviceLayerwise::logits(const DeviceHead& head, const DeviceStreams& x, int64_t row, int64_t rows, float* out,
                               DeviceStep& s) {
    const DeviceScope scope(s);
    NIBBLE_TRY(std::byte * in, s.scratch.allocate(2 * padded_rows(rows) * config_.hidden));
    NIBBLE_TRY(const InputPlan plan, head.linear_.plan(rows, s, true));
    cuda::RowsOut to = plan.order;
    to.data = in;
    NIBBLE_CHECK(cuda::add_norm({.tokens = rows,
                                 .width = config_.hidden,
                                 .h = x.data_ + row * config_.hidden * 2,
                                 .weight = head.norm_,
                                 .bias = head.norm_bias_,
                                 .eps = config_.norm_eps,
                                 .centered = config_.layer_norm,
                                 .out = to},
                                s.overlap, stream_));
    NIBBLE_CHECK(head.linear_.forward({.x = in, .ordered = !to.row_major()}, rows, out, config_.vocab, s));
    return cuda::round_rows(out, rows * config_.vocab, s.overlap, stream_, {config_.logit_scale, config_.logit_cap});
}

Result<double> DeviceLayerwise::divergence(const DeviceHead& p_head, const DeviceStreams& p, const DeviceHead& q_head,
                                           const DeviceStreams& q) {
    NIBBLE_CHECK(use_device(device_.index));
    const int64_t vocab = config_.vocab, most = std::min(rows_together(vocab), tokens_);
    const int64_t product = std::max(p_head.linear_.scratch_bytes(most), q_head.linear_.scratch_bytes(most));
    NIBBLE_CHECK(memory_.reserve(
        8 * most * vocab + 8 * most + 2 * padded_rows(most) * config_.hidden + product + 8 * DeviceArena::alignment,
        most));
    std::vector<std::pair<int64_t, int64_t>> w4a16;
    for (const DeviceHead* head : {&p_head, &q_head})
        if (head->linear_.w4a16) w4a16.emplace_back(head->linear_.rows, head->linear_.cols);
    NIBBLE_CHECK(memory_.reserve_products(w4a16, std::array{most, tokens_ % most}));
    DeviceStep s = memory_.step();
    NIBBLE_TRY(float* p_logits, s.scratch.allocate_array<float>(most * vocab));
    NIBBLE_TRY(float* q_logits, s.scratch.allocate_array<float>(most * vocab));
    NIBBLE_TRY(double* each, s.scratch.allocate_array<double>(most));
    std::vector<double> host(static_cast<size_t>(most));
    double sum = 0;
    for (int64_t at = 0; at < tokens_; at += most) {
        const int64_t rows = std::min(most, tokens_ - at);
        NIBBLE_CHECK(logits(p_head, p, at, rows, p_logits, s));
        NIBBLE_CHECK(logits(q_head, q, at, rows, q_logits, s));
        NIBBLE_CHECK(cuda::divergences(p_logits, q_logits, rows, vocab, each, stream_));
        NIBBLE_CHECK(copy_to_host(bytes_of(host.data()), bytes_of(each), 8 * rows, stream_));
        NIBBLE_CHECK(stream_.synchronize());
        for (int64_t i = 0; i < rows; ++i) sum += host[static_cast<size_t>(i)];
    }
    return sum;
}

}  // namespace nibble
