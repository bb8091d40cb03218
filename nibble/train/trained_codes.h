// A trained model in the codes that its own forward products used: every linear that the precision recipe quantizes
// holds the codes and block scales of that rounding, nothing is rounded a second time. As a checkpoint, so that
// convert() writes it.
//
//   recipe at the last step        format         dialect              what a reader computes
//   fp8_block                      fp8_block128   compressed-tensors   the bits of the training forward
//   mxfp8                          mxfp8          Model Optimizer      the bits of the training forward
//   nvfp4_w4a16, nvfp4_w4a4        nvfp4          Model Optimizer      the bits of the training forward
//   nvfp4, nibble_nvfp4 (rank 0)   nvfp4          Model Optimizer      the same weights; inputs stay BF16
//
// The FP32 scale of an NVFP4 matrix is fl(amax * fl(1 / divisor)) of its unit (train/train_cast.h).
#pragma once

#include "checkpoint/checkpoint.h"
#include "model/parameters.h"
#include "train/step_products.h"

#include <memory>
#include <vector>

namespace nibble {

class TrainedCodes : public Checkpoint {
public:
    // Copies what it needs of `products`, in the phase of the run it is in; the parameters are those that they read.
    // Errors, by the linear's name: a rounding that no checkpoint holds, two formats in one model, blocks that a matrix
    // cuts.
    static Result<std::unique_ptr<TrainedCodes>> create(std::shared_ptr<const Parameters> parameters,
                                                        const ForwardWeights& products, ThreadPool& pool);
    // The same errors without the work: before a run.
    static Result<Format> format_of(const ForwardWeights& products);

    Format format() const { return format_; }
    // Of the export: what holds format() with what it says about inputs.
    Dialect target() const;

    const std::filesystem::path& path() const override { return parameters_->path(); }
    Dialect dialect() const override { return target(); }
    const Json& config() const override { return parameters_->config(); }
    KvFormat kv() const override { return KvFormat::none; }
    std::span<const CheckpointTensor> tensors() const override { return tensors_; }
    Result<MatrixView> read_plain(size_t index, int64_t begin, int64_t count, Matrix& scratch) const override;
    Result<QuantView> read_quant(size_t index, int64_t begin, int64_t count, QuantMatrix& scratch) const override;
    void done_with(size_t, int64_t, int64_t) const override {}
    Result<std::vector<SideFile>> side_files() const override { return parameters_->side_files(); }

private:
    TrainedCodes() = default;
    std::shared_ptr<const Parameters> parameters_;
    Format format_ = Format::none;
    std::vector<CheckpointTensor> tensors_;
    std::vector<QuantMatrix> codes_;  // per tensor; empty for plain ones
};

}  // namespace nibble
