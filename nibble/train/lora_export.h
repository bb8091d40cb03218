// Exports low-rank adapters: merged into the weights of a model, or as a folder in PEFT's format.
#pragma once

#include "checkpoint/checkpoint.h"
#include "model/parameters.h"
#include "train/train_config.h"

#include <filesystem>
#include <memory>

namespace nibble {

// A view of `base` in BF16. Every matrix with adapters is BF16(W + alpha / rank B A) with W decoded; sums are FP32 in
// ascending order of rank. Rows are computed when they are read. `base` and `adapters` must outlive the view.
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
    std::vector<size_t> source_;  // index in `base` of each tensor
};

// Writes adapter_config.json and adapter_model.safetensors (F32 masters) and replaces files of these names. Error: the
// files cannot be written, for example because the disk is full.
Status write_peft_adapter(const std::filesystem::path& folder, const Parameters& adapters, const TrainLora& lora,
                          const std::filesystem::path& base);

}  // namespace nibble
