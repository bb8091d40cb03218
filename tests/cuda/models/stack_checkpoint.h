// A checkpoint whose stacks of experts are quantized in memory.
#pragma once

#include "checkpoint/checkpoint.h"
#include "kernels/quantize.h"

#include <memory>
#include <span>
#include <vector>

namespace nibble::bench {

class StackCheckpoint : public Checkpoint {
public:
    // Quantizes every matrix of `from` that is a stack of experts, except those whose rows are not whole blocks of
    // MXFP4. Error: there is none.
    static Result<std::shared_ptr<StackCheckpoint>> create(std::shared_ptr<const Checkpoint> from, Format format) {
        auto made = std::make_shared<StackCheckpoint>();
        made->from_ = std::move(from);
        NIBBLE_TRY(const QuantizeKernels* kernels, select_quantize_kernels());
        const auto tensors = made->from_->tensors();
        made->tensors_.assign(tensors.begin(), tensors.end());
        made->stacks_.resize(tensors.size());
        int stacks = 0;
        for (size_t i = 0; i < tensors.size(); ++i) {
            CheckpointTensor& t = made->tensors_[i];
            if (t.experts == 0 || (format == Format::mxfp4 && t.cols() % 32)) continue;
            Matrix scratch;
            NIBBLE_TRY(const MatrixView view, made->from_->read_plain(i, 0, t.rows(), scratch));
            const float amax = kernels->scan(view).amax;
            const WeightSpec spec{.format = format};
            made->stacks_[i] = QuantMatrix(format, view.rows, view.cols);
            QuantSpan out = made->stacks_[i].span();
            out.tensor_scale = made->stacks_[i].tensor_scale = tensor_scale(spec, {amax, amax});
            QuantStats stats;
            kernels->quantize(view, spec, {amax, amax}, out, stats);
            t.format = format;
            ++stacks;
        }
        if (stacks == 0) return fail("{} has no stacks of experts", made->path().string());
        return made;
    }

    const std::filesystem::path& path() const override { return from_->path(); }
    Dialect dialect() const override { return from_->dialect(); }
    const Json& config() const override { return from_->config(); }
    KvFormat kv() const override { return from_->kv(); }
    std::span<const CheckpointTensor> tensors() const override { return tensors_; }
    Result<MatrixView> read_plain(size_t index, int64_t begin, int64_t count, Matrix& scratch) const override {
        return from_->read_plain(index, begin, count, scratch);
    }
    Result<QuantView> read_quant(size_t index, int64_t begin, int64_t count, QuantMatrix&) const override {
        return stacks_[index].view().panel(begin, count);
    }
    void done_with(size_t, int64_t, int64_t) const override {}
    Result<std::vector<SideFile>> side_files() const override { return from_->side_files(); }

private:
    std::shared_ptr<const Checkpoint> from_;
    std::vector<CheckpointTensor> tensors_;
    std::vector<QuantMatrix> stacks_;  // empty for other tensors
};

}  // namespace nibble::bench
