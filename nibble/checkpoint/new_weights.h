// New values for tensors of a checkpoint, in memory: the weights that a trainer sends to a running model.
#pragma once

#include "checkpoint/checkpoint.h"

#include <map>

namespace nibble {

// The base's tensors, of which some are replaced by plain values. A copy shares the values of the original.
class NewWeights : public Checkpoint {
public:
    explicit NewWeights(std::shared_ptr<const Checkpoint> base);

    // Replaces a tensor. values [shape] are rounded to the dtype of the base's tensor, for a quantized one to the dtype
    // that it decodes to. The head of a model whose head is its embedding is ignored. Errors: no tensor of this name,
    // another shape, a value that is not finite.
    Status set(const std::string& name, std::span<const int64_t> shape, std::span<const float> values);
    bool replaced(size_t index) const { return values_[index] != nullptr; }
    // Returns whether set() replaced the tensor since the last start_update().
    bool given(size_t index) const { return given_[index]; }
    void start_update() { given_.assign(given_.size(), false); }
    const Checkpoint& base() const { return *base_; }

    const std::filesystem::path& path() const override { return base_->path(); }
    Dialect dialect() const override { return base_->dialect(); }
    const Json& config() const override { return base_->config(); }
    KvFormat kv() const override { return base_->kv(); }
    std::span<const CheckpointTensor> tensors() const override { return tensors_; }
    Result<MatrixView> read_plain(size_t index, int64_t begin, int64_t count, Matrix& scratch) const override;
    Result<QuantView> read_quant(size_t index, int64_t begin, int64_t count, QuantMatrix& scratch) const override {
        return base_->read_quant(index, begin, count, scratch);
    }
    void done_with(size_t index, int64_t begin, int64_t count) const override;
    Result<std::vector<SideFile>> side_files() const override { return base_->side_files(); }

private:
    std::shared_ptr<const Checkpoint> base_;
    std::vector<CheckpointTensor> tensors_;
    std::vector<std::shared_ptr<const Matrix>> values_;  // by tensor; null: the base's
    std::vector<bool> given_;                            // by tensor
    std::map<std::string, size_t, std::less<>> index_;
};

}  // namespace nibble
