// Entry point of the weight solvers: computes codes and scales from a weight, its statistics and a WeightSolver.
//
// Statistics are those of the linear's inputs x_t [K] and of the gradients g_t [N] at its output (nibble_best.h) over
// the calibration tokens; for an expert, over the tokens routed to it. needed_statistics() returns which ones are used.
#pragma once

#include "kernels/quantize.h"
#include "quant/gram.h"
#include "quant/weight_solver.h"

#include <memory>
#include <optional>

namespace nibble {

struct PlanEntry;

// Codes and scales of a solved weight, with the statistics that cannot be computed from them: the error of the linear's
// outputs (quant/output_error.h).
struct SolvedOutputError {
    int64_t rows = 0;                          // measured outputs (evenly spaced); 0: none
    double energy = 0, before = 0, after = 0;  // before: scales of maxima, nearest codes; after: as solved
    bool operator==(const SolvedOutputError&) const = default;
};

struct Solution {
    QuantMatrix matrix;
    int64_t raised_blocks = 0;
    SolvedOutputError output_error = {};
    SolveGaps gaps = {};
};

struct LinearStatistics {
    int64_t tokens = 0;                // rows of the linear's input
    std::vector<float> local;          // [K/16, 16, 16], LocalGram::mean(); empty: not collected, or no token
    std::optional<Gram> inputs;        // [K, K], finished; with token weights if the solver uses them
    std::optional<Gram> outputs;       // [N, N], finished
    std::optional<Solution> solution;  // if set, the linear is solved already and the other members are empty
};

// Provides the statistics of a plan's linears: from memory, from disk, or computed block by block.
class StatisticsSource {
public:
    virtual ~StatisticsSource() = default;
    // Returns the statistics of a linear that needs them. Called from any thread, once per linear and job, in any
    // order. Error: they are missing.
    virtual Result<std::shared_ptr<const LinearStatistics>> statistics(const PlanEntry& linear) = 0;
    // Returns everything that determines their bits (text, tokens, model, seed), for the identity of a resumable job.
    virtual std::string identity() const = 0;
};

struct SolveKernels {
    const SolverKernels& solver;
    const QuantizeKernels& quantize;
};

// Solves a weight. weight: all rows [N, K], BF16 or F32, finite. spec: nvfp4; only local_hessian uses its search. amax:
// as for QuantizeKernels::quantize. out: nvfp4 [N, K], with tensor_scale set by the caller (shared by a fusion group)
// to tensor_scale(spec, amax). Adds only to stats.raised_blocks. Returns where a fallback replaced unusable statistics.
//
// If statistics.solution is set, it is copied; its tensor scale must equal out's. A linear that saw no token is
// quantized without feedback: local_hessian by plain squared error and gptq with the scales of maxima (both as Model
// Optimizer), nibble_best by squared error among its candidates. Errors: statistics that are missing or have other
// shapes. Bits do not depend on the pool; inside parallel_for the call runs on its thread.
Result<SolveGaps> solve_weight(const MatrixView& weight, const WeightSpec& spec, const TensorAmax& amax,
                               const WeightSolver& solver, const LinearStatistics& statistics,
                               const SolveKernels& kernels, ThreadPool& pool, const QuantSpan& out, QuantStats& stats);

// Solves the members of a fusion group (q/k/v, gate/up) with one tensor scale from their largest maximum. Errors: those
// of solve_weight(), with the member's name.
struct SolveMember {
    std::string name;  // name for errors
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
