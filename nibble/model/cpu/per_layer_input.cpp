#include "model/cpu/per_layer_input.h"

#include "model/weight_source.h"

#include <cmath>
#include <numbers>

namespace nibble {

Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig& model, const BlockConfig& block,
                                          const PerLayerInputConfig& config, WeightSource& weights) {
    return PerLayerInput::load(model, block, config, weights);
}

Result<std::unique_ptr<Mixer>> PerLayerInput::load(const ModelConfig& model, const BlockConfig& block,
                                                   const PerLayerInputConfig& c, WeightSource& weights) {
    auto p = std::make_unique<PerLayerInput>();
    p->config_ = c;
    p->prefix_ = block.prefix;
    p->hidden_ = model.hidden;
    p->eps_ = model.norm_eps;
    const int64_t width = c.width, first = width * c.index;
    NIBBLE_TRY(p->embedding_, Embedding::load(model, weights));
    NIBBLE_TRY(p->table_,
               Embedding::load_columns(c.table, {c.vocab, int64_t{c.layers} * width}, first, width, weights));
    NIBBLE_TRY(p->projection_, weights.linear_rows(c.projection, c.layers * width, model.hidden, first, width));
    NIBBLE_TRY(p->norm_, weights.norm(model, c.norm, width));
    NIBBLE_TRY(p->gate_, weights.linear(block.name(c.gate), width, model.hidden, false));
    NIBBLE_TRY(p->out_, weights.linear(block.name(c.out), model.hidden, width, false));
    return std::unique_ptr<Mixer>(std::move(p));
}

float PerLayerInput::root() const { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(hidden_))); }
float PerLayerInput::half() { return static_cast<float>(1.0 / std::numbers::sqrt2); }

Status PerLayerInput::inputs(const Batch& batch, float* p, Workspace& work, Observer* observer) const {
    const Arena::Scope scope(work.arena);
    const int64_t rows = batch.rows(), width = config_.width;
    float* x = work.arena.floats(rows * hidden_);
    float* of_table = work.arena.floats(rows * width);
    for (size_t s = 0; s < batch.segments().size(); ++s) {
        const auto tokens = batch.segments()[s].tokens;
        NIBBLE_CHECK(embedding_.forward(tokens, x + batch.row(s) * hidden_, work));
        NIBBLE_CHECK(table_.forward(tokens, of_table + batch.row(s) * width, work));
    }
    NIBBLE_CHECK(projection_.forward(x, rows, p, work, config_.index == 0 ? observer : nullptr));
    const float root = this->root(), half = this->half();
    work.parallel_rows(rows, 4 * width, [&](int64_t first, int64_t last) {
        const ElementwiseKernels& k = *work.elementwise;
        for (int64_t i = first; i < last; ++i) {
            float* row = p + i * width;
            for (int64_t j = 0; j < width; ++j) row[j] *= root;
            if (work.bf16()) k.round_bf16(row, width);
            k.rms_norm(row, norm_.data(), width, eps_, work.bf16(), row);
            k.add(of_table + i * width, width, work.bf16(), row);
            for (int64_t j = 0; j < width; ++j) row[j] *= half;
            if (work.bf16()) k.round_bf16(row, width);
        }
    });
    return Ok{};
}

Status PerLayerInput::forward(const Batch& batch, const float* x, float* y, Workspace& work, Observer* observer) const {
    const Arena::Scope scope(work.arena);
    const int64_t rows = batch.rows(), width = config_.width;
    float* p = work.arena.floats(rows * width);
    float* gate = work.arena.floats(rows * width);
    NIBBLE_CHECK(inputs(batch, p, work, observer));
    NIBBLE_CHECK(gate_.forward(x, rows, gate, work, observer));
    work.parallel_rows(rows, 4 * width, [&](int64_t first, int64_t last) {
        const int64_t at = first * width;
        work.elementwise->activate(Activation::gelu_tanh, gate + at, p + at, (last - first) * width, work.bf16(),
                                   gate + at);
    });
    return out_.forward(gate, rows, y, work, observer);
}

Status PerLayerInput::backward(const Batch&, const float*, const float*, float*, Workspace&, Observer*,
                               GradientSink*) const {
    return fail("{}: a backward pass through per-layer embeddings is not supported", prefix_);
}

std::vector<const Linear*> PerLayerInput::linears() const {
    if (config_.index == 0) return {&projection_, &gate_, &out_};
    return {&gate_, &out_};
}

std::vector<std::span<const Linear>> PerLayerInput::units() const {
    std::vector<std::span<const Linear>> all;
    if (config_.index == 0) all.push_back({&projection_, 1});
    all.push_back({&gate_, 1});
    all.push_back({&out_, 1});
    return all;
}

}  // namespace nibble
