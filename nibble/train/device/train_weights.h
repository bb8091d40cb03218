// The parameters of a model in training on a GPU: flat arrays of masters, states and gradients, and the engine's
// layers, whose operands are rewritten in place after every update. So kernels find new weights at the old addresses.
#pragma once

#include "model/device/model.h"
#include "train/device/device_adapters.h"
#include "train/device/device_recipe.h"
#include "train/device/flat_shards.h"
#include "train/device/train_mixer.h"
#include "train/train_config.h"
#include "train/train_engine.h"

#include <array>
#include <functional>

namespace nibble {

class TrainWeights {
public:
    // Returns an error (one line) if the device trainer has no kernels for the model.
    static Status check(const ModelConfig& config);
    // Maximum number of tokens that the kernels support: rows of activations and of experts' inputs.
    static int64_t most_tokens(const ModelConfig& config);
    // Computes sizes only. Errors: those of check() and DeviceRecipe::plan().
    static Result<TrainWeights> plan(std::shared_ptr<Parameters> parameters, const ModelConfig& config,
                                     const TrainPrecision& precision, uint64_t seed, ThreadPool& pool,
                                     bool cached = false);
    // The same for adapters over a frozen model with this config and outline.
    static Result<TrainWeights> plan_adapters(std::shared_ptr<Parameters> adapters,
                                              std::shared_ptr<const Checkpoint> base, const TrainLora& lora,
                                              const ModelConfig& config, ModelParts parts, uint64_t seed,
                                              ThreadPool& pool);
    // Bytes of the engine's operands and of the recipe's copies.
    int64_t operand_bytes() const { return operand_bytes_ + recipe_->bytes(); }
    // Bytes of stored frozen weights for the backward pass, and of adapters' operands.
    int64_t frozen_bytes() const { return adapters_ ? adapters_->bytes() : 0; }
    // Scratch memory for products of n rows, forward or backward, in addition to the mixers'; and for the head.
    int64_t scratch_bytes(int64_t n) const {
        return std::max(recipe_->scratch_bytes(n), adapters_ ? adapters_->scratch_bytes(n) : 0);
    }
    int64_t head_scratch_bytes(int64_t n) const { return adapters_ ? adapters_->head_scratch_bytes(n) : 0; }
    int64_t master_bytes() const { return 4 * flat_.elements; }  // bytes of masters, of each state, and of a gradient
    int64_t published_bytes() const {
        return 2 * flat_.elements + 4 * flat_.vector_elements() + (scales() ? 2 * flat_.embedding.elements() : 0);
    }

    // Call it before load(): sets the type of states, and whether matrices have no v.
    void keep_states(const TrainOptimizer& o) { narrow_ = o.bf16_states, muon_ = o.kind == OptimizerKind::muon; }
    OptimizerLayout state_layout(size_t id) const;

    // Bytes of a rank's masters (with Sharding::all also of a gradient) and of each of its states.
    int64_t shard_bytes(const FlatShards& shards, int rank) const {
        return 4 * (shards.elements(rank) + flat_.vector_elements());
    }
    int64_t state_bytes(const FlatShards& shards, int rank) const {
        return shard_bytes(shards, rank) / (narrow_ ? 2 : 1);
    }
    // Sharding::all: bytes of the published shard, and of the slots for gathered parts with their operands.
    int64_t published_bytes(const FlatShards& shards, int rank) const {
        return 2 * shards.elements(rank) + 6 * flat_.vector_elements();
    }
    int64_t slot_bytes() const;

    // Allocates everything for one rank and copies the parameters to the device; waits.
    Status load(int gradients, const FlatShards& shards, int rank, const DeviceInfo& device, const Stream& stream);

    // Allocates only operands, under this recipe, for the parameters that `of` holds and publishes. `of` must outlive
    // it.
    Status load_operands(const TrainWeights& of, const DeviceInfo& device, const Stream& stream);

    // Copies masters and published values from the host to the device, and states if given.
    Status upload(const StoredTrainState* states);
    // Makes the operands of all layers from the published values, and vectors from their masters.
    Status republish();
    // Makes only the operands.
    Status publish_operands();
    // Returns this rank's masters and states; other elements are 0. Waits.
    Result<TrainState> download();
    // Copies a whole flat array, by parameter id; does not wait.
    Status copy_from(const float* device, std::vector<std::vector<float>>& to);
    // Calls run(offset in the parameter, offset in the flat arrays, elements) for each run of a parameter that this
    // rank keeps.
    template <class Run>
    Status owned(size_t id, const Run& run) const {
        const int64_t at = flat_.at[id], end = at + std::ssize(parameters_->master(id));
        if (at >= flat_.matrix_elements) return run(int64_t{0}, at, end - at);
        for (const FlatRun& some : shards_.within(at, end))
            if (some.rank == rank_) NIBBLE_CHECK(run(some.begin - at, some.begin, some.elements()));
        return Ok{};
    }

    const ModelConfig& config() const { return config_; }
    const FlatLayout& flat() const { return flat_; }
    const ModelParts& outline() const { return parts_; }
    const Parameters& parameters() const { return *parameters_; }
    std::span<const DeviceLayer> layers() const { return layers_; }
    const TrainMixer& mixer(size_t block) const { return *mixers_[block]; }
    DeviceRecipe& recipe() const { return *recipe_; }
    const RoundedWeights& rounded() const { return rounded_; }
    // Rows and columns of 4-bit weights with BF16 inputs.
    std::span<const std::pair<int64_t, int64_t>> w4a16() const { return w4a16_; }
    const TrainLinear& head() const { return train_head_; }
    const float* norm() const { return norm_; }
    // The same data for a model that serves them.
    DeviceModel::Weights served() const {
        return {.config = config_,
                .layers = layers_,
                .embedding = embedding(),
                .norm = norm_,
                .head = head_,
                .w4a16 = w4a16_};
    }

