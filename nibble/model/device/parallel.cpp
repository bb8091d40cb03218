#include "model/device/parallel.h"

#include <algorithm>

namespace nibble {

Result<std::unique_ptr<DeviceMixer>> DeviceParallel::make(const ModelConfig& model, const BlockConfig& block,
                                                          const Parallel& outline, DeviceWeights& weights) {
    auto all = std::make_unique<DeviceParallel>();
    all->hidden_ = model.hidden;
    all->eps_ = model.norm_eps;
    all->centered_ = model.layer_norm;
    const auto& branches = std::get<ParallelConfig>(block.mixer).branches;
    for (size_t i = 0; i < branches.size(); ++i) {
        const Parallel::Part& of_cpu = outline.parts()[i];
        if (of_cpu.post_norm.centered && !of_cpu.post_norm.empty())
            return fail("{}: LayerNorm after one of several mixers has no kernel on --device cuda", branches[i].prefix);
        Part part{.in_scale = of_cpu.in_scale, .out_scale = of_cpu.out_scale};
        NIBBLE_TRY(part.norm, weights.vector(of_cpu.norm.weight));
        NIBBLE_TRY(part.norm_bias, weights.vector(of_cpu.norm.bias));
        NIBBLE_TRY(part.post_norm, weights.vector(of_cpu.post_norm.weight));
        const BlockConfig alone{
            .index = block.index, .layer = block.layer, .prefix = branches[i].prefix, .mixer = branches[i].mixer};
        NIBBLE_TRY(part.mixer, make_device_mixer(model, alone, *of_cpu.mixer, weights));
        all->parts_.push_back(std::move(part));
    }
    return std::unique_ptr<DeviceMixer>(std::move(all));
}

Status DeviceParallel::forward(const DeviceInput& in, float* y, DeviceStep& step) const {
    const int64_t rows = step.rows;
    for (const Part& part : parts_) {
        const DeviceScope scope(step);
        const bool first = &part == parts_.data();
        DeviceInput own{.x = in.x};
        if (part.norm) {
            NIBBLE_TRY(std::byte * normed, step.scratch.allocate(2 * rows * hidden_));
            NIBBLE_CHECK(cuda::add_norm({.tokens = rows,
                                         .width = hidden_,
                                         .h = const_cast<std::byte*>(in.x),  // without an update it is only read
                                         .weight = part.norm,
                                         .bias = part.norm_bias,
                                         .eps = eps_,
                                         .centered = centered_,
                                         .out = {normed}},
                                        step.overlap, step.stream));
            own.x = normed;
        }
        if (part.in_scale != 1.0f) {
            NIBBLE_TRY(std::byte * scaled, step.scratch.allocate(2 * rows * hidden_));
            NIBBLE_CHECK(cuda::scale_rows(own.x, rows * hidden_, part.in_scale, scaled, step.overlap, step.stream));
            own.x = scaled;
        }
        float* out = y;
        if (!first) {
            NIBBLE_TRY(out, step.scratch.allocate_array<float>(rows * hidden_));
        }
        NIBBLE_CHECK(part.mixer->forward(own, out, step));
        if (part.post_norm)
            NIBBLE_CHECK(cuda::norm_rows(
                {.tokens = rows, .width = hidden_, .in = out, .weight = part.post_norm, .eps = eps_, .wide = out},
                step.overlap, step.stream));
        if (part.out_scale != 1.0f)
            NIBBLE_CHECK(cuda::round_rows(out, rows * hidden_, step.overlap, step.stream, {.scale = part.out_scale}));
        if (!first) NIBBLE_CHECK(cuda::add_rows(y, out, rows * hidden_, step.overlap, step.stream));
    }
    return Ok{};
}

Status DeviceParallel::kernels(bool, const DeviceStep& step, std::vector<KernelUse>& uses) const {
    for (const Part& part : parts_) NIBBLE_CHECK(part.mixer->kernels(false, step, uses));
    return Ok{};
}

int64_t DeviceParallel::scratch_bytes(int64_t rows) const {
    int64_t most = 0;
    for (const Part& part : parts_) most = std::max(most, part.mixer->scratch_bytes(rows));
    return most + 8 * rows * hidden_ + 3 * DeviceArena::alignment;
}

bool DeviceParallel::waits() const {
    return std::ranges::any_of(parts_, [](const Part& part) { return part.mixer->waits(); });
}

StateLayout DeviceParallel::state() const {
    StateLayout all;
    for (const Part& part : parts_) {
        const StateLayout one = part.mixer->state();
        if (one.page_bytes > 0) all.page_bytes = one.page_bytes, all.window = one.window;
        all.floats += one.floats;
    }
    return all;
}

const DeviceMixer* DeviceParallel::attending() const {
    for (const Part& part : parts_)
        if (part.mixer->attention()) return part.mixer.get();
    return nullptr;
}

std::optional<cuda::AttentionProblem> DeviceParallel::attention() const {
    const DeviceMixer* mixer = attending();
    return mixer ? mixer->attention() : std::optional<cuda::AttentionProblem>();
}

const Rope* DeviceParallel::rope() const {
    const DeviceMixer* mixer = attending();
    return mixer ? mixer->rope() : nullptr;
}

DeviceKv* DeviceParallel::kv() {
    for (const Part& part : parts_)
        if (DeviceKv* kv = part.mixer->kv()) return kv;
    return nullptr;
}

int DeviceParallel::kv_block() const {
    const DeviceMixer* mixer = attending();
    return mixer ? mixer->kv_block() : -1;
}

}  // namespace nibble
