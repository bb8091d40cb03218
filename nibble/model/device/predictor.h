// Layers for multi-token prediction on a GPU. The data flow is that of model/cpu/predictor.h, fused as in DeviceModel.
#pragma once

#include "model/cpu/predictor.h"
#include "model/device/runner.h"

#include <optional>
#include <vector>

namespace nibble {

// Hidden states that are kept from pass to pass: [rows, hidden] BF16.
struct DeviceStates {
    std::optional<DeviceArena> memory;
    std::byte* data = nullptr;
    int64_t rows = 0;
};

class DevicePredictor {
public:
    static Result<DevicePredictor> make(const ModelConfig& model, const Predictor& outline, DeviceWeights& weights);

    // Device pointers. Matrices of hidden states are BF16 rows of the model's width.
    struct Input {
        const std::byte* embedding = nullptr;  // [vocab]
        const std::byte* states = nullptr;     // hidden states
        const int32_t* rows = nullptr;         // [step.rows]: the rows of `states` to read
        const int32_t* pairs = nullptr;        // [2 * step.rows]: 0, step.rows, 1, step.rows + 1 ...
        const int32_t* wanted_rows = nullptr;  // [wanted]: rows of the step
        int64_t wanted = 0;
        int32_t* nonfinite = nullptr;  // [layers]
        std::byte* hand_on = nullptr;  // [wanted]: input of the next pass; may be `states`
        cuda::RowsOut normed;          // [wanted]: input of the head
    };
    // Queues a pass over the step's rows. Without wanted rows it only stores K and V.
    Status queue(const Input& in, DeviceStep& step) const;

    std::span<const DeviceLayer> layers() const { return layers_; }
    // Returns an upper bound of the scratch bytes of queue().
    int64_t scratch_bytes(int64_t rows, int64_t wanted) const;

private:
    DeviceLinear projection_;
    const float* embedding_norm_ = nullptr;
    const float* hidden_norm_ = nullptr;
    const float* norm_ = nullptr;
    std::vector<DeviceLayer> layers_;
    size_t keeping_ = 0;  // number of layers up to the last one that stores K and V
    bool hands_on_normed_ = false;
    int64_t hidden_ = 0;
    float eps_ = 0;
};

}  // namespace nibble
