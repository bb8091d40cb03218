// Linears on a GPU, in the layout of their kernel: NVFP4 and MXFP4 weights with BF16 inputs as records
// (kernels/matmul_cuda.h), FP8 weights with FP8 inputs as codes for the FP8 tensor cores, experts too, everything else
// as operands that are exact in BF16 (both kernels/product_cuda.h): FP8 weights with BF16 inputs among them, and FP8 on
// GPUs other than Hopper.
#pragma once

#include "kernels/matmul_cuda.h"
#include "kernels/product_cuda.h"
#include "model/device/step.h"
#include "model/kernel_use.h"

#include <string>
#include <vector>

namespace nibble {

// Once per device, before the first product of anything below: every kernel that they may choose, whatever the format.
Status prepare_linears(const DeviceInfo& device);

// How a product, or a mixer whose first operation it is, takes its input. Computed once per step, before the input is
// written.
struct InputPlan {
    // The layout of x for the kernel that writes x (add_norm); `data` is the caller's. Row-major is always right.
    cuda::RowsOut order;
    // The product can compute x itself from the residual stream (fused RMSNorm prologue, DeviceInput::norm).
    bool inside = false;
};

// What a product or a mixer reads, and what its product does beside the multiplication.
struct DeviceInput {
    const std::byte* x = nullptr;  // [rows, cols] BF16, rows adjacent, or in the layout of InputPlan::order
    bool ordered = false;          // the latter
    // The largest magnitude of x, where the kernel that wrote x has seen it (AddNorm::amax). null: it has not.
    const float* amax = nullptr;
    // Where InputPlan::inside: the first product computes x from the residual stream; x is not read by that product,
    // and readers after it find x at norm.x_out. h null: x is ready.
    cuda::MatmulOptions::Norm norm;
    // A second product of the same normalised row in the same launch (a router's), where takes_side(). w null: none.
    cuda::MatmulOptions::Side side;
};

// A product that stands in a linear's place: what a recipe of training rounds (train/device/device_recipe.h). It reads
// rows of BF16, or codes where reads_codes(), and outlives the linear.
class DeviceProduct {
public:
    virtual ~DeviceProduct() = default;
    // As DeviceLinear::forward(); bias [rows] or null.
    virtual Status forward(const DeviceInput& in, int64_t n, float* y, int64_t y_stride, const float* bias,
                           DeviceStep& step) const = 0;
    // The same rounded, y [n, rows] BF16, rows adjacent; where rounds(n), which reads no device memory.
    virtual Status forward_rounded(const DeviceInput& in, int64_t n, std::byte* y, const float* bias,
                                   DeviceStep& step) const = 0;
    // What the kernel that writes x may make of it in this product's place: the same bits (RowsOut::codes).
    virtual ActivationFormat reads_codes() const { return ActivationFormat::none; }
    virtual bool rounds(int64_t n) const = 0;
    virtual Result<cuda::KernelChoice> describe(int64_t n) const = 0;
    virtual int64_t scratch_bytes(int64_t n) const = 0;
};

struct DeviceExpertRows;

// The same in the place of experts: all of them at once.
class DeviceExpertsProduct {
public:
    virtual ~DeviceExpertsProduct() = default;
    // As DeviceExperts::forward().
    virtual Status forward(const DeviceExpertRows& in, float* y, DeviceStep& step) const = 0;
    virtual Status kernels(const DeviceExpertRows& in, std::vector<KernelUse>& uses) const = 0;
    virtual int64_t scratch_bytes(int64_t n) const = 0;
};

// One product: a linear, or several that read the same rows, stacked.
struct DeviceLinear {
    std::string name;                // of the first part
    std::vector<std::string> names;  // of all
    int64_t rows = 0, cols = 0;
    Format format = Format::none;
    ActivationFormat activation = ActivationFormat::none;
    float input_scale = 1.0f;
    bool w4a16 = false;
    bool by_turns = false;  // records of gate and up, MatmulProblem::gated
    cuda::PackedMatrix records;
    cuda::MatmulFactors factors;
    cuda::Operand operand;
    const DeviceProduct* other = nullptr;  // multiplies instead; of the above, names, sizes and bias hold

