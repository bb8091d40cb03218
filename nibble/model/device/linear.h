// Linears on a GPU, stored in the layout of their kernel. NVFP4 and MXFP4 weights with BF16 inputs are records
// (kernels/w4a16_matmul_cuda.h). FP8 weights with FP8 inputs are codes for the FP8 tensor cores (Hopper), including
// experts. All other weights are operands that are exact in BF16 (kernels/operand_matmul_cuda.h), among them FP8
// weights with BF16 inputs, and FP8 on GPUs other than Hopper.
#pragma once

#include "kernels/operand_matmul_cuda.h"
#include "kernels/w4a16_matmul_cuda.h"
#include "model/device/step.h"
#include "model/kernel_use.h"

#include <string>
#include <vector>

namespace nibble {

// Prepares every kernel that the linears below may choose, whatever the format. Call once per device before the first
// product.
Status prepare_linears(const DeviceInfo& device);

// The input layout that a product (or a mixer that starts with this product) prefers. Computed once per step, before
// the input is written.
struct InputPlan {
    // Layout of x for the kernel that writes x (add_norm); the caller sets `data`. Row-major is always accepted.
    cuda::RowsOut order;
    // The product can compute x itself from the residual stream (fused RMSNorm prologue, DeviceInput::norm).
    bool inside = false;
};

// The input of a product or a mixer, and extra work that its first product does.
struct DeviceInput {
    const std::byte* x = nullptr;  // [rows, cols] BF16, rows adjacent, or in the layout of InputPlan::order
    bool ordered = false;          // x has the layout of InputPlan::order
    // The largest magnitude of x, if the kernel that wrote x has recorded it (AddNorm::amax). null: unknown.
    const float* amax = nullptr;
    // Used with InputPlan::inside: the first product computes x from the residual stream and does not read x; later
    // readers find x at norm.x_out. h null: x is ready.
    cuda::MatmulOptions::Norm norm;
    // A second product (a router's) of the same normalized row in the same launch. Requires takes_side(). w null: none.
    cuda::MatmulOptions::Side side;
};

// A product that replaces that of a linear, such as a training recipe's rounded product (train/device/device_recipe.h).
// It reads BF16 rows, or codes of the format reads_codes(). It outlives the linear.
class DeviceProduct {
public:
    virtual ~DeviceProduct() = default;
    // Computes the product: see DeviceLinear::forward(). bias [rows] or null.
    virtual Status forward(const DeviceInput& in, int64_t n, float* y, int64_t y_stride, const float* bias,
                           DeviceStep& step) const = 0;
    // Computes y [n, rows] in BF16, rows adjacent. Requires rounds(n).
    virtual Status forward_rounded(const DeviceInput& in, int64_t n, std::byte* y, const float* bias,
                                   DeviceStep& step) const = 0;
    // The codes that the kernel which writes x may produce instead of this product, with the same bits
    // (RowsOut::codes).
    virtual ActivationFormat reads_codes() const { return ActivationFormat::none; }
    virtual bool rounds(int64_t n) const = 0;
    virtual Result<cuda::KernelChoice> describe(int64_t n) const = 0;
    virtual int64_t scratch_bytes(int64_t n) const = 0;
};

struct DeviceExpertRows;

// A product that replaces those of all experts of a layer.
class DeviceExpertsProduct {
public:
    virtual ~DeviceExpertsProduct() = default;
    // Computes the product: see DeviceExperts::forward().
    virtual Status forward(const DeviceExpertRows& in, float* y, DeviceStep& step) const = 0;
    virtual Status kernels(const DeviceExpertRows& in, std::vector<KernelUse>& uses) const = 0;
    virtual int64_t scratch_bytes(int64_t n) const = 0;
};

// One product: a linear, or several stacked linears that read the same rows.
struct DeviceLinear {
    std::string name;                // name of the first part
    std::vector<std::string> names;  // names of all parts
    int64_t rows = 0, cols = 0;
    Format format = Format::none;
    ActivationFormat activation = ActivationFormat::none;
    float input_scale = 1.0f;
    bool w4a16 = false;
    bool interleaved_gate = false;  // records alternate rows of gate and up (MatmulProblem::gated)
    cuda::PackedMatrix records;
    cuda::MatmulFactors factors;
    cuda::Operand operand;
    const DeviceProduct* other = nullptr;  // if set, it multiplies instead; of the members above only names, sizes and
                                           // bias are valid

    // Returns the input plan for n rows; observers require BF16 rows. whole_rows: one thread block of the kernel that
    // writes x holds a whole row, so it can compute a scale for it.
    Result<InputPlan> plan(int64_t n, const DeviceStep& step, bool whole_rows) const;
    // Computes y [n, rows] in FP32, y_stride floats from row to row, with bias, not rounded. Error: a norm or a side
    // product that this product cannot fuse.
    Status forward(const DeviceInput& in, int64_t n, float* y, int64_t y_stride, DeviceStep& step) const;
    // Computes y [n, rows] in BF16, rows adjacent: forward(), rounded. Where a kernel exists, this is one pass.
    Status forward_rounded(const DeviceInput& in, int64_t n, std::byte* y, DeviceStep& step) const;
    // Bytes of scratch memory that forward_rounded() needs in addition to scratch_bytes().
    int64_t rounded_bytes(int64_t n) const;
    // Returns true if forward_activated() has a kernel for n rows. `gated`: the rows are those of gate and up.
    Result<bool> activates(int64_t n, bool gated, const DeviceStep& step) const;
    // Computes mid [n, rows / 2] in BF16 = activation(gate) * up, or [n, rows] = activation(y).
    Status forward_activated(const DeviceInput& in, int64_t n, Activation activation, std::byte* mid,
                             DeviceStep& step) const;
    // Returns true if a product with a fused prologue can also compute the product of `side` with the same row
    // (DeviceInput::side).
    Result<bool> takes_side(const DeviceLinear& side, const DeviceStep& step) const;
    // Adds the kernel of a product of n rows to `uses`.
    Status kernels(int64_t n, const DeviceStep& step, std::vector<KernelUse>& uses) const;
    // Upper bound of the bytes of scratch memory for n rows.
    int64_t scratch_bytes(int64_t n) const;
};

// Linears that read the same rows; they are one product if their formats agree.
struct DeviceStack {
    std::vector<DeviceLinear> parts;
    int64_t rows = 0, cols = 0;

