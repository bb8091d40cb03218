// A checkpoint and an export in memory with optional faults, and small plans for them.
#pragma once

#include "checkpoint/export.h"
#include "quant/job.h"
#include "support/files.h"

#include <atomic>
#include <map>
#include <mutex>

namespace nibble::test {

class FakeCheckpoint : public Checkpoint {
public:
    FakeCheckpoint();  // creates a temporary folder with one file that all tensors name

    // Adds weights that depend only on the name: heavy-tailed, with zero blocks and one large value.
    void add(const std::string& name, std::vector<int64_t> shape, DType dtype = DType::bf16);
    void add_plain(const std::string& name, std::vector<int64_t> shape, DType dtype, std::span<const uint8_t> bytes);
    CheckpointTensor& tensor(const std::string& name);  // for tests that change it
    QuantMatrix& matrix(const std::string& name);
    void remove(const std::string& name);
    void add_quantized(const std::string& name, QuantMatrix matrix, std::optional<float> input_scale = std::nullopt);
    void set(const std::string& name, int64_t index, float value);  // sets one element of a plain float tensor
    std::filesystem::path file() const { return dir_ / "weights"; }

    const std::filesystem::path& path() const override { return dir_.path(); }
    Dialect dialect() const override { return Dialect::plain; }
    const Json& config() const override { return config_; }
    KvFormat kv() const override { return kv_; }
    std::span<const CheckpointTensor> tensors() const override { return tensors_; }
    Result<MatrixView> read_plain(size_t index, int64_t begin, int64_t count, Matrix& scratch) const override;
    Result<QuantView> read_quant(size_t index, int64_t begin, int64_t count, QuantMatrix& scratch) const override;
    void done_with(size_t index, int64_t begin, int64_t count) const override;
    Result<std::vector<SideFile>> side_files() const override { return std::vector<SideFile>{}; }

    std::vector<std::vector<std::byte>> plain;
    std::vector<QuantMatrix> quant;
    Json config_ = Json::object();
    KvFormat kv_ = KvFormat::none;
    mutable std::atomic<int64_t> rows_done{0};

private:
    size_t index_of(const std::string& name) const;
    TempDir dir_;
    std::vector<CheckpointTensor> tensors_;
};

struct Stored {
    std::vector<uint8_t> codes, block_scales, plain;
    std::vector<float> float_scales;
    float tensor_scale = -1;
    std::optional<float> input_scale;
    std::vector<int> row_writes;  // number of writes of each row
    bool operator==(const Stored& o) const {
        return codes == o.codes && block_scales == o.block_scales && plain == o.plain &&
               float_scales == o.float_scales && tensor_scale == o.tensor_scale && input_scale == o.input_scale;
    }
};

class FakeExport : public Export {
public:
    explicit FakeExport(std::vector<ExportTensor> tensors);

    const std::filesystem::path& work_dir() const override { return dir_.path(); }
    int64_t total_bytes() const override { return 0; }
    Status write_plain(size_t index, int64_t row, const MatrixView& view) override;
    Status write_quant(size_t index, int64_t row, const QuantView& panel) override;
    Status write_scalars(size_t index, float tensor_scale, std::optional<float> input_scale) override;
    uint64_t written_checksum(size_t index, int file) const override { return *checksum(index, file); }
    Result<uint64_t> checksum(size_t index, int file) const override;
    Status select(int /*file*/) override { return Ok{}; }
    Status finish_file() override { return Ok{}; }
    Status finish() override { return Ok{}; }

    std::vector<ExportTensor> tensors;
    std::vector<Stored> stored;
    std::atomic<int64_t> writes{0};         // number of calls so far
    std::atomic<int64_t> fail_at{-1};       // this write and all later ones fail
    std::function<void(int64_t)> on_write;  // called with the number of the call

private:
    Status begin_write();
    TempDir dir_;
};

// Reads what was stored as a checkpoint.
void reopen(const FakeExport& out, FakeCheckpoint& checkpoint);

// Returns a plan over all tensors of `source`: two-dimensional ones whose name ends in "_proj.weight" get `spec`.
Plan plan_for(const FakeCheckpoint& source, const WeightSpec& spec,
              ActivationFormat activation = ActivationFormat::none);
// Puts the named tensors into one group of the given kind.
void group(Plan& plan, std::string PlanEntry::*key, const std::vector<std::string>& tensors);

// Adds a small model: an embedding (two panels), norms, q/k/v with a shared scale, gate/up, down, F16 and F32 weights,
// an empty tensor, and optionally a matrix of several panels.
void add_small_model(FakeCheckpoint& source, int layers = 2, bool wide = true);
Plan small_plan(const FakeCheckpoint& source, const WeightSpec& spec);

JobOptions options_for(const Plan& plan);

}  // namespace nibble::test
