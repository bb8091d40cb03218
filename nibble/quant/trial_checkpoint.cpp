#include "quant/trial_checkpoint.h"

#include "quant/unit_scales.h"

namespace nibble {

Result<std::unique_ptr<TrialCheckpoint>> TrialCheckpoint::create(const Checkpoint& source, Plan plan,
                                                                 const ActivationScales& scales, ThreadPool& pool) {
    NIBBLE_CHECK(check_plan(source, plan));
    NIBBLE_TRY(const QuantizeKernels* kernels, select_quantize_kernels());
    for (const PlanEntry& entry : plan.entries)
        if (entry.spec.format != Format::none && (entry.solver || searches_tensor(entry)))
            return fail("{}: a trial quantizes with maxima, not with {}", entry.tensor, method_text(entry));
    std::unique_ptr<TrialCheckpoint> trial(new TrialCheckpoint(source, std::move(plan), *kernels, pool));
    trial->tensors_.assign(source.tensors().begin(), source.tensors().end());
    trial->units_ = make_units(trial->plan_);
    trial->unit_of_.resize(trial->tensors_.size());
    for (size_t u = 0; u < trial->units_.size(); ++u)
        for (const size_t i : trial->units_[u]) trial->unit_of_[i] = u;
    for (size_t i = 0; i < trial->tensors_.size(); ++i) {
        const PlanEntry& entry = trial->plan_.entries[i];
        if (entry.spec.format == Format::none) continue;
        CheckpointTensor& tensor = trial->tensors_[i];
        tensor.format = entry.spec.format;
        tensor.activation = entry.activation;
        tensor.input_scale = scales.input[i];
    }
    return trial;
}

Status TrialCheckpoint::quantize(const Unit& unit) const {
    struct Part {
        size_t member;
        int64_t begin, rows;
    };
    std::vector<MemberScale> members(unit.size());
    std::vector<Part> parts;
    for (size_t m = 0; m < unit.size(); ++m) {
        const PlanEntry& entry = plan_.entries[unit[m]];
        members[m].entry = &entry;
        const Panels panels(panel_format(source_->tensors()[unit[m]].format, entry.spec.format), entry.rows(),
                            entry.cols());
        for (int64_t p = 0; p < panels.count(); ++p) parts.push_back({m, panels.begin(p), panels.size(p)});
    }
    std::vector<float> maxima(parts.size());
    std::vector<QuantMatrix> made(unit.size());
    std::mutex mutex;
    Status failed = Ok{};
    const auto each_part = [&](auto work) {
        pool_->parallel_for(static_cast<int64_t>(parts.size()), [&](int64_t p) {
            const Part& part = parts[static_cast<size_t>(p)];
            PanelScratch scratch;
            auto view = read_weights(*source_, unit[part.member], part.begin, part.rows, *kernels_, scratch);
            Status done = view.ok() ? work(static_cast<size_t>(p), part, *view) : Status(view.error());
            if (done.ok()) return;
            const std::lock_guard lock(mutex);
            if (failed.ok()) failed = std::move(done).within(plan_.entries[unit[part.member]].tensor);
        });
        return failed;
    };
    NIBBLE_CHECK(each_part([&](size_t p, const Part&, const MatrixView& view) -> Status {
        const Scan scan = kernels_->scan(view);
        maxima[p] = scan.amax;
        if (scan.first_nonfinite >= 0) return fail("a weight is not finite; quantize refuses it");
        return Ok{};
    }));
    for (size_t p = 0; p < parts.size(); ++p) {
        float& amax = members[parts[p].member].own_amax;
        amax = std::max(amax, maxima[p]);
    }
    set_search_maxima(members);
    set_stored_scales(members);
    for (size_t m = 0; m < unit.size(); ++m) {
        const PlanEntry& entry = *members[m].entry;
        made[m] = QuantMatrix(entry.spec.format, entry.rows(), entry.cols());
        made[m].tensor_scale = members[m].tensor_scale;
    }
    NIBBLE_CHECK(each_part([&](size_t, const Part& part, const MatrixView& view) -> Status {
        QuantStats ignored;
        kernels_->quantize(view, members[part.member].entry->spec, members[part.member].amax,
                           made[part.member].span().panel(part.begin, part.rows), ignored);
        return Ok{};
    }));
    for (size_t m = 0; m < unit.size(); ++m) ready_[unit[m]] = std::move(made[m]);
    return Ok{};
}

Result<QuantView> TrialCheckpoint::read_quant(size_t index, int64_t begin, int64_t count, QuantMatrix& scratch) const {
    if (plan_.entries[index].spec.format == Format::none) return source_->read_quant(index, begin, count, scratch);
    const std::lock_guard lock(mutex_);
    if (!ready_.contains(index)) NIBBLE_CHECK(quantize(units_[unit_of_[index]]));
    return QuantView(ready_.at(index).view().panel(begin, count));
}

void TrialCheckpoint::done_with(size_t index, int64_t begin, int64_t count) const {
    source_->done_with(index, begin, count);
    const std::lock_guard lock(mutex_);
    if (plan_.entries[index].spec.format != Format::none && begin + count == tensors_[index].rows())
        ready_.erase(index);
}

}  // namespace nibble
