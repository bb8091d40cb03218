#include "model/cpu/parallel.h"

#include "model/gradients.h"
#include "model/weight_source.h"

#include <algorithm>

namespace nibble {
namespace {

void multiply_rows(float* x, int64_t n, float by, bool bf16, const Workspace& work) {
    if (by == 1.0f) return;
    for (int64_t i = 0; i < n; ++i) x[i] *= by;
    if (bf16) work.elementwise->round_bf16(x, n);
}

}  // namespace

Result<std::unique_ptr<Mixer>> Parallel::load(const ModelConfig& model, const BlockConfig& block,
                                              const ParallelConfig& config, WeightSource& weights) {
    auto all = std::make_unique<Parallel>();
    all->hidden_ = model.hidden;
    for (const Branch& branch : config.branches) {
        Part part{.norm_name = branch.norm,
                  .post_norm_name = branch.post_norm,
                  .in_scale = branch.in_scale,
                  .out_scale = branch.out_scale};
        NIBBLE_TRY(part.norm, Norm::load(model, branch.norm, model.hidden, weights));
        NIBBLE_TRY(part.post_norm, Norm::load(model, branch.post_norm, model.hidden, weights));
        const BlockConfig alone{
            .index = block.index, .layer = block.layer, .prefix = branch.prefix, .mixer = branch.mixer};
        NIBBLE_TRY(part.mixer, std::visit([&](const auto& mixer) { return load_mixer(model, alone, mixer, weights); },
                                          branch.mixer));
        all->parts_.push_back(std::move(part));
    }
    return std::unique_ptr<Mixer>(std::move(all));
}

const float* Parallel::input(const Part& part, const float* x, int64_t rows, Workspace& work) const {
    if (part.norm.empty() && part.in_scale == 1.0f) return x;
    const int64_t n = hidden_;
    float* y = work.arena.floats(rows * n);
    work.parallel_rows(rows, n, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            if (part.norm.empty())
                std::copy_n(x + i * n, n, y + i * n);
            else
                part.norm.apply(x + i * n, y + i * n, work);
        }
        multiply_rows(y + first * n, (last - first) * n, part.in_scale, work.bf16(), work);
    });
    return y;
}

Status Parallel::forward(const Batch& batch, const float* x, float* y, Workspace& work, Observer* observer) const {
    const int64_t rows = batch.rows(), n = hidden_;
    for (const Part& part : parts_) {
        const Arena::Scope scope(work.arena);
        const bool first = &part == parts_.data();
        float* out = first ? y : work.arena.floats(rows * n);
        NIBBLE_CHECK(part.mixer->forward(batch, input(part, x, rows, work), out, work, observer));
        work.parallel_rows(rows, 2 * n, [&](int64_t from, int64_t to) {
            if (!part.post_norm.empty())
                for (int64_t i = from; i < to; ++i) part.post_norm.apply(out + i * n, out + i * n, work);
            multiply_rows(out + from * n, (to - from) * n, part.out_scale, work.bf16(), work);
            if (!first) work.elementwise->add(out + from * n, (to - from) * n, work.bf16(), y + from * n);
        });
    }
    return Ok{};
}

Status Parallel::backward(const Batch& batch, const float* x, const float* dy, float* dx, Workspace& work,
                          Observer* observer, GradientSink* sink) const {
    const int64_t rows = batch.rows(), n = hidden_;
    std::fill_n(dx, rows * n, 0.0f);
    for (const Part& part : parts_) {
        const Arena::Scope scope(work.arena);
        const float* in = input(part, x, rows, work);
        const float* d_out = dy;
        if (part.out_scale != 1.0f) {
            float* d = work.arena.floats(rows * n);
            std::copy_n(dy, rows * n, d);
            multiply_rows(d, rows * n, part.out_scale, false, work);
            d_out = d;
        }
        if (!part.post_norm.empty()) {
            float* out = work.arena.floats(rows * n);
            float* d = work.arena.floats(rows * n);
            NIBBLE_CHECK(part.mixer->forward(batch, in, out, work, nullptr));
            NIBBLE_CHECK(norm_backward(part.post_norm, out, rows, d_out, d, false, part.post_norm_name, work, sink));
            d_out = d;
        }
        float* d_in = work.arena.floats(rows * n);
        NIBBLE_CHECK(part.mixer->backward(batch, in, d_out, d_in, work, observer, sink));
        multiply_rows(d_in, rows * n, part.in_scale, false, work);
        if (part.norm.empty())
            work.elementwise->add(d_in, rows * n, false, dx);
        else
            NIBBLE_CHECK(norm_backward(part.norm, x, rows, d_in, dx, true, part.norm_name, work, sink));
    }
    return Ok{};
}

std::vector<const Linear*> Parallel::linears() const {
    std::vector<const Linear*> all;
    for (const Part& part : parts_) {
        const auto some = part.mixer->linears();
        all.insert(all.end(), some.begin(), some.end());
    }
    return all;
}

std::vector<std::span<const Linear>> Parallel::units() const {
    std::vector<std::span<const Linear>> all;
    for (const Part& part : parts_) {
        const auto some = part.mixer->units();
        all.insert(all.end(), some.begin(), some.end());
    }
    return all;
}

StateLayout Parallel::state() const {
    StateLayout all;
    for (const Part& part : parts_) {
        const StateLayout one = part.mixer->state();
        if (one.page_bytes > 0) all.page_bytes = one.page_bytes, all.window = one.window;
        all.floats += one.floats;
    }
    return all;
}

Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig& model, const BlockConfig& block,
                                          const ParallelConfig& config, WeightSource& weights) {
    return Parallel::load(model, block, config, weights);
}

}  // namespace nibble
