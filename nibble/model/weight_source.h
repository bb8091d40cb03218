// Reads a checkpoint's tensors for the engine: packed matrices and FP32 vectors, found by name, with checked shapes.
//
// Loading runs the same code twice. `check` checks presence, shape and dtype, returns objects with names and sizes but
// no numbers, and records which tensors the model uses; a disagreement between config and tensors is therefore found
// before anything is packed. `load` reads. `outline` reads all but the matrices of linears, for a model that stores
// those elsewhere (model/device/weights.h).
#pragma once

#include "base/large_pages.h"
#include "checkpoint/checkpoint.h"
#include "model/cpu/linear.h"
#include "model/cpu/rank_share.h"
#include "model/cpu/workspace.h"

#include <atomic>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace nibble {

struct WeightOptions {
    Compute compute = Compute::bf16;
    bool quantize_activations = true;  // false: inputs are not quantized (W4A16 / W8A16), whatever the checkpoint
                                       // specifies
    std::optional<KvFormat> kv;        // nullopt: the checkpoint's format; none: BF16, or F32 with Compute::f32
    SsmStateFormat ssm_state = SsmStateFormat::f32;  // format of Mamba-2's states between tokens
    uint64_t ssm_seed = 0;                           // seed of its stochastic rounding
    bool prediction = false;  // also load the layers for multi-token prediction (ModelConfig::prediction)
    // Set if several ranks run the model: linears have the rows of this rank only.
    std::shared_ptr<const RankShare> share;
    // Once true, the next read of a tensor is an error of kind `cancelled`. Used only while weights are loaded.
    const std::atomic<bool>* stop_requested = nullptr;
};

// Error of kind `cancelled` if the flag is set. The flag may be null.
Status check_loading_stop(const std::atomic<bool>* stop_requested);

class WeightSource {
public:
    enum class Mode : uint8_t { check, outline, load };
    WeightSource(const Checkpoint& checkpoint, const WeightOptions& options, ThreadPool& pool, Mode mode);

    Mode mode() const { return mode_; }
    const WeightOptions& options() const { return options_; }
    const Checkpoint& checkpoint() const { return *checkpoint_; }
    ThreadPool& pool() const { return *pool_; }

    bool has(const std::string& tensor) const { return index_.contains(tensor); }
    // Returns a plain tensor of `count` elements as FP32, whatever its shape (a [conv, 1, 4] tensor is accepted).
    // Errors of all readers below: a missing tensor, a wrong shape, an unsupported format; the message names the
    // tensor.
    Result<std::vector<float>> vector(const std::string& tensor, int64_t count);
    // Returns the weight of an RMSNorm as it is multiplied: 1 + w where the model requires it.
    Result<std::vector<float>> norm(const ModelConfig& model, const std::string& tensor, int64_t count);
    // Set if several ranks run the model.
    const RankShare* share() const { return options_.share.get(); }
    // Returns vector() at the rows that this rank has of a tensor [rows, ...], or all of them if it is not divided.
    Result<std::vector<float>> own_vector(const std::string& tensor, int64_t count);
    // The outputs that a linear of several ranks computes: those of all ranks, gathered, or those of this rank, which
    // then are its `rows`.
    enum class Outputs : uint8_t { gathered, own };
    // Reads MODULE.weight [rows, cols], and MODULE.bias [rows] if `bias` is set. An expert of another rank has no
    // weight.
    Result<Linear> linear(const std::string& module, int64_t rows, int64_t cols, bool bias,
                          Outputs outputs = Outputs::gathered);
    // Rows [first, first + count) of MODULE.weight [rows, cols], under the module's name.
    Result<Linear> linear_rows(const std::string& module, int64_t rows, int64_t cols, int64_t first, int64_t count);
    // One expert in a stack (CheckpointTensor::experts). The bias lies in MODULE_bias [experts, outputs].
    struct Slice {
        std::string module;  // "model.layers.0.mlp.experts.gate_up_proj"
        int64_t experts = 0, expert = 0;
        bool alternating = false;  // the matrix has the even outputs first, then the odd ones
    };
    // Reads an expert's matrix [rows, cols] under the name of the stack. An expert of another rank has no weight.
    Result<Linear> expert(const Slice& slice, int64_t rows, int64_t cols, bool bias);
    struct Part {
        std::string module;
        int64_t rows;
    };
    Result<LinearStack> stack(std::span<const Part> parts, int64_t cols, bool bias,
                              Outputs outputs = Outputs::gathered);
    // Returns a matrix decoded to FP32, row-major. For weights that are not run as a linear (kv_b_proj of absorbed
    // latent attention).
    Result<std::vector<float>> matrix(const std::string& tensor, int64_t rows, int64_t cols);
    // Returns a matrix of I64 numbers from 0 to below `bound`.
    Result<std::vector<int32_t>> integers(const std::string& tensor, int64_t rows, int64_t cols, int64_t bound);
    // Returns the index in Checkpoint::tensors() of a matrix of this shape.
    Result<size_t> find(const std::string& tensor, int64_t rows, int64_t cols);
    // Returns the format of K and V (`options().kv`, or the checkpoint's) with the scales of PREFIX.k_proj and
    // PREFIX.v_proj. Error: a format with stored scales whose scales are missing.
    Result<KvShape> kv_shape(const std::string& prefix, int heads, int k_dim, int v_dim);

    // Checks that all tensors were used, except those known to be harmless (other towers, prediction layers). Error:
    // names the first unused tensor.
    Status all_used() const;

private:
    Result<size_t> find(const std::string& tensor);
    Result<float> scalar(const std::string& tensor);
    // The rows of a tensor that are packed.
    struct PackedRows {
        size_t tensor;
        std::vector<RowRange> ranges;
    };
    Result<PackedMatrix> pack(std::span<const PackedRows> parts);
    // Restricts a described linear to the rows of this rank, and returns them.
    std::vector<RowRange> take_share(Linear& linear, Outputs outputs) const;
    bool owns_expert(const Slice& slice) const;
    Result<Linear> describe(const std::string& module, int64_t rows, int64_t cols, bool bias);
    Result<Linear> describe_weight(const std::string& module, size_t tensor, int64_t rows, int64_t cols);
    Result<std::vector<float>> expert_bias(const Slice& slice, int64_t rows);

    const Checkpoint* checkpoint_;
    WeightOptions options_;
    ThreadPool* pool_;
    Mode mode_;
    SharedPages memory_;
    std::unordered_map<std::string, size_t> index_;
    std::vector<bool> used_;
};

}  // namespace nibble
