// The parameters of a model on a GPU while it is trained: flat arrays of masters, states and gradients, and the
// engine's own layers, whose operands are written anew after every update. Nothing is loaded again: kernels find new
// weights where the old ones were.
#pragma once

#include "model/device/model.h"
#include "train/device/device_adapters.h"
#include "train/device/device_recipe.h"
#include "train/device/flat_layout.h"
#include "train/device/train_mixer.h"
#include "train/train_config.h"
#include "train/train_engine.h"

#include <functional>

namespace nibble {

class TrainWeights {
public:
    // What a device trainer has kernels for, by one line of error.
    static Status check(const ModelConfig& config);
    // Tokens that its kernels take at once: rows of activations, and of experts' inputs.
    static int64_t most_tokens(const ModelConfig& config);
    // Sizes alone. Errors: what check() and DeviceRecipe::plan() say.
    static Result<TrainWeights> plan(std::shared_ptr<Parameters> parameters, const ModelConfig& config,
                                     const TrainPrecision& precision, uint64_t seed, ThreadPool& pool,
                                     bool cached = false);
    // The same of adapters over a frozen model, whose config and outline these are.
    static Result<TrainWeights> plan_adapters(std::shared_ptr<Parameters> adapters,
                                              std::shared_ptr<const Checkpoint> base, const TrainLora& lora,
                                              const ModelConfig& config, ModelParts parts, uint64_t seed,
                                              ThreadPool& pool);
    // Of the engine's layers, and the recipe's copies.
    int64_t operand_bytes() const { return operand_bytes_ + recipe_->bytes(); }
    // Of frozen weights as they are stored, for the way back, and of adapters' operands.
    int64_t frozen_bytes() const { return adapters_ ? adapters_->bytes() : 0; }
    // Of scratch memory for products of n rows, forward or back, beside the mixers'; of the head's.
    int64_t scratch_bytes(int64_t n) const {
        return std::max(recipe_->scratch_bytes(n), adapters_ ? adapters_->scratch_bytes(n) : 0);
    }
    int64_t head_scratch_bytes(int64_t n) const { return adapters_ ? adapters_->head_scratch_bytes(n) : 0; }
    int64_t master_bytes() const { return 4 * flat_.elements; }  // of masters, of each state, of a gradient
    int64_t published_bytes() const {
        return 2 * flat_.elements + 4 * flat_.vector_elements() + (scales() ? 2 * flat_.embedding.elements() : 0);
    }

    // Before load(): how states are kept, and of which matrices there is no v.
    void keep_states(const TrainOptimizer& o) { narrow_ = o.bf16_states, muon_ = o.kind == OptimizerKind::muon; }
    OptimizerLayout state_layout(size_t id) const;

    // Of the masters of a rank, and of each of its states.
    int64_t shard_bytes(const FlatShard& shard) const { return 4 * (shard.elements() + flat_.vector_elements()); }
    int64_t state_bytes(const FlatShard& shard) const { return shard_bytes(shard) / (narrow_ ? 2 : 1); }

    // Allocates everything and copies the parameters to the device; waits.
    Status load(int gradients, const FlatShard& shard, const DeviceInfo& device, const Stream& stream);

    // Operands alone, under this recipe, of the parameters that `of` holds and publishes, which outlives it. Allocates.
    Status load_beside(const TrainWeights& of, const DeviceInfo& device, const Stream& stream);

    // Masters and published values of the host to the device; states too.
    Status upload(const StoredTrainState* states);
    // The operands of all layers from the published values, vectors from their masters.
    Status republish();
    // The operands alone.
    Status publish_operands();
    // What lies here of masters and states; the rest is 0. Waits.
    Result<TrainState> download();
    // A whole flat array by parameter id; does not wait.
    Status copy_from(const float* device, std::vector<std::vector<float>>& to);
    // Runs of a parameter that lie here: run(offset in the parameter, offset in the flat arrays, elements).
    template <class Run>
    Status owned(size_t id, const Run& run) const {
        const int64_t at = flat_.at[id], end = at + std::ssize(parameters_->master(id));
        const bool vector = at >= flat_.matrix_elements;
        const int64_t from = vector ? at : std::max(at, shard_.begin), to = vector ? end : std::min(end, shard_.end);
        return from < to ? run(from - at, from, to - from) : Status(Ok{});
    }

