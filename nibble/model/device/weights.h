// From a checkpoint to device memory: matrices as the kernels of kernels/*_cuda.h read them, vectors as they are.
//
// Loading runs twice over the same code, as in weight_source.h: `plan` adds up bytes (what it returns has sizes but no
// memory: its addresses are not to be read), `load` fills an arena of that size through a staging buffer, so that a
// model that does not fit is an error before anything is read.
#pragma once

#include "model/cpu/linear.h"
#include "model/cpu/model.h"
#include "model/device/linear.h"

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace nibble {

// Weights in F16 or F32 become BF16 on the device, which multiplies nothing else: how many values changed.
struct RoundedWeights {
    int64_t matrices = 0, values = 0;  // matrices that changed at all
    DType stored = DType::bf16;        // of the first

    void add(const RoundedWeights& other);
    // "--device cuda multiplies BF16: 1,234 values in 5 F16 matrices were rounded (...)"; empty when nothing changed.
    std::string text() const;
};

// What takes the place of linears that were loaded: adapters over frozen weights (train/device/device_adapters.h).
class DeviceCover {
public:
    virtual ~DeviceCover() = default;
    // Of linears that read the same rows.
    virtual DeviceLinear over(std::vector<DeviceLinear> parts) = 0;
    virtual DeviceExperts over(DeviceExperts experts) = 0;
};

class DeviceWeights {
public:
    static constexpr int64_t staging_bytes = int64_t{64} << 20;

    enum class Mode : uint8_t { plan, load };
    static DeviceWeights planner(const Checkpoint& checkpoint) { return DeviceWeights(checkpoint, nullptr, nullptr); }
    // `arena`: bytes() of a planner that was asked for the same things, and staging_bytes more, which are free again
    // when loading is over.
    static Result<DeviceWeights> loader(const Checkpoint& checkpoint, DeviceArena& arena, const Stream& stream);

    // Where vectors go from here on, instead of the arena: they stay when matrices make room for others.
    void keep_vectors_in(DeviceArena& arena) { vectors_ = &arena; }
    int64_t vector_bytes() const { return vector_bytes_; }  // of bytes()

    // Linears (by the name of the first part) that something else multiplies: no matrix is loaded for them.
    using Replace = std::function<const DeviceProduct*(const std::string& name)>;
    void replace(Replace replace) { replace_ = std::move(replace); }
    // From here on every linear and all experts are handed to it; null: not. It outlives the weights.
    void cover(DeviceCover* cover) { cover_ = cover; }
    // Rows of gate and up stay in their order in every format: for who looks at a product's outputs.
    void keep_order() { turns_ = false; }

    Mode mode() const { return arena_ ? Mode::load : Mode::plan; }
    int64_t bytes() const { return bytes_; }
    const RoundedWeights& rounded() const { return rounded_; }
    // Rows and columns of the weights that became records so far.
    const std::vector<std::pair<int64_t, int64_t>>& w4a16() const { return w4a16_; }

    // Names, sizes and input quantization as WeightSource found them; the matrices come from the checkpoint. Errors: a
    // format, or values, that the device's kernels cannot hold exactly; names the tensor.
    Result<DeviceLinear> linear(const Linear& linear);
    // gated: gate and up, whose rows take turns where one kernel does product and activation (DeviceLinear::by_turns).
    Result<DeviceStack> stack(const LinearStack& stack, bool gated = false);
    // One of each expert; `gated`: the first of two parts gates the second.
    Result<DeviceExperts> experts(std::span<const LinearStack* const> stacks, bool gated);
    Result<DeviceExperts> experts(std::span<const Linear* const> linears);
    Result<const float*> vector(std::span<const float> values);  // null for none
    Result<const float*> constant(float value, int64_t count);
    // BF16 [vocab, hidden], scaled.
    Result<const std::byte*> embedding(const Embedding& embedding, const ModelConfig& config, Workspace& work);

private:
    DeviceWeights(const Checkpoint& checkpoint, DeviceArena* arena, const Stream* stream);
    // Scales of outputs: one, one per row, or tiles of 128 x 128.
    struct Scales {
        float one = 1.0f;
        std::vector<float> rows, tiles;
    };
    Result<std::byte*> allocate(int64_t bytes);
    static void merge(Scales& all, Scales part, int64_t rows);
    Result<DeviceExperts::Part> expert_part(std::span<const std::span<const Linear>> experts, bool paired);
    Status upload_expert(std::span<const Linear> parts, const cuda::PackedSpan& to, bool paired, Scales& all);
    Result<DeviceLinear> product(std::span<const Linear> parts, std::span<const float> bias, bool by_turns = false);
    // The rows of one weight, in panels, through the staging buffer: put(QuantView or MatrixView, first row).
    template <class Put>
    Status upload(const Linear& linear, bool records, Scales& scales, const Put& put) {
        NIBBLE_TRY(const size_t tensor, find(linear));
        const bool quantized = checkpoint_->tensors()[tensor].quantized();
        const int64_t step = panel_rows(linear.cols);
        for (int64_t row = 0; row < linear.rows; row += step) {
            const int64_t count = std::min(step, linear.rows - row);
            if (quantized) {
                NIBBLE_TRY(const QuantView view, stage_quant(tensor, linear, row, count, records, scales));
                NIBBLE_CHECK(put(view, row));
            } else {
                NIBBLE_TRY(const MatrixView view, stage_plain(tensor, linear, row, count));
                NIBBLE_CHECK(put(view, row));
            }
            checkpoint_->done_with(tensor, row, count);
        }
        return Ok{};
    }
    static int64_t panel_rows(int64_t cols);
    static Status check_inputs(const Linear& linear);
    static bool runs_on_records(const Linear& linear);
    static bool runs_on_codes(const Linear& linear);
    static bool stackable(std::span<const Linear> parts);
    Result<size_t> find(const Linear& linear) const;
    Result<QuantView> stage_quant(size_t tensor, const Linear& linear, int64_t row, int64_t count, bool records,
                                  Scales& scales);
    Result<MatrixView> stage_plain(size_t tensor, const Linear& linear, int64_t row, int64_t count);
    // BF16 of `wide`, counted; error: a value beyond its range.
    Status narrow(std::span<const float> wide, std::span<uint16_t> out, size_t tensor);

    const Checkpoint* checkpoint_;
    DeviceArena* arena_;
    const Stream* stream_;
    std::byte* staging_ = nullptr;
    uint32_t* refused_ = nullptr;  // where prepack counts; what it would refuse is refused on the host
    std::unordered_map<std::string, size_t> index_;
    DeviceArena* vectors_ = nullptr;
    int64_t bytes_ = 0, vector_bytes_ = 0;
    Replace replace_;
    DeviceCover* cover_ = nullptr;
    bool turns_ = true;
    std::vector<std::pair<int64_t, int64_t>> w4a16_;
    RoundedWeights rounded_;
    size_t last_rounded_ = SIZE_MAX;  // the tensor that was counted last
};

}  // namespace nibble
