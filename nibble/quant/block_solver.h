// Solves the linears of a block as soon as its statistics are complete, so that only codes and scales are kept of a
// block.
#pragma once

#include "checkpoint/checkpoint.h"
#include "quant/output_error.h"
#include "quant/plan.h"
#include "quant/statistics_store.h"

#include <map>
#include <string>
#include <vector>

namespace nibble {

class BlockSolver {
public:
    // All arguments must outlive the object. Error: no kernels for this CPU.
    static Result<BlockSolver> create(const Checkpoint& source, const Plan& plan, StatisticsStore& store,
                                      ThreadPool& pool);

    // Takes the finished statistics of linear `module`. Solves nothing yet.
    void add(const std::string& module, LinearStatistics statistics);
    bool holds(const std::string& module) const { return pending_.contains(module) || store_->holds(module); }
    // Solves all pending linears (several at a time) if there are enough to keep every thread busy. Errors of both
    // functions: those of the solvers, with the module's name.
    Status solve_if_enough();
    Status solve();

private:
    BlockSolver(const Checkpoint& source, const Plan& plan, StatisticsStore& store, ThreadPool& pool,
                SolveKernels kernels);
    struct Task {
        const PlanEntry* entry;
        size_t index;
        const LinearStatistics* statistics;
        TensorAmax amax;
        float tensor_scale;
    };
    // Computes the scales of an entry from the maxima of all entries that share them.
    Status find_scales(Task& task);
    Result<float> own_amax(size_t index);

    const Checkpoint* source_;
    const Plan* plan_;
    StatisticsStore* store_;
    ThreadPool* pool_;
    SolveKernels kernels_;
    std::map<std::string, size_t, std::less<>> entries_;  // by module
    std::map<std::string, size_t, std::less<>> unit_of_;  // index in units_, by module
    std::vector<std::vector<size_t>> units_;
    std::map<size_t, float> amax_;  // by entry
    std::map<std::string, LinearStatistics, std::less<>> pending_;
};

}  // namespace nibble
