// Loads a checkpoint to device memory: matrices in the layouts of kernels/*_cuda.h, vectors unchanged.
//
// Loading runs the same code twice, as in weight_source.h. `plan` adds up bytes and returns objects with sizes but
// invalid addresses. `load` fills an arena of that size through a staging buffer. A model that does not fit is
// therefore an error before anything is read.
#pragma once

#include "model/alternating_rows.h"
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

// Counts values that changed when F16 or F32 weights were rounded to BF16, the only unquantized format on the device.
struct RoundedWeights {
    int64_t matrices = 0, values = 0;  // matrices: those with at least one changed value
    DType stored = DType::bf16;        // dtype of the first such matrix

    void add(const RoundedWeights& other);
    // "--device cuda multiplies BF16: 1,234 values in 5 F16 matrices were rounded (...)"; empty when nothing changed.
    std::string text() const;
};

// Replaces linears after loading: adapters over frozen weights (train/device/device_adapters.h).
class DeviceCover {
public:
    virtual ~DeviceCover() = default;
    // Wraps linears that read the same rows.
    virtual DeviceLinear over(std::vector<DeviceLinear> parts) = 0;
    virtual DeviceExperts over(DeviceExperts experts) = 0;
};

class DeviceWeights {
public:
    static constexpr int64_t staging_bytes = int64_t{64} << 20;

    enum class Mode : uint8_t { plan, load };
    static DeviceWeights planner(const Checkpoint& checkpoint) { return DeviceWeights(checkpoint, nullptr, nullptr); }
    // `arena`: must hold bytes() of a planner that loaded the same things, plus staging_bytes, which are free again
    // after loading.
    static Result<DeviceWeights> loader(const Checkpoint& checkpoint, DeviceArena& arena, const Stream& stream);

    // From now on, vectors are allocated in this arena. They stay there when matrices are freed.
    void keep_vectors_in(DeviceArena& arena) { vectors_ = &arena; }
    int64_t vector_bytes() const { return vector_bytes_; }  // part of bytes()

    // Linears (by the name of the first part) that another object multiplies: their matrices are not loaded.
    using Replace = std::function<const DeviceProduct*(const std::string& name)>;
    void replace(Replace replace) { replace_ = std::move(replace); }
    // From now on, every linear and all experts are wrapped by `cover`, which must outlive the weights. null: none.
    void cover(DeviceCover* cover) { cover_ = cover; }
    // Keeps the rows of gate and up in their stored order in every format. For callers that read a product's outputs.
    void keep_order() { interleaves_ = false; }

    Mode mode() const { return arena_ ? Mode::load : Mode::plan; }
    int64_t bytes() const { return bytes_; }
    const RoundedWeights& rounded() const { return rounded_; }
    // Returns rows and columns of the weights stored as records so far.
    const std::vector<std::pair<int64_t, int64_t>>& w4a16() const { return w4a16_; }

    // Loads a linear. Names, sizes and input quantization are those of WeightSource; the matrix comes from the
    // checkpoint. Errors name the tensor: a format, or values, that the device's kernels cannot represent exactly.
    Result<DeviceLinear> linear(const Linear& linear);
    // gated: the rows are those of gate and up, which alternate if one kernel computes product and activation
    // (DeviceLinear::interleaved_gate).
    Result<DeviceStack> stack(const LinearStack& stack, bool gated = false);
    // Load one stack or linear per expert. `gated`: the first of two parts gates the second.
    Result<DeviceExperts> experts(std::span<const LinearStack* const> stacks, bool gated);
    Result<DeviceExperts> experts(std::span<const Linear* const> linears);
    Result<const float*> vector(std::span<const float> values);  // null for an empty span
    Result<const float*> constant(float value, int64_t count);
    // Returns BF16 [vocab, width], scaled.
    Result<const std::byte*> embedding(const Embedding& embedding, int64_t vocab, int64_t width, Workspace& work);
    // Reads embeddings that blocks load. Errors of host(): none was set.
    void use_host(Workspace& host) { host_ = &host; }
    Result<Workspace*> host() const;

private:
    DeviceWeights(const Checkpoint& checkpoint, DeviceArena* arena, const Stream* stream);
    // Scales of a product's outputs: one value, one per row, or one per tile of 128 x 128.
    struct Scales {
        float one = 1.0f;
        std::vector<float> rows, tiles;
    };
    Result<std::byte*> allocate(int64_t bytes);
    static void merge(Scales& all, Scales part, int64_t rows);
    Result<DeviceExperts::Part> expert_part(std::span<const std::span<const Linear>> experts, bool paired);
    // Writes rows [first, first + view.rows) of gate and up, one after the other, to their places (RowInterleave{16,
    // 32}).
    Status prepack_by_turns(const QuantView& view, int64_t first, const cuda::PackedSpan& to);
    Status upload_expert(std::span<const Linear> parts, const cuda::PackedSpan& to, bool paired, Scales& all);
    Result<DeviceLinear> product(std::span<const Linear> parts, std::span<const float> bias,
                                 bool interleaved_gate = false);
    // Copies the rows of one weight through the staging buffer, panel by panel: put(QuantView or MatrixView, first
    // output).
    template <class Put>
    Status upload(const Linear& linear, bool records, Scales& scales, const Put& put) {
        NIBBLE_TRY(const size_t tensor, find(linear));
        const bool quantized = checkpoint_->tensors()[tensor].quantized();
        const int64_t step = panel_rows(linear.cols);
        for (int64_t row = 0; row < linear.rows; row += step) {
            const int64_t count = std::min(step, linear.rows - row);
            if (quantized) {
                NIBBLE_TRY(const QuantView view, stage_quant(tensor, linear, row, count, records, scales));
                NIBBLE_CHECK(put_rows(linear, view, row, put));
            } else {
                NIBBLE_TRY(const MatrixView view, stage_plain(tensor, linear, row, count));
                NIBBLE_CHECK(put_rows(linear, view, row, put));
            }
            checkpoint_->done_with(tensor, linear.first_row + row, count);
        }
        if (linear.alternating && !scales.rows.empty())
            scales.rows = separated(scales.rows.data(), linear.rows, int64_t{1});
        return Ok{};
    }
    // Puts staged rows at their outputs. Of alternating rows, the even ones are staged before the odd ones.
    template <class View, class Put>
    static Status put_rows(const Linear& linear, const View& view, int64_t row, const Put& put) {
        if (!linear.alternating) return put(view, row);
        const int64_t half = view.rows / 2;
        NIBBLE_CHECK(put(view.panel(0, half), row / 2));
        return put(view.panel(half, half), (linear.rows + row) / 2);
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
    // Rounds `wide` to BF16 and counts changes. Error: a value beyond the range of BF16.
    Status narrow(std::span<const float> wide, std::span<uint16_t> out, size_t tensor);

    const Checkpoint* checkpoint_;
    DeviceArena* arena_;
    const Stream* stream_;
    std::byte* staging_ = nullptr;
    uint32_t* refused_ = nullptr;  // counter of prepack; always 0, because the host rejects such values first
    std::unordered_map<std::string, size_t> index_;
    DeviceArena* vectors_ = nullptr;
    int64_t bytes_ = 0, vector_bytes_ = 0;
    Replace replace_;
    Workspace* host_ = nullptr;
    DeviceCover* cover_ = nullptr;
    bool interleaves_ = true;
    std::vector<std::pair<int64_t, int64_t>> w4a16_;
    RoundedWeights rounded_;
    size_t last_rounded_ = SIZE_MAX;  // index of the tensor that was counted last
};

}  // namespace nibble
