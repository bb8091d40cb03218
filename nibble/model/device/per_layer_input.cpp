#include "model/device/per_layer_input.h"

#include <algorithm>

namespace nibble {

Result<std::unique_ptr<DeviceMixer>> DevicePerLayerInput::make(const ModelConfig& model, const PerLayerInput& outline,
                                                               DeviceWeights& weights) {
    auto p = std::make_unique<DevicePerLayerInput>();
    const PerLayerInputConfig& c = outline.config();
    p->hidden_ = model.hidden, p->width_ = c.width;
    p->eps_ = model.norm_eps, p->root_ = outline.root();
    if (c.width % 8) return fail("'{}': {} columns per layer: --device cuda needs a multiple of 8", c.table, c.width);
    NIBBLE_TRY(Workspace * host, weights.host());
    NIBBLE_TRY(p->table_, weights.embedding(outline.table(), c.vocab, c.width, *host));
    NIBBLE_TRY(p->norm_, weights.vector(outline.norm()));
    NIBBLE_TRY(p->projection_, weights.linear(outline.projection()));
    NIBBLE_TRY(p->gate_, weights.linear(outline.gate()));
    NIBBLE_TRY(p->out_, weights.linear(outline.out()));
    return std::unique_ptr<DeviceMixer>(std::move(p));
}

Status DevicePerLayerInput::forward(const DeviceInput& in, float* y, DeviceStep& step) const {
    if (!step.embedding) return fail("per-layer embeddings need the model's embedding on the device");
    const DeviceScope scope(step);
    const int64_t rows = step.rows;
    NIBBLE_TRY(std::byte * embedded, step.scratch.allocate(2 * rows * hidden_));
    NIBBLE_TRY(float* projected, step.scratch.allocate_array<float>(rows * width_));
    NIBBLE_TRY(float* gate, step.scratch.allocate_array<float>(rows * width_));
    NIBBLE_TRY(std::byte * mid, step.scratch.allocate(2 * rows * width_));
    NIBBLE_CHECK(cuda::embed(step.embedding, step.tokens, rows, hidden_, embedded, step.overlap, step.stream));
    NIBBLE_CHECK(projection_.forward({.x = embedded}, rows, projected, width_, step));
    NIBBLE_CHECK(gate_.forward({.x = in.x}, rows, gate, width_, step));
    NIBBLE_CHECK(cuda::per_layer_rows({.tokens = rows,
                                       .width = width_,
                                       .projected = projected,
                                       .table = table_,
                                       .ids = step.tokens,
                                       .norm = norm_,
                                       .eps = eps_,
                                       .root = root_,
                                       .half = PerLayerInput::half(),
                                       .gate = gate,
                                       .out = mid},
                                      step.overlap, step.stream));
    return out_.forward({.x = mid}, rows, y, out_.rows, step);
}

Status DevicePerLayerInput::kernels(bool, const DeviceStep& step, std::vector<KernelUse>& uses) const {
    for (const DeviceLinear* linear : {&projection_, &gate_, &out_})
        NIBBLE_CHECK(linear->kernels(step.rows, step, uses));
    return Ok{};
}

int64_t DevicePerLayerInput::scratch_bytes(int64_t rows) const {
    return rows * (2 * hidden_ + 10 * width_) +
           std::max({projection_.scratch_bytes(rows), gate_.scratch_bytes(rows), out_.scratch_bytes(rows)}) +
           6 * DeviceArena::alignment;
}

}  // namespace nibble
