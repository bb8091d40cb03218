// A checkpoint's tensors as the engine wants them: packed matrices and FP32 vectors, found by name, shapes checked.
//
// Loading runs twice over the same code: `check` only looks (presence, shape, dtype; what it returns has names and
// sizes but no numbers) and remembers which tensors the model uses, so that a disagreement between config and tensors
// is found before anything is packed; `load` reads. `outline` reads all but the matrices of linears, for a model that
// keeps those elsewhere (model/device/weights.h).
#pragma once

#include "base/large_pages.h"
#include "checkpoint/checkpoint.h"
#include "model/cpu/linear.h"
#include "model/cpu/workspace.h"

#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace nibble {

struct WeightOptions {
    Compute compute = Compute::bf16;
    bool quantize_activations = true;  // false: W4A16 / W8A16 whatever the checkpoint says about inputs
    std::optional<KvFormat> kv;        // nullopt: what the checkpoint says; none: BF16, or F32 with Compute::f32
    SsmStateFormat ssm_state = SsmStateFormat::f32;  // of Mamba-2 between tokens
    uint64_t ssm_seed = 0;                           // of its stochastic rounding
    bool prediction = false;  // the layers for multi-token prediction, too (ModelConfig::prediction)
};

class WeightSource {
public:
    enum class Mode : uint8_t { check, outline, load };
    WeightSource(const Checkpoint& checkpoint, const WeightOptions& options, ThreadPool& pool, Mode mode);

    Mode mode() const { return mode_; }
    const WeightOptions& options() const { return options_; }
    const Checkpoint& checkpoint() const { return *checkpoint_; }
    ThreadPool& pool() const { return *pool_; }

    bool has(const std::string& tensor) const { return index_.contains(tensor); }
    // A plain tensor of `count` elements as FP32, whatever its shape ([conv, 1, 4] is a vector, too).
    Result<std::vector<float>> vector(const std::string& tensor, int64_t count);
    // The weight of an RMSNorm as it multiplies: 1 + w where the model says so.
    Result<std::vector<float>> norm(const ModelConfig& model, const std::string& tensor, int64_t count);
    // MODULE.weight [rows, cols], MODULE.bias [rows] when `bias`.
    Result<Linear> linear(const std::string& module, int64_t rows, int64_t cols, bool bias);
    struct Part {
        std::string module;
        int64_t rows;
    };
    Result<LinearStack> stack(std::span<const Part> parts, int64_t cols, bool bias);
    // A matrix decoded to FP32, row-major: for what is not run as a linear (kv_b_proj of absorbed latent attention).
    Result<std::vector<float>> matrix(const std::string& tensor, int64_t rows, int64_t cols);
    // Index in Checkpoint::tensors() of a matrix of this shape.
    Result<size_t> find(const std::string& tensor, int64_t rows, int64_t cols);
    // K and V as `options().kv` or the checkpoint has them; scales of PREFIX.k_proj / PREFIX.v_proj. Error: a format
    // with stored scales whose scales are missing.
    Result<KvShape> kv_shape(const std::string& prefix, int heads, int k_dim, int v_dim);

    // Tensors that nothing asked for and that are not known to be harmless (other towers, prediction layers): an error
    // that names the first.
    Status all_used() const;

private:
    Result<size_t> find(const std::string& tensor);
    Result<float> scalar(const std::string& tensor);
    Result<PackedMatrix> pack(std::span<const size_t> tensors);
    Result<Linear> describe(const std::string& module, int64_t rows, int64_t cols, bool bias);

    const Checkpoint* checkpoint_;
    WeightOptions options_;
    ThreadPool* pool_;
    Mode mode_;
    SharedPages memory_;
    std::unordered_map<std::string, size_t> index_;
    std::vector<bool> used_;
};

}  // namespace nibble
