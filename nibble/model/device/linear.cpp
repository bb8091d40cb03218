#include "model/device/linear.h"

#include "base/checked.h"

namespace nibble {
namespace {

constexpr int64_t most_tile_tokens = 128;  // tile of a W4A16 product; x is padded to a multiple

int64_t aligned(int64_t bytes) { return round_up(bytes, DeviceArena::alignment); }
int64_t groups(int64_t cols) { return (cols + 127) / 128; }

bool has_row_scales(ActivationFormat f) {
    return f == ActivationFormat::fp8_token || f == ActivationFormat::fp8_group128;
}

int64_t quantized_bytes(ActivationFormat f, int64_t n, int64_t cols) {
    if (f == ActivationFormat::none) return 0;
    return aligned(n * std::max(cols * 2, cuda::codes_pitch(cols))) +
           (has_row_scales(f) ? aligned(n * groups(cols) * 4) : 0);
}

// Returns x in the form that the linear reads: x itself, or quantized (with q.codes: as codes).
Result<cuda::ProductInput> product_input(ActivationFormat format, float input_scale, const std::byte* x, int64_t n,
                                         int64_t cols, cuda::QuantizeInputs q, DeviceStep& step) {
    cuda::ProductInput in{.x = x, .tokens = n};
    if (format == ActivationFormat::none) return in;
    q.format = format;
    q.x = x, q.tokens = n, q.cols = cols;
    q.input_scale = input_scale;
    in.codes = q.codes;
    NIBBLE_TRY(q.out, step.scratch.allocate(n * (q.codes ? cuda::codes_pitch(cols) : cols * 2)));
    if (has_row_scales(format)) {
        NIBBLE_TRY(q.scales, step.scratch.allocate_array<float>(n * groups(cols)));
    }
    NIBBLE_CHECK(cuda::quantize_inputs(q, step.overlap, step.stream));
    in.x = q.out;
    if (format == ActivationFormat::fp8_token) in.token_scales = q.scales;
    if (format == ActivationFormat::fp8_group128) in.group_scales = q.scales;
    if (stores_input_scale(format)) in.scale = input_scale;
    return in;
}

// Returns the input of the product with the linear's operand: codes that the writer of x made, or x, quantized if
// necessary.
Result<cuda::ProductInput> read_input(const DeviceLinear& l, const DeviceInput& from, int64_t n, DeviceStep& step) {
    if (!l.operand.codes || !from.ordered)
        return product_input(l.activation, l.input_scale, from.x, n, l.cols, {.codes = l.operand.codes}, step);
    cuda::ProductInput in{.x = from.x, .codes = true, .tokens = n};
    const float* scales = cuda::scales_after(const_cast<std::byte*>(from.x), n, l.cols);
    if (l.activation == ActivationFormat::fp8) in.scale = l.input_scale;
    if (l.activation == ActivationFormat::fp8_token) in.token_scales = scales;
    if (l.activation == ActivationFormat::fp8_group128) in.group_scales = scales;
    return in;
}

Status run_w4a16(const DeviceLinear& l, const DeviceInput& in, int64_t n, float* y, const cuda::MatmulFactors& factors,
                 DeviceStep& step) {
    NIBBLE_TRY(const cuda::MatmulPlan plan, step.plans.matmul(n, l.rows, l.cols, l.interleaved_gate));
    if (plan.workspace_bytes > step.matmul_workspace_bytes)
        return fail("a workspace of {} bytes was planned for products, but they need {}", step.matmul_workspace_bytes,
                    plan.workspace_bytes);
    const cuda::MatmulOptions options{.overlap = step.overlap, .norm = in.norm, .side = in.side};
    const std::byte* x = in.x;
    if (plan.permuted_bytes > 0 && !in.ordered) {
        NIBBLE_TRY(std::byte * permuted, step.scratch.allocate(plan.permuted_bytes));
        NIBBLE_CHECK(cuda::permute(plan, x, permuted, options, step.stream));
        x = permuted;
    }
    return cuda::matmul(plan, x, l.records, factors, y, plan.workspace_bytes ? step.matmul_workspace : nullptr, options,
                        step.stream);
}

}  // namespace

Status prepare_linears(const DeviceInfo& device) {
    NIBBLE_CHECK(cuda::prepare_matmul(device));
    return cuda::prepare_grouped_matmul(device);
}

Result<InputPlan> DeviceLinear::plan(int64_t n, const DeviceStep& step, bool whole_rows) const {
    InputPlan out;
    if (step.observer) return out;
    if (other) {
        if (cols % 128 == 0) out.order.codes = other->reads_codes();
        return out;
    }
    if (operand.codes && cols % 128 == 0 && (whole_rows || activation != ActivationFormat::fp8_token))
        out.order.codes = activation, out.order.input_scale = input_scale;
    if (!w4a16) return out;
    NIBBLE_TRY(const cuda::MatmulPlan plan, step.plans.matmul(n, rows, cols, interleaved_gate));
    if (plan.permuted_bytes > 0 && cols % 256 == 0) out.order.tile_tokens = plan.tiling.tokens;
    out.inside = plan.norms;
    return out;
}

Result<bool> DeviceLinear::activates(int64_t n, bool gated, const DeviceStep& step) const {
    if (!w4a16 || interleaved_gate != gated) return false;
    NIBBLE_TRY(const cuda::MatmulPlan plan, step.plans.matmul(n, rows, cols, interleaved_gate));
    return plan.activates();
}

Result<bool> DeviceLinear::takes_side(const DeviceLinear& side, const DeviceStep& step) const {
    if (!w4a16 || step.observer || other || side.other || side.w4a16 || side.activation != ActivationFormat::none)
        return false;
    NIBBLE_TRY(const cuda::MatmulPlan plan, step.plans.matmul(1, rows, cols, interleaved_gate));
    return cuda::takes_side(plan, side.operand);
}

Status DeviceLinear::forward_activated(const DeviceInput& in, int64_t n, Activation kind, std::byte* mid,
                                       DeviceStep& step) const {
    const DeviceScope scope(step);
    if (step.observer) NIBBLE_CHECK(step.observer->input(names, in.x, n, cols, step.stream).within(name));
    cuda::MatmulFactors f = factors;
    f.activated = mid, f.activation = kind;
    // y is not written, but must be a valid address.
    return run_w4a16(*this, in, n, reinterpret_cast<float*>(mid), f, step).within(name);
}

Status DeviceLinear::forward(const DeviceInput& from, int64_t n, float* y, int64_t y_stride, DeviceStep& step) const {
    const DeviceScope scope(step);
    const std::byte* x = from.x;
    if (step.observer) NIBBLE_CHECK(step.observer->input(names, x, n, cols, step.stream).within(name));
    if (w4a16) {
        cuda::MatmulFactors f = factors;
        f.y_stride = y_stride;
        return run_w4a16(*this, from, n, y, f, step).within(name);
    }
    if (from.norm.h || from.side.w) return fail("{}: this product cannot compute a norm or a second product", name);
    if (other) return other->forward(from, n, y, y_stride, operand.bias, step).within(name);
    NIBBLE_TRY(const cuda::ProductInput in, read_input(*this, from, n, step).within(name));
    return cuda::matmul(in, operand, y, y_stride, step.overlap, step.stream).within(name);
}

Status DeviceLinear::forward_rounded(const DeviceInput& in, int64_t n, std::byte* y, DeviceStep& step) const {
    const DeviceScope scope(step);
    if (rounded_bytes(n) > 0) {
        NIBBLE_TRY(float* unrounded, step.scratch.allocate_array<float>(n * rows));
        NIBBLE_CHECK(forward(in, n, unrounded, rows, step));
        return cuda::to_rows(unrounded, 0, n, rows, {y}, step.overlap, step.stream).within(name);
    }
    if (step.observer) NIBBLE_CHECK(step.observer->input(names, in.x, n, cols, step.stream).within(name));
    if (other) return other->forward_rounded(in, n, y, operand.bias, step).within(name);
    NIBBLE_TRY(const cuda::ProductInput x, read_input(*this, in, n, step).within(name));
    return cuda::rounded_matmul(x, operand, y, rows, step.overlap, step.stream).within(name);
}

int64_t DeviceLinear::rounded_bytes(int64_t n) const {
    const bool rounds = other ? other->rounds(n) : !w4a16 && cuda::has_rounded_matmul(operand, n);
    return rounds ? 0 : aligned(4 * n * rows);
}

namespace {

std::string_view weight_name(Format format) { return format == Format::none ? "bf16" : format_name(format); }
std::string_view input_name(ActivationFormat format) {
    return format == ActivationFormat::none ? "bf16" : activation_name(format);
}

}  // namespace

Status DeviceLinear::kernels(int64_t n, const DeviceStep& step, std::vector<KernelUse>& uses) const {
    KernelUse use{.modules = names,
                  .weights = std::string(weight_name(format)),
                  .inputs = std::string(input_name(activation)),
                  .out_width = rows,
                  .in_width = cols};
    if (other) {
        NIBBLE_TRY(use.choice, other->describe(n).within(name));
    } else if (w4a16) {
        NIBBLE_TRY(const cuda::MatmulPlan plan, step.plans.matmul(n, rows, cols, interleaved_gate));
        use.choice = cuda::describe(plan);
    } else {
        NIBBLE_TRY(use.choice, cuda::describe_matmul(operand, n).within(name));
    }
    uses.push_back(std::move(use));
    return Ok{};
}

int64_t DeviceLinear::scratch_bytes(int64_t n) const {
    if (other) return other->scratch_bytes(n);
    return w4a16 ? aligned(round_up(n, most_tile_tokens) * round_up<int64_t>(cols, 256) * 2)
                 : quantized_bytes(activation, n, cols);
}

// Several parts may prefer different layouts, so the default is used.
Result<InputPlan> DeviceStack::plan(int64_t n, const DeviceStep& step, bool whole_rows) const {
    if (parts.size() > 1) return InputPlan{};
    return parts[0].plan(n, step, whole_rows);
}

Status DeviceStack::forward(const DeviceInput& in, int64_t n, float* y, DeviceStep& step) const {
    for (const DeviceLinear& part : parts) {
        NIBBLE_CHECK(part.forward(in, n, y, rows, step));
        y += part.rows;
    }
    return Ok{};
}

Status DeviceStack::kernels(int64_t n, const DeviceStep& step, std::vector<KernelUse>& uses) const {
    for (const DeviceLinear& part : parts) NIBBLE_CHECK(part.kernels(n, step, uses));
    return Ok{};
}

int64_t DeviceStack::scratch_bytes(int64_t n) const {
    int64_t most = 0;
    for (const DeviceLinear& part : parts) most = std::max(most, part.scratch_bytes(n));
    return most;
}

namespace {

cuda::ExpertsInput experts_input(const DeviceExpertRows& in) {
    return {.x = in.x, .rows = in.rows, .slots = in.n, .routed = in.routed, .choice = in.choice, .dense = in.dense};
}

cuda::PackedExperts packed_experts(const DeviceExperts::Part& part, const DeviceExpertRows& in) {
    cuda::PackedExperts weights = part.packed;
    weights.begin = in.begin;
    return weights;
}

cuda::ExpertsOutput experts_output(const DeviceExpertRows& in, float* y, int64_t y_stride) {
    return {.y = in.combine.sum ? nullptr : y, .y_stride = y_stride, .combine = in.combine};
}

Status run_grouped(const DeviceExperts::Part& part, const DeviceExpertRows& in, const cuda::ExpertsOutput& out,
                   DeviceStep& step) {
    return cuda::grouped_matmul(experts_input(in), packed_experts(part, in), out, step.overlap, step.stream)
        .within(part.name);
}

}  // namespace

Status DeviceExperts::forward(const DeviceExpertRows& in, float* y, DeviceStep& step) const {
    if (other) return other->forward(in, y, step);
    const DeviceScope scope(step);
    const std::byte* sorted = in.rows ? nullptr : in.x;
    for (const Part& part : parts) {
        const DeviceScope inner(step);
        if (!part.others.empty()) {
            NIBBLE_CHECK(forward_others(part, in, y, step));
            y += part.rows();
            continue;
        }
        if (part.w4a16) {
            NIBBLE_CHECK(run_grouped(part, in, experts_output(in, y, rows), step));
            y += part.rows();
            continue;
        }
        cuda::ProductInput product{.x = in.x, .tokens = in.n, .rows = in.rows};
        const bool codes = part.weights.first.codes;
        if (codes && !part.input_scales) {
            // A token has the same codes for all of its experts, so the product gathers rows of codes.
            const int64_t n = in.rows ? step.rows : in.n;
            const cuda::QuantizeInputs as{.codes = true};
            NIBBLE_TRY(product, product_input(part.activation, 1.0f, in.x, n, cols, as, step).within(part.name));
            product.tokens = in.n, product.rows = in.rows;
        } else if (part.activation != ActivationFormat::none) {
            if (!sorted) {
                NIBBLE_TRY(std::byte * gathered, step.scratch.allocate(in.n * cols * 2));
                NIBBLE_CHECK(cuda::embed(in.x, in.rows, in.n, cols, gathered, step.overlap, step.stream));
                sorted = gathered;
            }
            cuda::QuantizeInputs q{.codes = codes};
            q.expert_scales = part.input_scales, q.begin = in.begin, q.experts = static_cast<int>(experts);
            NIBBLE_TRY(product, product_input(part.activation, 1.0f, sorted, in.n, cols, q, step).within(part.name));
            if (in.rows) sorted = nullptr;  // its memory was released with the scope
        }
        cuda::Experts weights = part.weights;
        weights.begin = in.begin;
        NIBBLE_CHECK(cuda::grouped_matmul(product, weights, y, rows, step.overlap, step.stream).within(part.name));
        y += part.rows();
    }
    return Ok{};
}

Status DeviceExperts::activated(const DeviceExpertRows& in, Activation activation, std::byte* out,
                                DeviceStep& step) const {
    return run_grouped(parts[0], in, {.out = out, .activation = activation, .gated = paired}, step);
}

Status DeviceExperts::kernels(const DeviceExpertRows& in, bool activation, std::vector<KernelUse>& uses) const {
    if (other) return other->kernels(in, uses);
    auto* const somewhere = reinterpret_cast<std::byte*>(uintptr_t{4096});  // a valid address that is not read
    for (const Part& part : parts) {
        KernelUse use{.modules = part.names[0],
                      .weights = std::string(weight_name(part.format)),
                      .inputs = std::string(input_name(part.activation)),
                      .out_width = part.rows(),
                      .in_width = cols};
        if (part.w4a16) {
            const cuda::ExpertsOutput out = activation ? cuda::ExpertsOutput{.out = somewhere, .gated = paired}
                                                       : experts_output(in, reinterpret_cast<float*>(somewhere), rows);
            NIBBLE_TRY(
                use.choice,
                cuda::describe_grouped_matmul(experts_input(in), packed_experts(part, in), out).within(part.name));
            if (activation) use.choice.why += "; computes the activation too";
        } else if (!part.others.empty()) {
            NIBBLE_TRY(use.choice, part.others[0]->describe(in.n).within(part.name));
            use.choice.why += "; one launch per expert";
        } else {
            NIBBLE_TRY(use.choice, cuda::describe_grouped_matmul(part.weights, in.n).within(part.name));
        }
        uses.push_back(std::move(use));
    }
    return Ok{};
}

Status DeviceExperts::show(const DeviceExpertRows& in, DeviceStep& step) const {
    if (!step.observer) return Ok{};
    const DeviceScope scope(step);
    const std::byte* sorted = in.x;
    if (in.rows) {
        NIBBLE_TRY(std::byte * gathered, step.scratch.allocate(in.n * cols * 2));
        NIBBLE_CHECK(cuda::embed(in.x, in.rows, in.n, cols, gathered, step.overlap, step.stream));
        sorted = gathered;
    }
    for (const Part& part : parts)
        NIBBLE_CHECK(
            step.observer->expert_inputs(part.names, sorted, in.n, cols, in.begin, step.stream).within(part.name));
    return Ok{};
}

int64_t DeviceExperts::scratch_bytes(int64_t n) const {
    if (other) return other->scratch_bytes(n);
    int64_t most = 0;
    for (const Part& part : parts)
        most = std::max(
            most, part.others.empty() ? quantized_bytes(part.activation, n, cols) : part.others[0]->scratch_bytes(n));
    return most + aligned(n * cols * 2);  // sorted rows, for quantization of inputs and for observers
}

}  // namespace nibble