    // see DeviceLinear::plan()
    Result<InputPlan> plan(int64_t n, const DeviceStep& step, bool whole_rows) const;
    // Returns true if parts[0].forward_rounded() computes the whole stack in one pass, and n is large enough that BF16
    // outputs pay.
    bool rounds(int64_t n) const { return n > 128 && parts.size() == 1 && parts[0].rounded_bytes(n) == 0; }
    // Writes y [n, rows]: the parts' outputs one after the other in each row.
    Status forward(const DeviceInput& in, int64_t n, float* y, DeviceStep& step) const;
    Status kernels(int64_t n, const DeviceStep& step, std::vector<KernelUse>& uses) const;
    int64_t scratch_bytes(int64_t n) const;
};

// Rows for the experts of a mixture: row i is row rows[i] of x [.., cols]; those of expert e are [begin[e], begin[e +
// 1]).
struct DeviceExpertRows {
    const std::byte* x = nullptr;
    const int32_t* rows = nullptr;  // null: x is sorted by expert
    int64_t n = 0;
    const int32_t* begin = nullptr;
    bool routed = false;  // the previous kernel in the stream was a grouped product of the same rows
    const cuda::ExpertChoice* choice = nullptr;  // experts of the only token; requires takes_one_token()
    cuda::ExpertsInput::Dense dense;             // fused work of the first product
    cuda::ExpertsOutput::Combine combine;        // replaces y of the last product; requires takes_combine()
};

// The same linears of all experts of a mixture, as grouped products.
struct DeviceExperts {
    struct Part {
        std::string name;                             // name of the first expert's linear
        std::vector<std::vector<std::string>> names;  // names for every expert
        Format format = Format::none;
        ActivationFormat activation = ActivationFormat::none;
        bool w4a16 = false;
        cuda::PackedExperts packed;
        const float* input_scales = nullptr;  // [experts]; null: the format stores no input scales
        cuda::Experts weights;                // scales include the input scales
        // [experts]: replacements for the members above (DeviceLinear::other); empty: none.
        std::vector<const DeviceProduct*> others;

        int64_t rows() const { return w4a16 ? packed.first.rows : weights.first.rows; }
    };
    std::vector<Part> parts;
    int64_t rows = 0, cols = 0, experts = 0;
    bool paired = false;  // gate and up alternate in halves of tiles; only activated() can be used
    const DeviceExpertsProduct* other = nullptr;  // if set, it multiplies instead; of the parts only the names are
                                                  // valid

    // Computes y [n, rows].
    Status forward(const DeviceExpertRows& in, float* y, DeviceStep& step) const;
    // Returns true if forward() reads the number of rows per expert on the host, and so waits for the device.
    bool waits() const { return !parts.empty() && !parts[0].others.empty(); }
    // Returns true if these fused kernels exist for the router and the formats of this layer. activated() computes out
    // [n, width] (BF16) = activation of forward() in one product; it requires activates().
    bool takes_one_token(const cuda::RouterConfig& config) const {
        return parts.size() == 1 && parts[0].w4a16 && cuda::takes_one_token(config, parts[0].packed);
    }
    bool takes_dense(const cuda::RouterConfig& config, const DeviceLinear& other) const {
        return other.w4a16 && cuda::takes_dense(config, parts[0].packed, other.records);
    }
    bool takes_combine(const cuda::RouterConfig& config) const {
        return parts.size() == 1 && parts[0].w4a16 && cuda::takes_combine(config, parts[0].packed);
    }
    bool activates(bool gated) const { return parts.size() == 1 && parts[0].w4a16 && gated == paired; }
    Status activated(const DeviceExpertRows& in, Activation activation, std::byte* out, DeviceStep& step) const;
    // Adds the kernels of forward() (or, with `activation`, of activated()) to `uses`.
    Status kernels(const DeviceExpertRows& in, bool activation, std::vector<KernelUse>& uses) const;
    // Passes the rows, sorted by expert, to the step's observer if there is one. Computes nothing.
    Status show(const DeviceExpertRows& in, DeviceStep& step) const;
    int64_t scratch_bytes(int64_t n) const;

private:
    Status forward_others(const Part& part, const DeviceExpertRows& in, float* y, DeviceStep& step) const;
};

// Copies DeviceExpertRows::begin to the host. Waits for the stream.
Result<std::vector<int32_t>> rows_of_experts(const int32_t* begin, int64_t experts, const Stream& stream);

}  // namespace nibble