    struct Kept {                   // for BF16 states these point to as many BF16 numbers
        float* matrices = nullptr;  // first element that the rank keeps
        float* vectors = nullptr;
    };
    // Returns the address of element `at`, which this rank must keep; `each`: bytes per element.
    std::byte* place_of(const Kept& kept, int64_t at, int64_t each) const {
        const bool matrix = at < flat_.matrix_elements;
        return reinterpret_cast<std::byte*>(matrix ? kept.matrices : kept.vectors) +
               each * (matrix ? local(at) : at - flat_.matrix_elements);
    }
    const Kept& master() const { return master_; }
    const Kept& m() const { return m_; }
    const Kept& v() const { return v_; }
    const FlatShards& shards() const { return shards_; }
    int rank() const { return rank_; }
    bool sharded() const { return shards_.sharding() == Sharding::all; }
    float* gradient(int buffer) const { return gradients_[static_cast<size_t>(buffer)]; }
    int gradient_buffers() const { return static_cast<int>(gradients_.size()); }
    std::byte* published() const { return published_; }  // BF16, flat, for Sharding::states
    // Returns the published value of an element that this rank keeps, followed by the rank's next elements.
    std::byte* published_at(int64_t at) const {
        const bool matrix = at < flat_.matrix_elements;
        return (matrix ? published_shard_ : published_vectors_) + 2 * (matrix ? local(at) : at - flat_.matrix_elements);
    }
    // BF16 [vocab, hidden], the initial rows of the residual stream: scaled if the model requires it.
    const std::byte* embedding() const {
        if (adapters_) return frozen_embedding_;
        return scales() ? scaled_ : sharded() ? slots_[2].published : published_;
    }
    // Counts changes of the weights and of their copies.
    int64_t version() const { return version_; }

    // ---- Sharding::all: parts (flat_parts()) share three slots; blocks alternate between two of them ---------------
    std::span<const FlatLayout::Range> parts() const { return flat_parts_; }
    size_t slot_of(size_t part) const { return part == 0 || part > flat_.units.size() ? 2 : (part - 1) % 2; }
    size_t head_part() const { return flat_.tied ? 0 : flat_.units.size() + 1; }
    // Returns the base address of the flat arrays for reads of this part.
    std::byte* gathered(size_t part) const { return slots_[slot_of(part)].published - 2 * flat_parts_[part].at; }
    // Makes all operands of a part whose values are gathered. back: also copies that are redrawn every step.
    Status make_operands(size_t part, bool back, const Stream& stream) const;
    Status draw(size_t part, const Stream& stream) const;
    bool draws(size_t part) const;
    // Returns the place of a norm's tensor in the flat arrays; -1: it is frozen.
    int64_t place(const std::string& tensor) const;

private:
    bool scales() const { return !adapters_ && config_.embedding_scale != 1.0f; }
    Status plan_operands();
    const Checkpoint& source() const { return adapters_ ? adapters_->base() : *parameters_; }
    int64_t local(int64_t at) const;
    // weights(part): the loader of a part's matrices.
    Status make_parts(const std::function<DeviceWeights*(size_t part)>& weights);
    struct SlotSizes {
        int64_t published = 0, operands = 0, copies = 0;
    };
    std::array<SlotSizes, 3> slot_sizes() const;
    Status load_slots(const DeviceInfo& device, const Stream& stream);
    int64_t state_element() const { return narrow_ ? 2 : 4; }
    // Copies every parameter to to(id), which has its size; `each`: bytes per element.
    Status copy_owned(const Kept& device, int64_t each, const std::function<std::span<std::byte>(size_t)>& to);

    std::shared_ptr<Parameters> parameters_;
    ModelConfig config_;
    ThreadPool* pool_ = nullptr;
    ModelParts parts_;
    FlatLayout flat_;
    // vector_bytes_: the part of operand_bytes_ for the engine's vectors
    int64_t operand_bytes_ = 0, vector_bytes_ = 0;
    std::unique_ptr<DeviceRecipe> recipe_;
    std::unique_ptr<DeviceAdapters> adapters_;  // null: the parameters are the model's
    bool cached_ = false;
    std::vector<FlatLayout::Range> flat_parts_;
    std::vector<int64_t> part_operands_;  // bytes of the operands of each part's matrices

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
    FlatShards shards_;
    int rank_ = 0;
    bool narrow_ = false, muon_ = false;  // narrow_: states are BF16; muon_: matrices of blocks have no v
    Kept master_, m_, v_;
    float* vectors_ = nullptr;  // FP32 values for multiplication
    std::byte *published_ = nullptr, *published_shard_ = nullptr, *published_vectors_ = nullptr;
    int64_t version_ = 0;
    struct Slot {  // holds one part at a time
        std::byte* published = nullptr;
        std::optional<DeviceArena> operands, copies;  // memory of the engine, and of the recipe
        std::byte *first_operand = nullptr, *first_copy = nullptr;
    };
    std::array<Slot, 3> slots_;
    std::optional<DeviceArena> gathered_, engine_vectors_;
    std::byte* scaled_ = nullptr;
    std::vector<float*> gradients_;
};

}  // namespace nibble
