#include "model/device/predictor.h"

#include <algorithm>

namespace nibble {

Result<DevicePredictor> DevicePredictor::make(const ModelConfig& model, const Predictor& outline,
                                              DeviceWeights& weights) {
    DevicePredictor p;
    p.hidden_ = model.hidden;
    p.eps_ = model.norm_eps;
    p.hands_on_normed_ = outline.hands_on_normed();
    if (model.layer_norm) return fail("layers for multi-token prediction with LayerNorm have no kernels on a GPU");
    NIBBLE_TRY(p.projection_, weights.linear(outline.projection()));
    NIBBLE_TRY(p.embedding_norm_, weights.vector(outline.embedding_norm()));
    NIBBLE_TRY(p.hidden_norm_, weights.vector(outline.hidden_norm()));
    NIBBLE_TRY(p.norm_, weights.vector(outline.norm()));
    for (const Block& block : outline.blocks()) {
        NIBBLE_TRY(DeviceLayer layer, DeviceLayer::make(model, block, weights));
        p.layers_.push_back(std::move(layer));
        if (p.layers_.back().mixer->state().page_bytes > 0) p.keeping_ = p.layers_.size();
    }
    return p;
}

int64_t DevicePredictor::scratch_bytes(int64_t rows, int64_t wanted) const {
    int64_t inside = projection_.scratch_bytes(rows);
    for (const DeviceLayer& layer : layers_) inside = std::max(inside, layer.mixer->scratch_bytes(rows));
    return (14 * rows + 2 * padded_rows(rows) + 2 * wanted + 2) * hidden_ + inside + 8 * DeviceArena::alignment;
}

Status DevicePredictor::queue(const Input& in, DeviceStep& step) const {
    const DeviceScope scope(step);
    const int64_t rows = step.rows, width = 2 * hidden_;  // bytes of a row
    NIBBLE_TRY(std::byte * both, step.scratch.allocate(2 * rows * width));
    NIBBLE_TRY(std::byte * normed, step.scratch.allocate(2 * rows * width));
    NIBBLE_TRY(float* y, step.scratch.allocate_array<float>(rows * hidden_));
    NIBBLE_TRY(std::byte * h, step.scratch.allocate(rows * width));
    NIBBLE_TRY(std::byte * x, step.scratch.allocate(padded_rows(rows) * width));
    NIBBLE_TRY(std::byte * other, step.scratch.allocate(width));  // one-row passes alternate between `h` and this
                                                                  // buffer
    // The projection reads, in each row, a normalized embedding followed by a normalized hidden state. All embeddings
    // are written first, then all hidden states; then `pairs` interleaves them.
    const auto norm_of = [&](int64_t first, const float* weight) {
        return cuda::add_norm({.tokens = rows,
                               .width = hidden_,
                               .h = both + first * width,
                               .weight = weight,
                               .eps = eps_,
                               .out = {normed + first * width}},
                              step.overlap, step.stream);
    };
    NIBBLE_CHECK(cuda::embed(in.embedding, step.tokens, rows, hidden_, both, step.overlap, step.stream));
    NIBBLE_CHECK(cuda::embed(in.states, in.rows, rows, hidden_, both + rows * width, step.overlap, step.stream));
    NIBBLE_CHECK(norm_of(0, embedding_norm_));
    NIBBLE_CHECK(norm_of(rows, hidden_norm_));
    NIBBLE_CHECK(cuda::embed(normed, in.pairs, 2 * rows, hidden_, both, step.overlap, step.stream));
    NIBBLE_CHECK(projection_.forward({.x = both}, rows, y, hidden_, step));
    NIBBLE_CHECK(cuda::to_rows(y, 0, rows, hidden_, {h}, step.overlap, step.stream));

    DeviceResidual residual{.hidden = hidden_,
                            .eps = eps_,
                            .h = h,
                            .other = rows == 1 ? other : nullptr,
                            .x = x,
                            .y = y,
                            .nonfinite = in.nonfinite};
    const auto all = std::span(layers_);
    NIBBLE_TRY(cuda::AddNorm norm, queue_layers(all.first(keeping_), residual, nullptr, step));
    if (in.wanted == 0) return Ok{};
    if (norm.update) NIBBLE_CHECK(cuda::add_norm(norm, step.overlap, step.stream));
    // After the last layer with K and V, only the wanted rows are computed.
    NIBBLE_TRY(std::byte * some, step.scratch.allocate(in.wanted * width));
    NIBBLE_CHECK(cuda::embed(norm.h, in.wanted_rows, in.wanted, hidden_, some, step.overlap, step.stream));
    DeviceStep rest = step;
    rest.rows = rest.segments = in.wanted;
    rest.longest = 1;
    residual.h = some;
    residual.other = in.wanted == 1 ? other : nullptr;
    residual.nonfinite += keeping_;
    NIBBLE_TRY(norm, queue_layers(all.subspan(keeping_), residual, nullptr, rest));
    norm.weight = norm_;
    norm.out = in.normed;
    NIBBLE_CHECK(cuda::add_norm(norm, step.overlap, step.stream));
    if (!hands_on_normed_) return copy_on_device(in.hand_on, norm.h, in.wanted * width, step.stream);
    return cuda::add_norm(
        {.tokens = in.wanted, .width = hidden_, .h = norm.h, .weight = norm_, .eps = eps_, .out = {in.hand_on}},
        step.overlap, step.stream);
}

}  // namespace nibble
