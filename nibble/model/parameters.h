// The parameters of a model as values: FP32 masters that a trainer changes, and the rounded values that the engine
// reads. Parameters is a Checkpoint (plain tensors in memory), so all readers of checkpoints accept it: Model::load,
// exports, comparisons.
//
// publish() rounds the masters to the published dtype and increments the version; readers only see the masters of the
// last publish(). A parameter's id is its index in tensors(); the order is that of the source and never changes.
#pragma once

#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace nibble {

class Parameters : public Checkpoint {
public:
    // Copies all tensors and side files of a checkpoint. `published`: the dtype of the values that readers see, bf16 or
    // f32; vectors that are F32 in the source (Mamba-2's A_log) stay F32. Errors: quantized tensors (they must be
    // decoded first), a number that is not finite.
    static Result<std::shared_ptr<Parameters>> copy(const Checkpoint& from, DType published, ThreadPool& pool);

    // Creates parameters without a checkpoint, such as adapters: every tensor is published in `published`, in this
    // order.
    struct Value {
        std::string name;
        std::vector<int64_t> shape;
        std::vector<float> master;
    };
    static std::shared_ptr<Parameters> create(std::vector<Value> values, Json config, DType published,
                                              ThreadPool& pool);

    size_t count() const { return tensors_.size(); }
    // Returns the id of a tensor. Error: there is no such tensor.
    Result<size_t> id(const std::string& name) const;
    std::span<float> master(size_t id) { return masters_[id]; }
    std::span<const float> master(size_t id) const { return masters_[id]; }
    // Returns true if the tensor has two dimensions; weight decay applies only to such tensors.
    bool matrix(size_t id) const { return tensors_[id].shape.size() == 2; }
    int64_t elements() const;

    uint64_t version() const { return version_; }
    void publish(ThreadPool& pool);
    // Returns the published values of one tensor.
    MatrixView published(size_t id) const { return values_[id].view(); }

    const std::filesystem::path& path() const override { return path_; }
    Dialect dialect() const override { return Dialect::plain; }
    const Json& config() const override { return config_; }
    KvFormat kv() const override { return KvFormat::none; }
    std::span<const CheckpointTensor> tensors() const override { return tensors_; }
    Result<MatrixView> read_plain(size_t index, int64_t begin, int64_t count, Matrix& scratch) const override;
    Result<QuantView> read_quant(size_t index, int64_t begin, int64_t count, QuantMatrix& scratch) const override;
    void done_with(size_t, int64_t, int64_t) const override {}
    Result<std::vector<SideFile>> side_files() const override { return side_files_; }
    void set_side_files(std::vector<SideFile> files) { side_files_ = std::move(files); }

private:
    Parameters() = default;
    void add(CheckpointTensor tensor, std::vector<float> master);

    std::filesystem::path path_;
    Json config_;
    std::vector<SideFile> side_files_;
    std::vector<CheckpointTensor> tensors_;
    std::unordered_map<std::string, size_t> ids_;
    std::vector<std::vector<float>> masters_;
    std::vector<Matrix> values_;
    uint64_t version_ = 0;
};

}  // namespace nibble
