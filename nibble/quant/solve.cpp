#include "quant/solve.h"

#include "quant/gptq.h"
#include "quant/local_hessian.h"
#include "quant/nibble_best.h"

#include <algorithm>

namespace nibble {
namespace {

Status check_statistics(const MatrixView& weight, const StatisticsNeeds& needs, const LinearStatistics& s) {
    const auto missing = [](std::string_view what) { return fail("no statistics of {} were collected", what); };
    if (needs.local && s.tokens > 0 && s.local.empty()) return missing("local inputs");
    if (needs.inputs && s.tokens > 0 && !s.inputs) return missing("inputs");
    if (needs.outputs && s.tokens > 0 && !s.outputs) return missing("output gradients");
    if (s.inputs && needs.inputs && s.inputs->size() != weight.cols)
        return fail("calibration statistics have {} inputs, the matrix has {} columns", s.inputs->size(), weight.cols);
    if (s.outputs && needs.outputs && s.outputs->size() != weight.rows)
        return fail("calibration statistics have {} outputs, the matrix has {} rows", s.outputs->size(), weight.rows);
    return Ok{};
}

Result<SolveGaps> copy_solution(const Solution& from, const QuantSpan& out, QuantStats& stats) {
    const QuantMatrix& m = from.matrix;
    if (m.format != out.format || m.rows != out.rows || m.cols != out.cols || m.tensor_scale != out.tensor_scale)
        return fail("solved as {} x {} with a tensor scale of {}, wanted as {} x {} with {}", m.rows, m.cols,
                    m.tensor_scale, out.rows, out.cols, out.tensor_scale);
    std::ranges::copy(m.codes, out.codes);
    std::ranges::copy(m.block_scales, out.block_scales);
    std::ranges::copy(m.float_scales, out.float_scales);
    stats.raised_blocks += from.raised_blocks;
    return from.gaps;
}

// Returns 2/n of the sum, as Model Optimizer accumulates it.
std::vector<float> mean_hessian(const Gram& gram) {
    std::vector<float> h(gram.sums().size());
    const double factor = 2.0 / static_cast<double>(std::max<int64_t>(gram.tokens(), 1));
    std::transform(gram.sums().begin(), gram.sums().end(), h.begin(),
                   [&](double sum) { return static_cast<float>(sum * factor); });
    return h;
}

}  // namespace

std::string_view solver_name(WeightSolver::Kind kind) {
    constexpr std::string_view names[] = {"none", "local_hessian", "gptq", "nibble_best"};
    return names[static_cast<size_t>(kind)];
}

std::string to_string(const WeightSolver& solver) {
    using enum WeightSolver::Kind;
    const NibbleBestOptions& best = solver.best;
    switch (solver.kind) {
        case none:
            return "";
        case local_hessian:
            return "local_hessian";
        case gptq:
            return fmt::format("gptq damping {}, block {}", solver.gptq.damping, solver.gptq.group);
        case nibble_best:
            break;
    }
    std::string text = fmt::format("nibble_best damping {}", best.damping);
    text += best.token_weights ? fmt::format(", token weights mixed {}", best.mix) : ", no token weights";
    text += best.row_feedback ? fmt::format(", rows damped {}", best.row_damping) : ", no row feedback";
    if (best.sweeps) text += fmt::format(", {} sweeps", best.sweeps);
    return text + (best.order_blocks ? "" : ", natural order");
}

StatisticsNeeds needed_statistics(const WeightSolver& solver) {
    using enum WeightSolver::Kind;
    const bool best = solver.kind == nibble_best;
    return {.local = solver.kind == local_hessian,
            .inputs = best || solver.kind == gptq,
            .gradients = best && (solver.best.token_weights || solver.best.row_feedback),
            .outputs = best && solver.best.row_feedback};
}

Result<SolveGaps> solve_weight(const MatrixView& weight, const WeightSpec& spec, const TensorAmax& amax,
                               const WeightSolver& solver, const LinearStatistics& statistics,
                               const SolveKernels& kernels, ThreadPool& pool, const QuantSpan& out, QuantStats& stats) {
    const auto by_the_maximum = [&](SolveGaps gaps = {}) {
        kernels.quantize.quantize(weight, spec, amax, out, stats);
        return gaps;
    };
    if (statistics.solution) return copy_solution(*statistics.solution, out, stats);
    NIBBLE_CHECK(check_statistics(weight, needed_statistics(solver), statistics));
    switch (solver.kind) {
        case WeightSolver::Kind::none:
            return by_the_maximum();
        case WeightSolver::Kind::local_hessian:
            return quantize_local_hessian(weight, statistics.local, spec, amax, kernels.solver, pool, out, stats);
        case WeightSolver::Kind::gptq:
            if (statistics.tokens == 0) return by_the_maximum();
            return quantize_gptq(weight, mean_hessian(*statistics.inputs), spec, amax, solver.gptq, kernels.solver,
                                 pool, out);
        case WeightSolver::Kind::nibble_best:
            if (!nibble_best_holds(out.tensor_scale)) return by_the_maximum({.too_small = true});
            if (statistics.tokens == 0) {
                Gram none(weight.cols, kernels.solver);
                none.finish(pool);
                return nibble_best(weight, spec.weights, none, nullptr, solver.best, kernels.solver, pool, out);
            }
            return nibble_best(weight, spec.weights, *statistics.inputs,
                               statistics.outputs ? &*statistics.outputs : nullptr, solver.best, kernels.solver, pool,
                               out);
    }
    return SolveGaps{};
}

Result<std::vector<SolvedMember>> solve_group(std::span<const SolveMember> members, const WeightSpec& spec,
                                              const WeightSolver& solver, const SolveKernels& kernels,
                                              ThreadPool& pool) {
    TensorAmax amax;
    for (const SolveMember& m : members) {
        const Scan scan = kernels.quantize.scan(m.weight);
        if (scan.first_nonfinite >= 0) return fail("{}: element {} is not finite", m.name, scan.first_nonfinite);
        amax.search = amax.store = std::max(amax.store, scan.amax);
    }
    std::vector<SolvedMember> solved;
    for (const SolveMember& m : members) {
        SolvedMember& s = solved.emplace_back();
        s.matrix = QuantMatrix(spec.format, m.weight.rows, m.weight.cols);
        s.matrix.tensor_scale = tensor_scale(spec, amax);
        NIBBLE_CHECK(solve_weight(m.weight, spec, amax, solver, *m.statistics, kernels, pool, s.matrix.span(), s.stats)
                         .within(m.name));
        kernels.quantize.measure(m.weight, s.matrix.view(), s.stats);
    }
    return solved;
}

}  // namespace nibble
