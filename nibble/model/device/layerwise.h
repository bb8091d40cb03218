// Runs whole texts through a model on a GPU, block by block. The residual streams of all tokens stay in device memory;
// the caller decides how many blocks' weights are there. Used by calibration and mixed-precision search. Data flow,
// rounding and therefore bits are those of DeviceModel.
#pragma once

#include "model/cpu/model.h"
#include "model/device/batch.h"
#include "model/device/runner.h"
#include "model/device/step_memory.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

// Blocks [first, first + count) of a checkpoint on the device.
class DeviceLayers {
public:
    size_t first() const { return first_; }
    size_t count() const { return layers_.size(); }

private:
    friend class DeviceLayerwise;
    size_t first_ = 0;
    std::vector<DeviceLayer> layers_;
    std::optional<DeviceArena> weights_;
    std::vector<std::pair<int64_t, int64_t>> w4a16_;  // rows and columns
};

// The last norm and lm_head on the device.
class DeviceHead {
    friend class DeviceLayerwise;
    const float* norm_ = nullptr;
    const float* norm_bias_ = nullptr;
    DeviceLinear linear_;
    std::optional<DeviceArena> weights_;
};

// Residual streams of all tokens, [tokens, hidden] BF16.
class DeviceStreams {
    friend class DeviceLayerwise;
    std::optional<DeviceArena> memory_;
    std::byte* data_ = nullptr;
};

class DeviceLayerwise {
public:
    // texts: token ids, none empty. They, the checkpoint (whose embedding is read) and the pool must outlive the
    // object. streams: sets of residual streams that exist at the same time. Errors: no such device; an id outside the
    // vocabulary; shapes without kernels; too little free memory for the streams, the largest block (or all blocks) and
    // a batch, found before anything is read, with the bytes of each.
    struct Options {
        int64_t batch_tokens = 4096;  // rows of one pass through a block; texts are not split
        int streams = 1;
        bool all_blocks = false;
    };
    static Result<std::unique_ptr<DeviceLayerwise>> create(const Checkpoint& checkpoint,
                                                           std::span<const std::vector<int32_t>> texts,
                                                           const DeviceChoice& device, const Options& options,
                                                           ThreadPool& pool);

    const ModelConfig& config() const { return config_; }
    int64_t tokens() const { return tokens_; }
    const DeviceInfo& device() const { return device_; }
    const Stream& stream() const { return stream_; }
    const RoundedWeights& rounded() const { return rounded_; }  // counts over everything that was loaded

    Result<DeviceStreams> embed();
    Result<DeviceStreams> copy(const DeviceStreams& from);
    Status copy(const DeviceStreams& from, DeviceStreams& to);

    // Load blocks or the head from a checkpoint with this model's tensors in any format. quantize_inputs: quantize the
    // inputs of linears as the checkpoint specifies.
    Result<DeviceLayers> load(const Checkpoint& from, size_t first, size_t count, bool quantize_inputs);
    Result<DeviceHead> load_head(const Checkpoint& from, bool quantize_inputs);

    // Runs all texts through block `index` of `layers`. each: called with the row count after every batch; may be
    // empty. Error: a NaN or infinity in the streams; the message names layer, mixer and token.
    Status forward(const DeviceLayers& layers, size_t index, DeviceStreams& x, DeviceObserver* observer,
                   const std::function<Status(int64_t rows)>& each = {});
    // Passes the input of lm_head to the observer without multiplying.
    Status show_head(const Checkpoint& from, const DeviceStreams& x, DeviceObserver& observer);
    // Returns the sum over all tokens of KL(softmax of p's logits || softmax of q's logits) in nats.
    Result<double> divergence(const DeviceHead& p_head, const DeviceStreams& p, const DeviceHead& q_head,
                              const DeviceStreams& q);

private:
    DeviceLayerwise(const Checkpoint& checkpoint, std::span<const std::vector<int32_t>> texts, DeviceInfo device,
                    Stream stream, ModelConfig config, Workspace host, ThreadPool& pool);
    WeightOptions weights(bool quantize_inputs) const {
        return {.compute = Compute::bf16, .quantize_activations = quantize_inputs, .kv = KvFormat::none};
    }
    Status check_memory(const Options& options);
    Status make_layers(std::span<const Block> outlines, DeviceWeights& weights, DeviceLayers& layers) const;
    Result<std::vector<Block>> outlines(const Checkpoint& from, size_t first, size_t count, bool quantize_inputs) const;
    Result<KvPool*> pool_for(const StateLayout& layout);
    int64_t scratch_bytes(const DeviceMixer& mixer, int64_t rows) const;
    Status run(const DeviceLayers& layers, size_t place, const BatchPiece& piece, DeviceStreams& x,
               DeviceObserver* observer);
    Status logits(const DeviceHead& head, const DeviceStreams& x, int64_t row, int64_t rows, float* out,
                  DeviceStep& step);

    const Checkpoint* checkpoint_;
    DeviceInfo device_;
    Stream stream_;
    ModelConfig config_;
    Workspace host_;
    ThreadPool* pool_;
    std::span<const std::vector<int32_t>> texts_;
    RoundedWeights rounded_;
    int64_t tokens_ = 0, longest_ = 0;
    std::vector<BatchPiece> batches_;
    int64_t most_rows_ = 0, pool_tokens_ = 0, pool_sequences_ = 0;  // largest values of a batch

    DeviceStepMemory memory_;
    DeviceBatch batch_;
    std::vector<std::pair<StateLayout, std::unique_ptr<KvPool>>> pools_;
};

}  // namespace nibble
