#include "model/device/mamba.h"

#include <algorithm>

namespace nibble {
namespace {

SsmNorm order_of(MambaConfig::Norm norm) {
    if (norm == MambaConfig::Norm::none) return SsmNorm::none;
    return norm == MambaConfig::Norm::before_gate ? SsmNorm::before_gate : SsmNorm::after_gate;
}

}  // namespace

Result<std::unique_ptr<DeviceMixer>> DeviceMamba::make(const BlockConfig& block, float eps, const Mamba& mamba,
                                                       DeviceWeights& weights) {
    auto m = std::make_unique<DeviceMamba>();
    const MambaConfig& c = mamba.config();
    m->index_ = block.index;
    m->eps_ = eps;
    m->dt_min_ = c.dt_min;
    m->order_ = order_of(c.norm);
    m->scales_ = c.scales;
    m->shape_ = {.heads = c.heads,
                 .head_dim = c.head_dim,
                 .groups = c.groups,
                 .state = c.state,
                 .conv = c.conv,
                 .format = mamba.state_format()};
    m->stream_ = {.seed = mamba.state_seed(), .role = static_cast<uint64_t>(block.index)};
    NIBBLE_TRY(m->in_proj_, weights.linear(mamba.in_proj()));
    NIBBLE_TRY(m->out_proj_, weights.linear(mamba.out_proj()));
    NIBBLE_TRY(m->vectors_.conv_weight, weights.vector(mamba.conv_weight()));
    NIBBLE_TRY(m->vectors_.conv_bias, weights.vector(mamba.conv_bias()));
    NIBBLE_TRY(m->vectors_.a, weights.vector(mamba.a()));
    NIBBLE_TRY(m->vectors_.d, weights.vector(mamba.d()));
    NIBBLE_TRY(m->vectors_.dt_bias, weights.vector(mamba.dt_bias()));
    NIBBLE_TRY(m->vectors_.norm, weights.vector(mamba.norm()));
    return std::unique_ptr<DeviceMixer>(std::move(m));
}

// The scan needs rows in order. With many rows, permuting them would cost another launch, so only one row uses the
// product's layout.
Result<InputPlan> DeviceMamba::plan(const DeviceStep& step) const {
    if (step.rows != 1) return InputPlan{};
    NIBBLE_TRY(const InputPlan product, in_proj_.plan(1, step, true));
    return InputPlan{.inside = product.inside};
}

Status DeviceMamba::forward(const DeviceInput& in, float* y, DeviceStep& step) const {
    const DeviceScope scope(step);
    const int64_t rows = step.rows;
    NIBBLE_TRY(float* projected, step.scratch.allocate_array<float>(rows * in_proj_.rows));
    NIBBLE_TRY(std::byte * mixed, step.scratch.allocate(rows * shape_.inner() * 2));
    NIBBLE_CHECK(in_proj_.forward(in, rows, projected, in_proj_.rows, step));
    NIBBLE_CHECK(mix(projected, mixed, step));
    return out_proj_.forward({.x = mixed}, rows, y, out_proj_.rows, step);
}

// The outputs of in_proj: z, x, B, C and dt.
std::array<cuda::ScaleColumns::Part, 5> DeviceMamba::scaled_parts() const {
    const int64_t inner = shape_.inner(), states = int64_t{shape_.groups} * shape_.state;
    return {{{inner, scales_[0]},
             {inner, scales_[1]},
             {states, scales_[2]},
             {states, scales_[3]},
             {shape_.heads, scales_[4]}}};
}

Status DeviceMamba::mix(float* projected, std::byte* mixed, DeviceStep& step) const {
    const DeviceScope scope(step);
    NIBBLE_TRY(std::byte * workspace, step.scratch.allocate(cuda::mamba_workspace_bytes(shape_, step.rows)));
    const std::array<cuda::ScaleColumns::Part, 5> parts = scaled_parts();
    if (std::ranges::any_of(parts, [](const auto& part) { return part.by != 1.0f; }))
        NIBBLE_CHECK(cuda::scale_columns({.tokens = step.rows, .x = projected, .stride = in_proj_.rows, .parts = parts},
                                         step.overlap, step.stream));
    return cuda::mamba_step({.shape = shape_,
                             .tokens = step.rows,
                             .segments = static_cast<int>(step.segments),
                             .longest = step.longest,
                             .list = step.blocks[size_t(index_)].segments,
                             .projected = projected,
                             .conv_weight = vectors_.conv_weight,
                             .conv_bias = vectors_.conv_bias,
                             .a = vectors_.a,
                             .d = vectors_.d,
                             .dt_bias = vectors_.dt_bias,
                             .dt_min = dt_min_,
                             .order = order_,
                             .norm = vectors_.norm,
                             .eps = eps_,
                             .stream = stream_,
                             .out = mixed,
                             .workspace = workspace},
                            step.overlap, step.stream);
}

Status DeviceMamba::kernels(bool inside, const DeviceStep& step, std::vector<KernelUse>& uses) const {
    const size_t first = uses.size();
    NIBBLE_CHECK(in_proj_.kernels(step.rows, step, uses));
    if (inside) note_norm_inside(uses, first);
    return out_proj_.kernels(step.rows, step, uses);
}

int64_t DeviceMamba::scratch_bytes(int64_t rows) const {
    return rows * (4 * in_proj_.rows + 2 * shape_.inner()) + cuda::mamba_workspace_bytes(shape_, rows) +
           std::max(in_proj_.scratch_bytes(rows), out_proj_.scratch_bytes(rows)) + 8 * DeviceArena::alignment;
}

}  // namespace nibble
