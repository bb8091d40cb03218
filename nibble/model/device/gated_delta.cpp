#include "model/device/gated_delta.h"

#include <algorithm>

namespace nibble {

Result<std::unique_ptr<DeviceMixer>> DeviceGatedDelta::make(const BlockConfig& block, float eps,
                                                            const GatedDelta& delta, DeviceWeights& weights) {
    auto d = std::make_unique<DeviceGatedDelta>();
    const GatedDeltaConfig& c = delta.config();
    d->index_ = block.index;
    d->eps_ = eps;
    d->unit_eps_ = delta.unit_eps(), d->q_scale_ = delta.q_scale(), d->k_scale_ = delta.k_scale();
    d->shape_ = {.key_heads = c.key_heads,
                 .value_heads = c.value_heads,
                 .key_dim = c.key_dim,
                 .value_dim = c.value_dim,
                 .conv = c.conv,
                 .by_key_head = c.by_key_head,
                 .by_channel = c.by_channel};
    if (c.by_channel && (c.key_dim % 8 || c.value_dim % 8 || c.value_heads % 2))
        return fail("{}: {} heads of {} and {} dimensions have no kernel for decays by channel on --device cuda",
                    block.prefix, c.value_heads, c.key_dim, c.value_dim);
    NIBBLE_TRY(d->in_, weights.stack(delta.in()));
    if (c.by_channel) {
        NIBBLE_TRY(d->decay_out_, weights.linear(*delta.decay_out()));
        NIBBLE_TRY(d->gate_out_, weights.linear(*delta.gate_out()));
    } else {
        NIBBLE_TRY(d->gates_, weights.stack(delta.gates()));
    }
    NIBBLE_TRY(d->out_, weights.linear(delta.out()));
    NIBBLE_TRY(d->conv_weight_, weights.vector(delta.conv_weight()));
    NIBBLE_TRY(d->a_, weights.vector(delta.a()));
    NIBBLE_TRY(d->dt_bias_, weights.vector(delta.dt_bias()));
    NIBBLE_TRY(d->norm_, weights.vector(delta.norm()));
    return std::unique_ptr<DeviceMixer>(std::move(d));
}

// The rule needs rows in order, so only one row uses the layout of a product; gates_ reads row-major rows in any case.
Result<InputPlan> DeviceGatedDelta::plan(const DeviceStep& step) const {
    if (step.rows != 1) return InputPlan{};
    NIBBLE_TRY(const InputPlan product, in_.plan(1, step, true));
    return InputPlan{.inside = product.inside};
}

Result<bool> DeviceGatedDelta::computes_gates_jointly(const DeviceStep& step) const {
    if (step.rows != 1 || in_.parts.size() != 1 || gates_.parts.size() != 1) return false;
    return in_.parts[0].takes_side(gates_.parts[0], step);
}

Status DeviceGatedDelta::forward(const DeviceInput& in, float* y, DeviceStep& step) const {
    const DeviceScope scope(step);
    const int64_t rows = step.rows;
    NIBBLE_TRY(float* projected, step.scratch.allocate_array<float>(rows * in_.rows));
    NIBBLE_TRY(float* gates, step.scratch.allocate_array<float>(rows * gates_.rows));
    NIBBLE_TRY(std::byte * mixed, step.scratch.allocate(rows * shape_.inner() * 2));
    NIBBLE_TRY(const bool joint, computes_gates_jointly(step));
    DeviceInput first = in;
    if (in.norm.h && joint) first.side = {&gates_.parts[0].operand, gates};
    NIBBLE_CHECK(in_.forward(first, rows, projected, step));
    Gates of{.gates = gates};
    if (shape_.by_channel) {
        NIBBLE_TRY(of, project_gates(projected, step));
    } else if (!first.side.w) {
        NIBBLE_CHECK(gates_.forward({.x = in.x}, rows, gates, step));
    }
    NIBBLE_CHECK(mix(projected, of, mixed, step));
    return out_.forward({.x = mixed}, rows, y, out_.rows, step);
}

// A row of `projected` is [q | k | v | inputs of decay_out_ | inputs of gate_out_ | b].
Result<DeviceGatedDelta::Gates> DeviceGatedDelta::project_gates(const float* projected, DeviceStep& step) const {
    const int64_t rows = step.rows;
    const float* at = projected + shape_.channels();
    const auto product = [&](const DeviceLinear& linear) -> Result<const float*> {
        NIBBLE_TRY(std::byte * x, step.scratch.allocate(rows * linear.cols * 2));
        NIBBLE_TRY(float* y, step.scratch.allocate_array<float>(rows * linear.rows));
        NIBBLE_CHECK(cuda::to_rows(at, in_.rows, rows, linear.cols, {x}, step.overlap, step.stream));
        NIBBLE_CHECK(linear.forward({.x = x}, rows, y, linear.rows, step));
        at += linear.cols;
        return y;
    };
    Gates gates;
    NIBBLE_TRY(gates.by_channel, product(*decay_out_));
    NIBBLE_TRY(gates.z, product(*gate_out_));
    gates.gates = at;
    return gates;
}

Status DeviceGatedDelta::mix(const float* projected, const Gates& gates, std::byte* mixed, DeviceStep& step) const {
    const DeviceScope scope(step);
    NIBBLE_TRY(std::byte * workspace, step.scratch.allocate(cuda::delta_workspace_bytes(shape_, step.rows)));
    return cuda::delta_step({.shape = shape_,
                             .tokens = step.rows,
                             .segments = static_cast<int>(step.segments),
                             .longest = step.longest,
                             .list = step.blocks[size_t(index_)].segments,
                             .projected = projected,
                             .gates = gates.gates,
                             .stride = shape_.by_channel ? in_.rows : 0,
                             .z = gates.z,
                             .channel_gates = gates.by_channel,
                             .conv_weight = conv_weight_,
                             .a = a_,
                             .dt_bias = dt_bias_,
                             .unit_eps = unit_eps_,
                             .q_scale = q_scale_,
                             .k_scale = k_scale_,
                             .norm = norm_,
                             .eps = eps_,
                             .out = mixed,
                             .workspace = workspace},
                            step.overlap, step.stream);
}

Status DeviceGatedDelta::kernels(bool inside, const DeviceStep& step, std::vector<KernelUse>& uses) const {
    const size_t first = uses.size();
    NIBBLE_CHECK(in_.kernels(step.rows, step, uses));
    if (inside) note_norm_inside(uses, first);
    const size_t gates_at = uses.size();
    for (const std::optional<DeviceLinear>* linear : {&decay_out_, &gate_out_})
        if (*linear) NIBBLE_CHECK((*linear)->kernels(step.rows, step, uses));
    NIBBLE_CHECK(gates_.kernels(step.rows, step, uses));
    NIBBLE_TRY(const bool joint, computes_gates_jointly(step));
    if (inside && joint)
        uses[gates_at].choice = {uses[first].choice.kernel, "in the launch of the product of q, k, v and z"};
    return out_.kernels(step.rows, step, uses);
}

int64_t DeviceGatedDelta::scratch_bytes(int64_t rows) const {
    int64_t products = std::max({in_.scratch_bytes(rows), gates_.scratch_bytes(rows), out_.scratch_bytes(rows)});
    int64_t gates = 4 * gates_.rows;
    for (const std::optional<DeviceLinear>* linear : {&decay_out_, &gate_out_}) {
        if (!*linear) continue;
        products = std::max(products, (*linear)->scratch_bytes(rows));
        gates += 4 * (*linear)->rows + 2 * (*linear)->cols;
    }
    return rows * (4 * in_.rows + gates + 2 * shape_.inner()) + cuda::delta_workspace_bytes(shape_, rows) + products +
           16 * DeviceArena::alignment;
}

}  // namespace nibble