    // For n rows; observers want rows of BF16. whole_rows: the producer of x has a row in one place, so that it can
    // make a scale for it.
    Result<InputPlan> plan(int64_t n, const DeviceStep& step, bool whole_rows) const;
    // y [n, rows] FP32, y_stride floats from row to row. With bias, not rounded. Error: a norm or a side that this
    // product has no place for.
    Status forward(const DeviceInput& in, int64_t n, float* y, int64_t y_stride, DeviceStep& step) const;
    // y [n, rows] BF16, rows adjacent: forward() rounded, where many rows have such a kernel in one pass.
    Status forward_rounded(const DeviceInput& in, int64_t n, std::byte* y, DeviceStep& step) const;
    // Of scratch memory for it beside scratch_bytes().
    int64_t rounded_bytes(int64_t n) const;
    // Whether forward_activated() has a kernel for n rows; `gated`: they are those of gate and up.
    Result<bool> activates(int64_t n, bool gated, const DeviceStep& step) const;
    // mid [n, rows / 2] BF16 = activation(gate) * up, or [n, rows] = activation(y).
    Status forward_activated(const DeviceInput& in, int64_t n, Activation activation, std::byte* mid,
                             DeviceStep& step) const;
    // Whether a product with a fused prologue can make `side`'s of the same row beside its own (DeviceInput::side).
    Result<bool> takes_side(const DeviceLinear& side, const DeviceStep& step) const;
    // The kernel of a product of n rows.
    Status kernels(int64_t n, const DeviceStep& step, std::vector<KernelUse>& uses) const;
    // Of scratch memory, at most, for n rows.
    int64_t scratch_bytes(int64_t n) const;
};

// Linears that read the same rows: one product where the formats agree.
struct DeviceStack {
    std::vector<DeviceLinear> parts;
    int64_t rows = 0, cols = 0;

    Result<InputPlan> plan(int64_t n, const DeviceStep& step, bool whole_rows) const;  // as of a linear
    // Whether parts[0].forward_rounded() is all there is to do for n rows, in one pass, and they are so many that half
    // the bytes count.
    bool rounds(int64_t n) const { return n > 128 && parts.size() == 1 && parts[0].rounded_bytes(n) == 0; }
    // y [n, rows]: the parts' outputs side by side.
    Status forward(const DeviceInput& in, int64_t n, float* y, DeviceStep& step) const;
    Status kernels(int64_t n, const DeviceStep& step, std::vector<KernelUse>& uses) const;
    int64_t scratch_bytes(int64_t n) const;
};

// Rows for the experts of a mixture: row i is rows[i] of x [.., cols], those of expert e in [begin[e], begin[e + 1]).
struct DeviceExpertRows {
    const std::byte* x = nullptr;
    const int32_t* rows = nullptr;  // null: x is sorted
    int64_t n = 0;
    const int32_t* begin = nullptr;
    bool routed = false;                         // the last kernel was a grouped one of the same rows
    const cuda::ExpertChoice* choice = nullptr;  // of one token, where takes_one_token()
    cuda::ExpertsInput::Beside beside;           // of its first product
    cuda::ExpertsOutput::Combine combine;        // in place of its last one's y, where takes_combine()
};

// The same linears of all experts of a mixture: grouped products.
struct DeviceExperts {
    struct Part {
        std::string name;                             // of the first expert
        std::vector<std::vector<std::string>> names;  // of every expert's
        Format format = Format::none;
        ActivationFormat activation = ActivationFormat::none;
        bool w4a16 = false;
        cuda::PackedExperts packed;
        const float* input_scales = nullptr;  // [experts]; null: formats without stored scales
        cuda::Experts weights;                // scales include the inputs'
        // Of every expert, instead of the above (DeviceLinear::other); empty: none.
        std::vector<const DeviceProduct*> others;

        int64_t rows() const { return w4a16 ? packed.first.rows : weights.first.rows; }
    };
    std::vector<Part> parts;
    int64_t rows = 0, cols = 0, experts = 0;
    bool paired = false;  // gates and what they gate lie in halves of tiles: only activated() goes
    const DeviceExpertsProduct* other = nullptr;  // multiplies instead; of the parts names hold

    // y [n, rows].
    Status forward(const DeviceExpertRows& in, float* y, DeviceStep& step) const;
    // Whether forward() reads on the host how many rows an expert has.
    bool waits() const { return !parts.empty() && !parts[0].others.empty(); }
    // Whether one product can end with the activation; activated: out [n, width] BF16, as forward() and activate().
    bool takes_one_token(const cuda::RouterConfig& config) const {
        return parts.size() == 1 && parts[0].w4a16 && cuda::takes_one_token(config, parts[0].packed);
    }
    bool takes_beside(const cuda::RouterConfig& config, const DeviceLinear& other) const {
        return other.w4a16 && cuda::takes_beside(config, parts[0].packed, other.records);
    }
    bool takes_combine(const cuda::RouterConfig& config) const {
        return parts.size() == 1 && parts[0].w4a16 && cuda::takes_combine(config, parts[0].packed);
    }
    bool activates(bool gated) const { return parts.size() == 1 && parts[0].w4a16 && gated == paired; }
    Status activated(const DeviceExpertRows& in, Activation activation, std::byte* out, DeviceStep& step) const;
    // The kernels of forward(), or with `activation` of activated().
    Status kernels(const DeviceExpertRows& in, bool activation, std::vector<KernelUse>& uses) const;
    // The step's observer, where there is one, sees the rows sorted by expert; nothing is computed.
    Status show(const DeviceExpertRows& in, DeviceStep& step) const;
    int64_t scratch_bytes(int64_t n) const;

private:
    Status forward_others(const Part& part, const DeviceExpertRows& in, float* y, DeviceStep& step) const;
};

// DeviceExpertRows::begin on the host. Waits.
Result<std::vector<int32_t>> rows_of_experts(const int32_t* begin, int64_t experts, const Stream& stream);

}  // namespace nibble
