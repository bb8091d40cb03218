// A checkpoint as a plan would make it, quantized in memory when it is read. A search runs it to measure the effect of
// a choice of formats without writing it.
#pragma once

#include "base/thread_pool.h"
#include "quant/input_scales.h"
#include "quant/panels.h"
#include "quant/plan.h"
#include "quant/units.h"

#include <map>
#include <mutex>

namespace nibble {

// Codes and scales are those that run_quantize() stores. Weights that share a scale are quantized together and kept
// until each was read (done_with). Solvers (GPTQ ...) and searches of a tensor's multiplier are not supported: create()
// returns an error.
class TrialCheckpoint : public Checkpoint {
public:
    // `source` and `pool` must outlive the result. `scales`: from resolve_activation_scales() for `plan`.
    static Result<std::unique_ptr<TrialCheckpoint>> create(const Checkpoint& source, Plan plan,
                                                           const ActivationScales& scales, ThreadPool& pool);

    const std::filesystem::path& path() const override { return source_->path(); }
    Dialect dialect() const override { return source_->dialect(); }
    const Json& config() const override { return source_->config(); }
    KvFormat kv() const override { return source_->kv(); }
    std::span<const CheckpointTensor> tensors() const override { return tensors_; }
    Result<MatrixView> read_plain(size_t index, int64_t begin, int64_t count, Matrix& scratch) const override {
        return source_->read_plain(index, begin, count, scratch);
    }
    Result<QuantView> read_quant(size_t index, int64_t begin, int64_t count, QuantMatrix& scratch) const override;
    void done_with(size_t index, int64_t begin, int64_t count) const override;
    Result<std::vector<SideFile>> side_files() const override { return source_->side_files(); }

private:
    TrialCheckpoint(const Checkpoint& source, Plan plan, const QuantizeKernels& kernels, ThreadPool& pool)
        : source_(&source), plan_(std::move(plan)), kernels_(&kernels), pool_(&pool) {}
    Status quantize(const Unit& unit) const;

    const Checkpoint* source_;
    Plan plan_;
    const QuantizeKernels* kernels_;
    ThreadPool* pool_;
    std::vector<CheckpointTensor> tensors_;
    std::vector<Unit> units_;
    std::vector<size_t> unit_of_;  // unit of each tensor
    mutable std::mutex mutex_;
    mutable std::map<size_t, QuantMatrix> ready_;  // quantized matrices by tensor
};

}  // namespace nibble
