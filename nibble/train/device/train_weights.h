// The parameters of a model on a GPU while it is trained: flat arrays of masters, states and gradients, and the
// engine's own layers, whose operands are written anew after every update. Nothing is loaded again: kernels find new
// weights where the old ones were.
#pragma once

#include "model/device/model.h"
#include "train/device/device_recipe.h"
#include "train/device/flat_layout.h"
#include "train/device/train_mixer.h"
#include "train/train_engine.h"

namespace nibble {

class TrainWeights {
public:
    // What a device trainer has kernels for, by one line of error.
    static Status check(const ModelConfig& config);
    // Tokens that its kernels take at once: rows of activations, and of experts' inputs.
    static int64_t most_tokens(const ModelConfig& config);
    // Sizes alone. Errors: what check() and DeviceRecipe::plan() say.
    static Result<TrainWeights> plan(std::shared_ptr<Parameters> parameters, const ModelConfig& config,
                                     const TrainPrecision& precision, uint64_t seed, ThreadPool& pool);
    // Of the engine's layers, and the recipe's copies.
    int64_t operand_bytes() const { return operand_bytes_ + recipe_->bytes(); }
    int64_t master_bytes() const { return 4 * flat_.elements; }  // of masters, of each state, of a gradient
    int64_t published_bytes() const {
        return 2 * flat_.elements + 4 * flat_.vector_elements() + (scales() ? 2 * flat_.embedding.elements() : 0);
    }

    // Of masters, and of each state, of a rank.
    int64_t shard_bytes(const FlatShard& shard) const { return 4 * (shard.elements() + flat_.vector_elements()); }

    // Allocates everything and copies the parameters to the device; waits.
    Status load(int gradients, const FlatShard& shard, const DeviceInfo& device, const Stream& stream);

    // Masters and published values of the host to the device; states too.
    Status upload(const StoredTrainState* states);
    // The operands of all layers from the published values, vectors from their masters.
    Status republish();
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
    const TrainLinear& head() const { return train_head_; }
    const float* norm() const { return norm_; }
    const std::vector<std::pair<int64_t, int64_t>>& w4a16() const { return w4a16_; }
    // The same for a model that serves them.
    DeviceModel::Weights served() const {
        return {.config = config_, .layers = layers_, .embedding = embedding(), .norm = norm_, .head = head_, .w4a16 = w4a16_};
    }

    // Of the element at `at`, which lies here.
    struct Kept {
        float* matrices = nullptr;  // of the shard's first
        float* vectors = nullptr;
    };
    float* place_of(const Kept& kept, int64_t at) const {
        return at < flat_.matrix_elements ? kept.matrices + (at - shard_.begin)
                                          : kept.vectors + (at - flat_.matrix_elements);
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
    const std::byte* embedding() const { return scales() ? scaled_ : published(flat_.embedding); }
    // Of a norm's tensor, in the flat arrays.
    int64_t place(const std::string& tensor) const;

private:
    bool scales() const { return config_.embedding_scale != 1.0f; }
    Status make_parts(DeviceWeights& weights);
    Status copy_owned(const Kept& device, std::vector<std::vector<float>>& to);

    std::shared_ptr<Parameters> parameters_;
    ModelConfig config_;
    ThreadPool* pool_ = nullptr;
    ModelParts parts_;
    FlatLayout flat_;
    int64_t operand_bytes_ = 0;
    std::unique_ptr<DeviceRecipe> recipe_;

    const Stream* stream_ = nullptr;
    std::optional<DeviceArena> operands_, arrays_;
    std::vector<DeviceLayer> layers_;
    std::vector<std::unique_ptr<TrainMixer>> mixers_;
    DeviceLinear head_;
    std::vector<std::pair<int64_t, int64_t>> w4a16_;  // rows and columns of what is multiplied as records
    TrainLinear train_head_;
    const float* norm_ = nullptr;
    FlatShard shard_;
    Kept master_, m_, v_;
    float* vectors_ = nullptr;  // as they multiply
    std::byte* published_ = nullptr;
    std::byte* scaled_ = nullptr;
    std::vector<float*> gradients_;
};

}  // namespace nibble
