#include "quant/block_solver.h"

#include "quant/panels.h"
#include "quant/unit_scales.h"
#include "quant/units.h"

#include <algorithm>

namespace nibble {

BlockSolver::BlockSolver(const Checkpoint& source, const Plan& plan, StatisticsStore& store, ThreadPool& pool,
                         SolveKernels kernels)
    : source_(&source), plan_(&plan), store_(&store), pool_(&pool), kernels_(kernels), units_(make_units(plan)) {
    for (size_t unit = 0; unit < units_.size(); ++unit)
        for (const size_t index : units_[unit])
            if (plan.entries[index].solver) {
                entries_.emplace(plan.entries[index].module, index);
                unit_of_.emplace(plan.entries[index].module, unit);
            }
}

Result<BlockSolver> BlockSolver::create(const Checkpoint& source, const Plan& plan, StatisticsStore& store,
                                        ThreadPool& pool) {
    NIBBLE_TRY(const SolverKernels* solver, select_solver_kernels());
    NIBBLE_TRY(const QuantizeKernels* quantize, select_quantize_kernels());
    return BlockSolver(source, plan, store, pool, {*solver, *quantize});
}

void BlockSolver::add(const std::string& module, LinearStatistics statistics) {
    pending_.insert_or_assign(module, std::move(statistics));
}

Result<float> BlockSolver::own_amax(size_t index) {
    if (const auto found = amax_.find(index); found != amax_.end()) return found->second;
    const PlanEntry& entry = plan_->entries[index];
    const Panels panels(panel_format(source_->tensors()[index].format, entry.spec.format), entry.rows(), entry.cols());
    std::vector<float> amax(static_cast<size_t>(panels.count()));
    std::vector<Status> done(amax.size(), Status(Ok{}));
    pool_->parallel_for(panels.count(), [&](int64_t p) {
        PanelScratch scratch;
        const auto view = read_weights(*source_, index, panels.begin(p), panels.size(p), kernels_.quantize, scratch);
        const auto at = static_cast<size_t>(p);
        if (!view.ok()) {
            done[at] = view.error();
            return;
        }
        const Scan scan = kernels_.quantize.scan(*view);
        amax[at] = scan.amax;
        if (scan.first_nonfinite >= 0)
            done[at] = fail("{}[{}, {}] is not finite: repair the source or exclude the tensor", entry.tensor,
                            panels.begin(p) + scan.first_nonfinite / view->cols, scan.first_nonfinite % view->cols);
    });
    for (Status& status : done) NIBBLE_CHECK(std::move(status));
    return amax_[index] = *std::ranges::max_element(amax);
}

Status BlockSolver::find_scales(Task& task) {
    std::vector<MemberScale> members;
    for (const size_t index : units_[unit_of_.at(task.entry->module)]) {
        MemberScale& m = members.emplace_back();
        m.entry = &plan_->entries[index];
        NIBBLE_TRY(m.own_amax, own_amax(index));
    }
    set_search_maxima(members);
    set_stored_scales(members);
    for (const MemberScale& m : members)
        if (m.entry == task.entry) task.amax = m.amax, task.tensor_scale = m.tensor_scale;
    return Ok{};
}

Status BlockSolver::solve_if_enough() { return std::ssize(pending_) < 3 * pool_->threads() ? Status(Ok{}) : solve(); }

Status BlockSolver::solve() {
    std::vector<Task> tasks;
    for (const auto& [module, statistics] : pending_) {
        const size_t index = entries_.at(module);
        Task& task = tasks.emplace_back(Task{&plan_->entries[index], index, &statistics, {}, 1.0f});
        NIBBLE_CHECK(find_scales(task));
    }
    const auto size = [](const Task& t) { return t.entry->rows() * t.entry->cols(); };
    std::ranges::stable_sort(tasks, std::greater<>{}, size);  // largest first: a long task at the end would leave
                                                              // threads idle
    std::vector<Solution> solutions(tasks.size());
    std::vector<LayerOutputError> errors(tasks.size());
    std::vector<Status> done(tasks.size(), Status(Ok{}));
    pool_->parallel_for(std::ssize(tasks), [&](int64_t i) {
        const Task& task = tasks[static_cast<size_t>(i)];
        PanelScratch scratch;
        const auto weight = read_weights(*source_, task.index, 0, task.entry->rows(), kernels_.quantize, scratch);
        Status& status = done[static_cast<size_t>(i)];
        if (!weight.ok()) {
            status = weight.error();
            return;
        }
        QuantMatrix out(task.entry->spec.format, task.entry->rows(), task.entry->cols());
        out.tensor_scale = task.tensor_scale;
        QuantStats stats;
        const auto gaps = solve_weight(*weight, task.entry->spec, task.amax, task.entry->solver, *task.statistics,
                                       kernels_, *pool_, out.span(), stats)
                              .within(task.entry->tensor);
        if (!gaps.ok()) {
            status = gaps.error();
            return;
        }
        LayerOutputError& e = errors[static_cast<size_t>(i)];
        e = measure_output_error(task.entry->module, *weight, task.entry->spec, task.amax, *task.statistics, out.view(),
                                 kernels_.quantize);
        solutions[static_cast<size_t>(i)] = {
            std::move(out), stats.raised_blocks, {e.rows, e.energy, e.before, e.after}, *gaps};
    });
    for (size_t i = 0; i < tasks.size(); ++i) {
        NIBBLE_CHECK(std::move(done[i]));
        NIBBLE_CHECK(store_->put(tasks[i].entry->module, std::move(solutions[i])));
    }
    pending_.clear();
    return Ok{};
}

}  // namespace nibble
