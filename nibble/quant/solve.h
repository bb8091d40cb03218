// The one entry to the weight solvers: a weight, its statistics and a WeightSolver in, codes and scales out.
//
// Statistics are those of the linear's inputs x_t [K], and of the gradients g_t [N] at its output (nibble_best.h), over
// the calibration tokens; an expert's are over the tokens routed to it. needed_statistics() says which are read.
#pragma once

#include "kernels/quantize.h"
#include "quant/gram.h"
#include "quant/weight_solver.h"

#include <memory>
#include <optional>

namespace nibble {

struct PlanEntry;

// Codes and scales, with the one statistic of solving that cannot be measured from them.
// What a linear's outputs lose (quant/output_error.h).
struct SolvedOutputError {
    int64_t rows = 0;                          // outputs that were measured, evenly spaced; 0: none
    double energy = 0, before = 0, after = 0;  // before: with the scales of maxima and nearest codes; after: as solved
    bool operator==(const SolvedOutputError&) const = default;
};

struct Solution {
    QuantMatrix matrix;
    int64_t raised_blocks = 0;
    SolvedOutputError output_error = {};
    SolveGaps gaps = {};
};

struct LinearStatistics {
    int64_t tokens = 0;                // rows the linear saw
    std::vector<float> local;          // [K/16, 16, 16], LocalGram::mean(); empty: not collected, or no token
    std::optional<Gram> inputs;        // [K, K], finished; with token weights where the solver asks for them
    std::optional<Gram> outputs;       // [N, N], finished
    std::optional<Solution> solution;  // solved already: the rest is empty
};

// Where a job gets the statistics of a plan's linears: held in memory, read from disk, or computed block by block.
class StatisticsSource {
public:
    virtual ~StatisticsSource() = default;
    // Of a linear that needs some; called from any thread, once per linear and job, in no fixed order.
    virtual Result<std::shared_ptr<const LinearStatistics>> statistics(const PlanEntry& linear) = 0;
    // Everything that decides a bit of them (text, tokens, model, seed), for the identity of a resumable job.
    virtual std::string identity() const = 0;
};

struct SolveKernels {
    const SolverKernels& solver;
    const QuantizeKernels& quantize;
};

// weight: all rows, BF16 or F32, finite. spec: nvfp4; its search is read by local_hessian only. amax: as for
// QuantizeKernels::quantize. out: nvfp4 [N, K], tensor_scale set by the caller (shared by a fusion group) to
// tensor_scale(spec, amax). Adds to stats.raised_blocks only. Statistics that say nothing are no error: what was done
// instead is returned.
//
// With statistics.solution, that is copied; its tensor scale must be out's.
// A linear that saw no token is quantized without feedback: local_hessian by plain squared error, gptq with the
// maximum's scales (both as Model Optimizer), nibble_best by squared error among its candidates.
// Errors: statistics that are missing or of other shapes.
// Any pool gives the same bits; called from inside parallel_for it runs on the calling thread.
Result<SolveGaps> solve_weight(const MatrixView& weight, const WeightSpec& spec, const TensorAmax& amax,
                               const WeightSolver& solver, const LinearStatistics& statistics,
                               const SolveKernels& kernels, ThreadPool& pool, const QuantSpan& out, QuantStats& stats);

// Members of a fusion group (q/k/v, gate/up): one tensor scale from their largest maximum.
struct SolveMember {
    std::string name;  // named in errors
    MatrixView weight;
    const LinearStatistics* statistics = nullptr;
};
struct SolvedMember {
    QuantMatrix matrix;
    QuantStats stats;  // measured against the weight
};
Result<std::vector<SolvedMember>> solve_group(std::span<const SolveMember> members, const WeightSpec& spec,
                                              const WeightSolver& solver, const SolveKernels& kernels,
                                              ThreadPool& pool);

}  // namespace nibble
