#include "train/device/train_weights.h"

#include "base/checked.h"
#include "kernels/elementwise_backward_cuda.h"
#include "kernels/loss_cuda.h"

#include <algorithm>
#include <cstring>

namespace nibble {
namespace {

std::byte* bytes_at(const void* p) { return const_cast<std::byte*>(static_cast<const std::byte*>(p)); }

constexpr int64_t most_kernel_rows = 65535;  // limit of the second dimension of a grid

}  // namespace

namespace {

// Rejects features of a description that have no backward pass on a GPU.
Status check_trained_block(const ModelConfig& model, const BlockConfig& block) {
    const auto lacks = [&](std::string_view what) {
        return fail("{}: training does not support {} on --device cuda; use --device cpu", block.prefix, what);
    };
    if (block.norm.empty()) return lacks("a block without a norm before its mixer");
    if (block.residual_scale != 1.0f) return lacks("multipliers of residuals");
    if (!block.output_scale.empty()) return lacks("scalars of layers");
    if (model.logit_scale != 1.0f) return lacks("multipliers of logits");
    if (model.logit_cap > 0) return lacks("soft caps of logits");
    if (model.head_bias) return lacks("a bias of lm_head");
    if (model.layer_norm) return lacks("LayerNorm");
    if (std::holds_alternative<GatedDeltaConfig>(block.mixer)) return lacks("gated delta nets");
    if (std::holds_alternative<ShortConvConfig>(block.mixer)) return lacks("short convolutions");
    if (std::holds_alternative<PerLayerInputConfig>(block.mixer)) return lacks("per-layer embeddings");
    if (std::holds_alternative<ParallelConfig>(block.mixer)) return lacks("mixers that read the same rows");
    if (const auto* a = std::get_if<AttentionConfig>(&block.mixer)) {
        if (std::max(a->head_dim, a->value_dim()) > 256) return lacks("heads of more than 256 dimensions");
        if (a->query_period > 0) return lacks("a scale of queries by their position");
        if (a->output_gate) return lacks("gates on the output of attention");
        if (a->qk_norm == QkNorm::joined) return lacks("norms over all heads of queries and keys");
        if (a->qk_norm == QkNorm::late_plain) return lacks("norms of queries and keys without weights");
        if (a->qk_norm == QkNorm::late) return lacks("norms of queries and keys after the rotary embedding");
        if (a->soft_cap > 0) return lacks("soft caps of scores");
        if (a->indexer) return lacks("indexers of sparse attention");
        if (!a->sinks.empty()) return lacks("attention sinks");
        if (!a->head_gate.empty()) return lacks("gates of heads");
        if (a->chunk > 0) return lacks("attention in chunks");
        if (a->v_dim > 0 || a->value_scale != 1.0f || a->value_norm || a->v_proj.empty())
            return lacks("values with their own size, scale or norm, or from k_proj");
        if (a->key_scale != 1.0f) return lacks("multipliers of keys");
        if (a->kv_block >= 0 || a->kv_shared) return lacks("keys and values that layers share");
    }
    if (const auto* a = std::get_if<LatentAttentionConfig>(&block.mixer)) {
        if (a->query_period > 0) return lacks("a scale of queries by their position");
        if (a->indexer) return lacks("indexers of sparse attention");
    }
    if (std::holds_alternative<CompressedAttentionConfig>(block.mixer)) return lacks("compressed attention");
    if (const auto* mlp = std::get_if<MlpConfig>(&block.mixer)) {
        if (!mlp->gate_up_proj.empty()) return lacks("gate_proj and up_proj in one matrix");
        if (mlp->clamp) return lacks("clamped gated units");
        if (mlp->gate_scale != 1.0f) return lacks("multipliers of gates");
    }
    if (const auto* m = std::get_if<MambaConfig>(&block.mixer);
        m && (m->norm != MambaConfig::Norm::after_gate || m->scales != MambaConfig{}.scales))
        return lacks("Mamba-2 with multipliers or without a norm after its gate");
    if (const auto* moe = std::get_if<MoeConfig>(&block.mixer)) {
        if (moe->expert.clamp || moe->shared.clamp) return lacks("clamped gated units");
        if (moe->shared_gate) return lacks("gates on the output of shared experts");
        if (moe->stacked) return lacks("experts in stacks");
        if (moe->expert.bias || moe->gate_bias) return lacks("biases of experts and routers");
        if (moe->router == MoeConfig::Router::sparse_mixer) return lacks("a sparse mixer's router");
        if (moe->weigh_inputs) return lacks("experts whose inputs are weighed");
        if (!moe->router_scale.empty() || !moe->experts_norm.empty() || !moe->expert_scale.empty())
            return lacks("a router with a norm and scales");
    }
    return Ok{};
}

}  // namespace

Status TrainWeights::check(const ModelConfig& config) {
    for (const BlockConfig& block : config.blocks) NIBBLE_CHECK(check_trained_block(config, block));
    const bool attends = std::ranges::any_of(config.blocks, [](const BlockConfig& block) {
        return std::holds_alternative<AttentionConfig>(block.mixer) ||
               std::holds_alternative<LatentAttentionConfig>(block.mixer);
    });
    if (!attends) return fail("--device cuda does not train models without attention yet");
    if (config.vocab > cuda::softmax_most_vocab)
        return fail("--device cuda trains vocabularies of up to {} tokens, not {}", cuda::softmax_most_vocab,
                    config.vocab);
    return Ok{};
}

int64_t TrainWeights::most_tokens(const ModelConfig& config) {
    int64_t rows = 1;  // rows per token
    for (const BlockConfig& block : config.blocks)
        if (const auto* moe = std::get_if<MoeConfig>(&block.mixer)) rows = std::max<int64_t>(rows, moe->top_k);
    return most_kernel_rows / rows;
}

Result<TrainWeights> TrainWeights::plan(std::shared_ptr<Parameters> parameters, const ModelConfig& config,
                                        const TrainPrecision& precision, uint64_t seed, ThreadPool& pool, bool cached) {
    NIBBLE_CHECK(check(config));
    TrainWeights w;
    w.parameters_ = std::move(parameters);
    w.config_ = config;
    w.pool_ = &pool;
    w.cached_ = cached;
    NIBBLE_TRY(w.parts_, load_parts(config, *w.parameters_, {}, pool, WeightSource::Mode::outline));
    NIBBLE_TRY(w.flat_, FlatLayout::make(*w.parameters_, config, w.parts_));
    NIBBLE_TRY(w.recipe_, DeviceRecipe::plan(precision, seed, w.parts_, w.flat_, pool));
    NIBBLE_CHECK(w.plan_operands());
    return w;
}

Result<TrainWeights> TrainWeights::plan_adapters(std::shared_ptr<Parameters> adapters,
                                                 std::shared_ptr<const Checkpoint> base, const TrainLora& lora,
                                                 const ModelConfig& config, ModelParts parts, uint64_t seed,
                                                 ThreadPool& pool) {
    NIBBLE_CHECK(check(config));
    TrainWeights w;
    w.parameters_ = std::move(adapters);
    w.config_ = config;
    w.pool_ = &pool;
    w.parts_ = std::move(parts);
    NIBBLE_TRY(w.flat_, FlatLayout::make_adapters(*w.parameters_, config, w.parts_));
    NIBBLE_TRY(w.recipe_, DeviceRecipe::plan({}, seed, w.parts_, w.flat_, pool));
    NIBBLE_TRY(w.adapters_, DeviceAdapters::plan(std::move(base), lora, config, w.parts_, *w.parameters_, w.flat_));
    w.recipe_->set_table(w.adapters_->table());
    NIBBLE_CHECK(w.plan_operands());
    return w;
}

Status TrainWeights::plan_operands() {
    if (!adapters_) flat_parts_ = flat_parts(flat_);  // adapters are never sharded
    part_operands_.assign(parts_.blocks.size() + 2, 0);
    DeviceWeights planner = DeviceWeights::planner(source());
    NIBBLE_CHECK(make_parts([&](size_t) { return &planner; }));
    operand_bytes_ = planner.bytes();
    vector_bytes_ = planner.vector_bytes();
    return Ok{};
}

Status TrainWeights::make_parts(const std::function<DeviceWeights*(size_t part)>& weights) {
    layers_.clear();
    mixers_.clear();
    const auto matrices = [](const DeviceWeights& w) { return w.bytes() - w.vector_bytes(); };
    const auto count = [&](size_t part, const DeviceWeights& w, int64_t before) {
        if (w.mode() == DeviceWeights::Mode::plan) part_operands_[part] = matrices(w) - before;
    };
    const TrainVectors vectors{
        .place = [&](const std::string& tensor) -> Result<int64_t> {
            const int64_t at = place(tensor);
            if (at < 0 && !adapters_) return fail("parameter '{}' is missing", tensor);
            return at;
        },
        .at = [&](int64_t place) { return vectors_ ? vectors_ + (place - flat_.matrix_elements) : nullptr; }};
    if (adapters_) {
        NIBBLE_TRY(Workspace host, Workspace::create(Compute::bf16, {}, *pool_));
        NIBBLE_TRY(frozen_embedding_, weights(0)->embedding(parts_.embedding, config_.vocab, config_.hidden, host));
        NIBBLE_TRY(norm_, weights(0)->vector(parts_.head.norm()));
    }
    for (size_t b = 0; b < parts_.blocks.size(); ++b) {
        DeviceWeights& of_block = *weights(1 + b);
        of_block.replace([this](const std::string& name) { return recipe_->find(name); });
        of_block.keep_order();
        of_block.cover(adapters_.get());
        const int64_t before = matrices(of_block);
        NIBBLE_TRY(DeviceLayer layer, DeviceLayer::make(config_, parts_.blocks[b], of_block));
        count(1 + b, of_block, before);
        const auto read = [&](const std::string& tensor, const float*& norm) -> Status {
            NIBBLE_TRY(const int64_t at, vectors.place(tensor));
            if (at >= 0) norm = vectors.at(at);
            return Ok{};
        };
        NIBBLE_CHECK(read(layer.config.norm, layer.norm));
        if (!layer.config.post_norm.empty()) NIBBLE_CHECK(read(layer.config.post_norm, layer.post_norm));
        NIBBLE_TRY(auto mixer, make_train_mixer(config_, layer, flat_.units[b], vectors, cached_));
        mixers_.push_back(std::move(mixer));
        layers_.push_back(std::move(layer));
    }
    DeviceWeights& of_head = *weights(head_part());
    of_head.cover(adapters_.get());
    const int64_t before = matrices(of_head);
    NIBBLE_TRY(head_, of_head.linear(DeviceModel::head_of(config_, parts_.head)));
    count(head_part(), of_head, before);
    train_head_ = TrainLinear(flat_.head, head_, vectors);
    w4a16_ = of_head.w4a16();
    rounded_ = of_head.rounded();
    NIBBLE_TRY(const int64_t norm, vectors.place(config_.norm));
    if (norm >= 0) norm_ = vectors.at(norm);
    return Ok{};
}

int64_t TrainWeights::place(const std::string& tensor) const {
    const auto id = parameters_->id(tensor);
    return id.ok() ? flat_.at[*id] : -1;
}

int64_t TrainWeights::local(int64_t at) const {
    const auto runs = shards_.within(at, at + 1);
    return runs[0].local;
}

Status TrainWeights::load(int gradients, const FlatShards& shards, int rank, const DeviceInfo& device,
                          const Stream& stream) {
    stream_ = &stream;
    shards_ = shards, rank_ = rank;
    const bool all = sharded();
    const int64_t kept = shards.elements(rank), vectors = flat_.vector_elements();
    const int64_t of_gradient = all ? shard_bytes(shards, rank) : master_bytes();
    const int64_t published = all ? published_bytes(shards, rank) : published_bytes();
    const int64_t size =
        shard_bytes(shards, rank) + 2 * state_bytes(shards, rank) + published + gradients * of_gradient;
    NIBBLE_TRY(arrays_, DeviceArena::create(device.index, size + (13 + gradients) * DeviceArena::alignment));
    for (Kept* array : {&master_, &m_, &v_}) {
        const int64_t each = array == &master_ ? 4 : state_element();
        const auto part = [&](int64_t elements) -> Result<float*> {
            NIBBLE_TRY(std::byte * at, arrays_->allocate(each * elements));
            // Gaps between pieces are never written again.
            NIBBLE_CHECK(fill_device(at, 0, each * elements, stream));
            return reinterpret_cast<float*>(at);
        };
        NIBBLE_TRY(array->matrices, part(kept));
        NIBBLE_TRY(array->vectors, part(vectors));
    }
    if (all) {
        NIBBLE_TRY(published_shard_, arrays_->allocate(2 * kept));
        NIBBLE_TRY(published_vectors_, arrays_->allocate(2 * vectors));
        NIBBLE_CHECK(fill_device(published_shard_, 0, 2 * kept, stream));
        NIBBLE_CHECK(fill_device(published_vectors_, 0, 2 * vectors, stream));
    } else {
        const FlatRun& own = shards.runs()[static_cast<size_t>(rank)];
        NIBBLE_TRY(published_, arrays_->allocate(2 * flat_.elements));
        published_shard_ = published_ + 2 * own.begin;
        published_vectors_ = published_ + 2 * flat_.matrix_elements;
        NIBBLE_CHECK(fill_device(published_, 0, 2 * flat_.elements, stream));
        if (scales()) {
            NIBBLE_TRY(scaled_, arrays_->allocate(2 * flat_.embedding.elements()));
        }
    }
    NIBBLE_TRY(vectors_, arrays_->allocate_array<float>(vectors));
    gradients_.clear();
    for (int i = 0; i < gradients; ++i) {
        NIBBLE_TRY(float* one, arrays_->allocate_array<float>(of_gradient / 4));
        gradients_.push_back(one);
    }
    for (float* array : gradients_) NIBBLE_CHECK(fill_device(bytes_at(array), 0, of_gradient, stream));
    if (all) {
        NIBBLE_CHECK(load_slots(device, stream));
    } else {
        NIBBLE_CHECK(recipe_->load(device, stream));
        if (adapters_) NIBBLE_CHECK(adapters_->load(device, stream));
        NIBBLE_TRY(operands_, DeviceArena::create(device.index, operand_bytes_ + DeviceWeights::staging_bytes));
        NIBBLE_TRY(DeviceWeights weights, DeviceWeights::loader(source(), *operands_, stream));
        NIBBLE_CHECK(make_parts([&](size_t) { return &weights; }));
    }
    return upload(nullptr);
}

Status TrainWeights::load_operands(const TrainWeights& of, const DeviceInfo& device, const Stream& stream) {
    stream_ = &stream;
    published_ = of.published_, vectors_ = of.vectors_, scaled_ = of.scaled_;
    NIBBLE_TRY(operands_, DeviceArena::create(device.index, operand_bytes_ + DeviceWeights::staging_bytes));
    NIBBLE_CHECK(recipe_->load(device, stream));
    NIBBLE_TRY(DeviceWeights weights, DeviceWeights::loader(*parameters_, *operands_, stream));
    NIBBLE_CHECK(make_parts([&](size_t) { return &weights; }));
    NIBBLE_CHECK(publish_operands());
    return stream.synchronize();
}

OptimizerLayout TrainWeights::state_layout(size_t id) const {
    const int64_t at = flat_.at[id];
    const bool of_block = at < flat_.matrix_elements && at != flat_.embedding.at && at != flat_.head.at;
    return {narrow_ ? DType::bf16 : DType::f32, !(muon_ && of_block)};
}

Status TrainWeights::upload(const StoredTrainState* states) {
    for (size_t id = 0; id < parameters_->count(); ++id) {
        const MatrixView values = parameters_->published(id);
        if (values.dtype == DType::bf16 && published_)
            NIBBLE_CHECK(copy_to_device(published_ + 2 * flat_.at[id], values.data, values.bytes(), *stream_));
        NIBBLE_CHECK(owned(id, [&](int64_t first, int64_t at, int64_t count) -> Status {
            if (values.dtype == DType::bf16 && !published_)
                NIBBLE_CHECK(copy_to_device(published_at(at), values.data + 2 * first, 2 * count, *stream_));
            const auto copy = [&](const Kept& to, int64_t each, const std::byte* from) {
                return copy_to_device(place_of(to, at, each), from + each * first, each * count, *stream_);
            };
            NIBBLE_CHECK(copy(master_, 4, bytes_at(parameters_->master(id).data())));
            if (!states) return Ok{};
            NIBBLE_CHECK(copy(m_, state_element(), states->m[id].data()));
            return state_layout(id).second ? copy(v_, state_element(), states->v[id].data()) : Status(Ok{});
        }));
    }
    NIBBLE_CHECK(republish());
    return stream_->synchronize();
}

Status TrainWeights::republish() {
    ++version_;
    const int64_t count = flat_.vector_elements();
    NIBBLE_CHECK(copy_on_device(bytes_at(vectors_), bytes_at(master_.vectors), 4 * count, *stream_));
    if (flat_.rounded_vectors > 0) NIBBLE_CHECK(cuda::round_rows(vectors_, flat_.rounded_vectors, false, *stream_));
    if (config_.norm_plus_one)
        for (const FlatLayout::Range& norms : flat_.norms)
            if (norms.count > 0)
                NIBBLE_CHECK(cuda::add_one(vectors_ + (norms.at - flat_.matrix_elements), norms.count, *stream_));
    if (sharded()) return Ok{};  // the rest is done when a part is gathered
    NIBBLE_CHECK(publish_operands());
    if (!scales()) return Ok{};
    return cuda::scale_rows(published_, flat_.embedding.elements(), config_.embedding_scale, scaled_, *stream_);
}

Status TrainWeights::publish_operands() {
    for (const auto& mixer : mixers_) NIBBLE_CHECK(mixer->publish(published_, *stream_));
    return train_head_.publish(published_, *stream_);
}

Status TrainWeights::copy_from(const float* device, std::vector<std::vector<float>>& to) {
    to.resize(parameters_->count());
    for (size_t id = 0; id < to.size(); ++id) {
        to[id].resize(parameters_->master(id).size());
        NIBBLE_CHECK(
            copy_to_host(bytes_at(to[id].data()), bytes_at(device + flat_.at[id]), 4 * std::ssize(to[id]), *stream_));
    }
    return Ok{};
}

Status TrainWeights::copy_owned(const Kept& device, int64_t each,
                                const std::function<std::span<std::byte>(size_t)>& to) {
    for (size_t id = 0; id < parameters_->count(); ++id)
        if (const std::span<std::byte> bytes = to(id); !bytes.empty())
            NIBBLE_CHECK(owned(id, [&](int64_t first, int64_t at, int64_t count) {
                return copy_to_host(bytes.data() + each * first, place_of(device, at, each), each * count, *stream_);
            }));
    return Ok{};
}

Result<TrainState> TrainWeights::download() {
    TrainState state;
    const auto numbers = [&](size_t count) -> StateNumbers {
        if (narrow_) return std::vector<uint16_t>(count);
        return std::vector<float>(count);
    };
    for (size_t id = 0; id < parameters_->count(); ++id) {
        const size_t count = parameters_->master(id).size();
        state.masters.emplace_back(count);
        state.m.push_back(numbers(count));
        state.v.push_back(numbers(state_layout(id).second ? count : 0));
    }
    NIBBLE_CHECK(
        copy_owned(master_, 4, [&](size_t id) { return std::as_writable_bytes(std::span(state.masters[id])); }));
    NIBBLE_CHECK(copy_owned(m_, state_element(), [&](size_t id) { return bytes_of(state.m[id]); }));
    NIBBLE_CHECK(copy_owned(v_, state_element(), [&](size_t id) { return bytes_of(state.v[id]); }));
    NIBBLE_CHECK(stream_->synchronize());
    return state;
}

}  // namespace nibble
