// What low-rank adapters leave behind: a model with the adapters in its weights, and a folder as PEFT reads it.
#pragma once

#include "checkpoint/checkpoint.h"
#include "model/parameters.h"
#include "train/train_config.h"

#include <filesystem>
#include <memory>

namespace nibble {

// `base` in BF16, every matrix that has adapters as BF16(W + alpha / rank B A), W decoded: sums in FP32, rank
// ascending. Computed when rows are read. Both outlive the view.
class MergedCheckpoint : public Checkpoint {
public:
    MergedCheckpoint(const Checkpoint& base, const Parameters& adapters, const TrainLora& lora);

    const std::filesystem::path& path() const override { return base_.path(); }
    Dialect dialect() const override { return Dialect::plain; }
    const Json& config() const override { return base_.config(); }
    KvFormat kv() const override { return KvFormat::none; }
    std::span<const CheckpointTensor> tensors() const override { return tensors_; }
    Result<MatrixView> read_plain(size_t index, int64_t begin, int64_t count, Matrix& scratch) const override;
    Result<QuantView> read_quant(size_t index, int64_t begin, int64_t count, QuantMatrix& scratch) const override;
    void done_with(size_t index, int64_t begin, int64_t count) const override;
    Result<std::vector<SideFile>> side_files() const override { return base_.side_files(); }

private:
    const Checkpoint& base_;
    const Parameters& adapters_;
    float scale_;
    std::vector<CheckpointTensor> tensors_;
    std::vector<size_t> source_;  // the base's index of each
};

// adapter_config.json and adapter_model.safetensors (F32 masters); files of these names are replaced. Error: the disk
// is full.
Status write_peft_adapter(const std::filesystem::path& folder, const Parameters& adapters, const TrainLora& lora,
                          const std::filesystem::path& base);

}  // namespace nibble