    const ModelConfig& config() const { return config_; }
    const FlatLayout& flat() const { return flat_; }
    const ModelParts& outline() const { return parts_; }
    const Parameters& parameters() const { return *parameters_; }
    std::span<const DeviceLayer> layers() const { return layers_; }
    const TrainMixer& mixer(size_t block) const { return *mixers_[block]; }
    DeviceRecipe& recipe() const { return *recipe_; }
    std::vector<UnitLine> table() const { return adapters_ ? adapters_->table() : recipe_->table(); }
    const RoundedWeights& rounded() const { return rounded_; }
    // Rows and columns of weights in four bits under BF16 inputs.
    std::span<const std::pair<int64_t, int64_t>> w4a16() const { return w4a16_; }
    const TrainLinear& head() const { return train_head_; }
    const float* norm() const { return norm_; }
    // The same for a model that serves them.
    DeviceModel::Weights served() const {
        return {.config = config_,
                .layers = layers_,
                .embedding = embedding(),
                .norm = norm_,
                .head = head_,
                .w4a16 = w4a16_};
    }

    struct Kept {                   // of states in BF16: the same number of those
        float* matrices = nullptr;  // of the shard's first
        float* vectors = nullptr;
    };
    // Of the element at `at`, which lies here; `each`: bytes of one.
    std::byte* place_of(const Kept& kept, int64_t at, int64_t each) const {
        const bool matrix = at < flat_.matrix_elements;
        return reinterpret_cast<std::byte*>(matrix ? kept.matrices : kept.vectors) +
               each * (at - (matrix ? shard_.begin : flat_.matrix_elements));
    }
    const Kept& master() const { return master_; }
    const Kept& m() const { return m_; }
    const Kept& v() const { return v_; }
    const FlatShard& shard() const { return shard_; }
    float* gradient(int buffer) const { return gradients_[static_cast<size_t>(buffer)]; }
    int gradient_buffers() const { return static_cast<int>(gradients_.size()); }
    std::byte* published() const { return published_; }  // BF16, row-major
    const std::byte* published(const FlatMatrix& matrix) const { return published_ + 2 * matrix.at; }
    // BF16 [vocab, hidden], as rows enter the stream: scaled where the model says so.
    const std::byte* embedding() const {
        if (adapters_) return frozen_embedding_;
        return scales() ? scaled_ : published(flat_.embedding);
    }
    // Of a norm's tensor, in the flat arrays; -1: it is frozen.
    int64_t place(const std::string& tensor) const;

private:
    bool scales() const { return !adapters_ && config_.embedding_scale != 1.0f; }
    Status plan_operands();
    const Checkpoint& source() const { return adapters_ ? adapters_->base() : *parameters_; }
    Status make_parts(DeviceWeights& weights);
    int64_t state_element() const { return narrow_ ? 2 : 4; }
    // Bytes of every parameter in `to`, which have their sizes; `each`: of an element.
    Status copy_owned(const Kept& device, int64_t each, const std::function<std::span<std::byte>(size_t)>& to);

    std::shared_ptr<Parameters> parameters_;
    ModelConfig config_;
    ThreadPool* pool_ = nullptr;
    ModelParts parts_;
    FlatLayout flat_;
    int64_t operand_bytes_ = 0;
    std::unique_ptr<DeviceRecipe> recipe_;
    std::unique_ptr<DeviceAdapters> adapters_;  // null: the parameters are the model
    bool cached_ = false;

    const Stream* stream_ = nullptr;
    std::optional<DeviceArena> operands_, arrays_;
    std::vector<DeviceLayer> layers_;
    std::vector<std::unique_ptr<TrainMixer>> mixers_;
    DeviceLinear head_;
    TrainLinear train_head_;
    const float* norm_ = nullptr;
    const std::byte* frozen_embedding_ = nullptr;
    std::vector<std::pair<int64_t, int64_t>> w4a16_;
    RoundedWeights rounded_;
    FlatShard shard_;
    bool narrow_ = false, muon_ = false;  // states are BF16; matrices of blocks have no v
    Kept master_, m_, v_;
    float* vectors_ = nullptr;  // as they multiply
    std::byte* published_ = nullptr;
    std::byte* scaled_ = nullptr;
    std::vector<float*> gradients_;
};

}  // namespace nibble
