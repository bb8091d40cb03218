// Exports a trained model in the codes of its own forward products. Every linear that the recipe quantizes has the
// codes and block scales of that rounding; no value is rounded a second time. The class is a checkpoint, which
// convert() writes.
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
    // Copies the codes of `products` in the current phase of the run. `parameters` are those that the products read.
    // Errors, naming the linear: a rounding that no checkpoint format stores; two formats in one model; blocks that
    // cross the boundary of a matrix.
    static Result<std::unique_ptr<TrainedCodes>> create(std::shared_ptr<const Parameters> parameters,
                                                        const ForwardWeights& products, ThreadPool& pool);
    // Returns the format or the same errors without the conversion, for checks before a run.
    static Result<Format> format_of(const ForwardWeights& products);

    Format format() const { return format_; }
    // The dialect of the export: the one that stores format() and its input scales.
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
    std::vector<QuantMatrix> codes_;  // by tensor; empty for plain tensors
};

}  // namespace nibble
