#include "quant/quantize_unit.h"

#include "base/fields.h"
#include "formats/minifloat.h"
#include "quant/content_hash.h"
#include "quant/unit_scales.h"

#include <fmt/ranges.h>

#include <cmath>
#include <cstring>

namespace nibble {
namespace {

struct PanelScan {
    float amax = 0;
    int64_t bad_row = -1, bad_col = 0;  // position of the first weight that is not finite
    std::string_view bad_value;
    std::vector<double> losses;
};

struct Member {
    size_t index;  // index in plan, source and export
    const PlanEntry& entry;
    const CheckpointTensor& from;
    Panels panels;
    bool needs_amax;                  // needs the maximum of the whole tensor before its first panel is quantized
    std::vector<PanelScan> scans{};   // per panel
    std::vector<QuantStats> stats{};  // per panel
    std::vector<double> losses{};     // per multiplier
    std::vector<float> multipliers{};
    MemberScale scale{};
    SolveGaps gaps{};                  // gaps of its solver
    std::vector<KeptPanel> kept{};     // per panel; filled between its stages
    std::vector<uint64_t> contents{};  // content hash per panel
    std::vector<int> files{};          // output files of this job that store a part of the tensor
    // Checksums of the stored parts, by `files`; while an earlier run is checked: the expected ones.
    std::vector<uint64_t> checksums{};

    bool quantized() const { return entry.spec.format != Format::none; }
};

std::string_view value_class(const MatrixView& view, int64_t index) {
    uint32_t bits = 0;
    const int64_t bytes = dtype_bytes(view.dtype);  // for BF16 or F32: the upper bytes
    std::memcpy(reinterpret_cast<std::byte*>(&bits) + (4 - bytes), view.data + index * bytes,
                static_cast<size_t>(bytes));
    if (is_nan_bits(bits)) return "NaN";
    return bits >> 31 ? "-infinity" : "+infinity";
}

class QuantizeUnit : public UnitWork {
public:
    QuantizeUnit(JobContext& job, int64_t unit) : job_(job), unit_(unit) {
        for (size_t i : job.units[static_cast<size_t>(unit)]) {
            const PlanEntry& entry = job.plan.entries[i];
            const CheckpointTensor& from = job.source.tensors()[i];
            members_.push_back({i, entry, from,
                                Panels(panel_format(from.format, entry.spec.format), entry.rows(), entry.cols()),
                                needs_tensor_amax(entry)});
            members_.back().files = job.files_of(i);
            members_.back().checksums.resize(members_.back().files.size());
        }
    }

    Result<int64_t> next_stage() override {
        do {
            NIBBLE_CHECK(leave_stage());
            if (stage_ == Stage::done) return int64_t{0};
            list_tasks();
        } while (tasks_.empty());
        return static_cast<int64_t>(tasks_.size());
    }

    Status run(int64_t task, int worker) override {
        const auto [m, panel] = tasks_[static_cast<size_t>(task)];
        Member& member = members_[m];
        return run_task(member, panel, worker).within(member.entry.tensor);
    }

private:
    enum class Stage : uint8_t { begin, recheck, scan, search, quantize, finish, done };

    // Processes the results of the finished stage and sets the next one.
    Status leave_stage() {
        switch (stage_) {
            case Stage::begin:
                stage_ = recall() ? Stage::recheck : Stage::scan;
                break;
            case Stage::recheck:
                stage_ = mismatch_ ? Stage::scan : Stage::done;
                if (mismatch_)
                    job_.meter.warn(fmt::format(
                        "{}: the stored bytes differ from the journal's hash; the tensor is quantized again", name()));
                else
                    resume();
                break;
            case Stage::scan:
                NIBBLE_CHECK(collect_scans());
                stage_ = Stage::search;
                break;
            case Stage::search:
                collect_losses();
                stage_ = Stage::quantize;
                break;
            case Stage::quantize:
                NIBBLE_CHECK(collect_scans());  // for members that were scanned while they were quantized
                stage_ = Stage::finish;
                break;
            case Stage::finish:
                NIBBLE_CHECK(conclude());
                stage_ = Stage::done;
                break;
            case Stage::done:
                break;
        }
        return Ok{};
    }

    void list_tasks() {
        tasks_.clear();
        for (size_t m = 0; m < members_.size(); ++m) {
            Member& member = members_[m];
            int64_t n = member.panels.count();
            const bool solves = stage_ == Stage::quantize && member.entry.solver;
            const bool stores = stage_ == Stage::quantize || stage_ == Stage::finish;
            if (stage_ == Stage::recheck || stage_ == Stage::finish || solves) n = 1;
            if (stage_ == Stage::scan && !member.needs_amax) n = 0;
            if (stage_ == Stage::search && !searches_tensor(member.entry)) n = 0;
            if (stores && member.files.empty()) n = 0;  // it only takes part in the scales of the others
            if (n > 0 && (stage_ == Stage::scan || stage_ == Stage::quantize)) {
                member.scans.resize(static_cast<size_t>(member.panels.count()));
                member.kept.resize(static_cast<size_t>(member.panels.count()));
            }
            if (stage_ == Stage::search) member.multipliers = search_multipliers(member.entry.spec.search);
            if (stage_ == Stage::quantize && member.quantized()) {
                member.stats.resize(static_cast<size_t>(member.panels.count()));
                member.contents.resize(static_cast<size_t>(member.panels.count()));
            }
            for (int64_t p = 0; p < n; ++p) tasks_.emplace_back(m, p);
        }
    }

    Status run_task(Member& member, int64_t panel, int worker) {
        switch (stage_) {
            case Stage::recheck: {
                for (size_t f = 0; f < member.files.size(); ++f) {
                    const auto stored = job_.out.checksum(member.index, member.files[f]);
                    if (!stored.ok() || *stored != member.checksums[f]) mismatch_ = true;
                }
                return Ok{};
            }
            case Stage::scan: {
                if (member.entry.solver) {  // the host solves it, so the workers have no memory for it
                    NIBBLE_TRY(const MatrixView view, read(member, panel, worker));
                    return note_scan(member, panel, job_.kernels.scan(view), worker);
                }
                NIBBLE_TRY(const MatrixView view, place(member, panel, worker));
                NIBBLE_TRY(const Scan found, computed(job_.workers[worker].scan(view)));
                return note_scan(member, panel, found, worker);
            }
            case Stage::search: {
                NIBBLE_TRY(const MatrixView view, place(member, panel, worker));
                std::vector<double>& losses = member.scans[static_cast<size_t>(panel)].losses;
                losses.assign(member.multipliers.size(), 0.0);
                return computed(job_.workers[worker].tensor_losses(view, member.entry.spec, member.scale.amax,
                                                                   member.multipliers, losses));
            }
            case Stage::quantize:
                if (member.entry.solver) return solve(member, scratch(worker));
                return member.quantized() ? quantize(member, panel, worker) : carry(member, panel, scratch(worker));
            case Stage::finish:
                return finish(member);
            default:
                return Ok{};
        }
    }

    PanelScratch& scratch(int worker) { return job_.scratch[static_cast<size_t>(worker)]; }

    Result<MatrixView> read(const Member& member, int64_t panel, int worker) {
        return read_weights(job_.source, member.index, member.panels.begin(panel), member.panels.size(panel),
                            job_.kernels, scratch(worker));
    }

    // Returns the panel on the worker's device: kept there by an earlier stage, or read now and kept for a later one.
    Result<MatrixView> place(Member& member, int64_t panel, int worker) {
        KeptPanel& kept = member.kept[static_cast<size_t>(panel)];
        if (kept.memory) return kept.view;
        NIBBLE_TRY(const MatrixView host, read(member, panel, worker));
        const bool again = stage_ != Stage::quantize;
        return computed(job_.workers[worker].place(host, again ? &kept : nullptr));
    }

    template <class T>
    Result<T> computed(Result<T> result) {
        if (!result.ok()) job_.machine_failed = true;
        return result;
    }

    Status note_scan(Member& member, int64_t panel, const Scan& found, int worker) {
        PanelScan& result = member.scans[static_cast<size_t>(panel)];
        result.amax = found.amax;
        if (found.first_nonfinite < 0) return Ok{};
        NIBBLE_TRY(const MatrixView view, read(member, panel, worker));
        result.bad_row = member.panels.begin(panel) + found.first_nonfinite / view.cols;
        result.bad_col = found.first_nonfinite % view.cols;
        result.bad_value = value_class(view, found.first_nonfinite);
        return Ok{};
    }

    // Returns true if all candidates of a block search have equal losses, because no square of these weights is a
    // normal FP32 number.
    static bool is_blind(const Member& member) {
        constexpr float vanishes = 0x1p-63f;
        const float g = member.scale.amax.search;
        return member.entry.spec.static_scales && member.entry.spec.search.kind != Search::Kind::max && g > 0 &&
               g < vanishes;
    }

    Status quantize(Member& member, int64_t panel, int worker) {
        const auto p = static_cast<size_t>(panel);
        NIBBLE_TRY(const MatrixView view, place(member, panel, worker));
        WeightSpec spec = member.entry.spec;
        if (spec.search.maximum_when_blind && is_blind(member)) spec.search = {};
        NIBBLE_TRY(const QuantizedPanel done,
                   computed(job_.workers[worker].quantize(view, spec, member.scale.amax, member.scale.tensor_scale,
                                                          !member.needs_amax)));
        member.kept[p] = {};
        if (!member.needs_amax) {
            NIBBLE_CHECK(note_scan(member, panel, done.scan, worker));
            if (done.scan.first_nonfinite >= 0) return Ok{};  // reported at the end of the stage
        }
        member.stats[p] = done.stats;
        member.contents[p] = content_hash(done.codes, member.panels.begin(panel));
        return wrote(member, panel, job_.out.write_quant(member.index, member.panels.begin(panel), done.codes));
    }

    // Solves the whole matrix as one task. Its statistics are still summed by panels, as `verify` does.
    Status solve(Member& member, PanelScratch& scratch) {
        NIBBLE_TRY(const auto statistics, job_.options.statistics->statistics(member.entry));
        NIBBLE_TRY(const MatrixView whole,
                   read_weights(job_.source, member.index, 0, member.panels.rows, job_.kernels, scratch));
        const WeightSpec& spec = member.entry.spec;
        QuantSpan out = reshape(scratch.out, spec.format, whole.rows, whole.cols);
        out.tensor_scale = member.scale.tensor_scale;
        NIBBLE_TRY(member.gaps, solve_weight(whole, spec, member.scale.amax, member.entry.solver, *statistics,
                                             {job_.solver, job_.kernels}, job_.pool, out, member.stats.front()));
        for (int64_t panel = 0; panel < member.panels.count(); ++panel) {
            const int64_t begin = member.panels.begin(panel), count = member.panels.size(panel);
            const QuantSpan part = out.panel(begin, count);
            job_.kernels.measure(whole.panel(begin, count), part, member.stats[static_cast<size_t>(panel)]);
            member.contents[static_cast<size_t>(panel)] = content_hash(part, begin);
            NIBBLE_CHECK(wrote(member, panel, job_.out.write_quant(member.index, begin, part)));
        }
        return Ok{};
    }

    Status carry(Member& member, int64_t panel, PanelScratch& scratch) {
        const int64_t begin = member.panels.begin(panel), rows = member.panels.size(panel);
        if (!member.from.quantized()) {
            NIBBLE_TRY(const MatrixView view, job_.source.read_plain(member.index, begin, rows, scratch.read));
            return wrote(member, panel, job_.out.write_plain(member.index, begin, view));
        }
        NIBBLE_TRY(const QuantView view, job_.source.read_quant(member.index, begin, rows, scratch.read_quant));
        if (panel == 0) member.scale.tensor_scale = view.tensor_scale;
        return wrote(member, panel, job_.out.write_quant(member.index, begin, view));
    }

    Status wrote(const Member& member, int64_t panel, Status status) {
        if (!status.ok()) job_.machine_failed = true;
        const int64_t begin = member.panels.begin(panel), rows = member.panels.size(panel);
        job_.source.done_with(member.index, begin, rows);
        const auto until = [&](int64_t row) { return source_bytes(member.from) / member.panels.rows * row; };
        const int64_t end = begin + rows == member.panels.rows ? source_bytes(member.from) : until(begin + rows);
        job_.bytes_read += end - until(begin);
        job_.meter.add(end - until(begin), member.entry.tensor);
        return status;
    }

    // Combines panels in row order.
    Status collect_scans() {
        for (Member& member : members_) {
            for (const PanelScan& s : member.scans) {
                member.scale.own_amax = std::max(member.scale.own_amax, s.amax);
                if (s.bad_row >= 0)
                    return fail(
                        "{}[{}, {}] is {}: a weight that is quantized must be finite; repair the source or exclude "
                        "the tensor",
                        member.entry.tensor, s.bad_row, s.bad_col, s.bad_value);
            }
            member.scale.entry = &member.entry;
        }
        if (stage_ == Stage::scan) with_scales(set_search_maxima);
        return Ok{};
    }

    void collect_losses() {
        for (Member& member : members_) {
            if (!searches_tensor(member.entry)) continue;
            member.losses.assign(member.multipliers.size(), 0.0);
            for (const PanelScan& s : member.scans)
                for (size_t i = 0; i < s.losses.size(); ++i) member.losses[i] += s.losses[i];
            member.scale.losses = member.losses;
        }
        with_scales(set_stored_scales);
    }

    template <class Rule>
    void with_scales(Rule rule) {
        std::vector<MemberScale> scales;
        for (const Member& member : members_) scales.push_back(member.scale);
        rule(std::span(scales));
        for (size_t m = 0; m < members_.size(); ++m) members_[m].scale = scales[m];
    }

    Status finish(Member& member) {
        if (member.quantized() || member.from.quantized()) {
            const auto input = member.quantized() ? job_.options.scales.input[member.index] : member.from.input_scale;
            const Status status = job_.out.write_scalars(member.index, member.scale.tensor_scale, input);
            if (!status.ok()) {
                job_.machine_failed = true;
                return status;
            }
        }
        for (size_t f = 0; f < member.files.size(); ++f)
            member.checksums[f] = job_.out.written_checksum(member.index, member.files[f]);
        return Ok{};
    }

    // Block scales of MXFP4 and MXFP8 are powers of two, so the largest weights may round to 2^128.
    static Error not_finite(const PlanEntry& entry, float amax) {
        constexpr float rounds_up = 0x1.Cp127f;  // the middle between 1.5 and 2 times 2^127
        if (std::isfinite(amax) && amax >= rounds_up)
            return fail(
                "{}: a weight of magnitude {:.6g} rounds to 2^128 in {}, which FP32 cannot represent; exclude the "
                "tensor (--ignore) or choose another format",
                entry.tensor, amax, format_name(entry.spec.format));
        return fail("{}: quantized values are not finite; this is a defect of nibble", entry.tensor);
    }

    Status conclude() {
        Json lines = Json::array();
        for (Member& member : members_) {
            if (member.files.empty()) continue;
            TensorReport report = planned_report(job_.source, job_.plan, job_.options.scales, member.index);
            if (member.quantized()) {
                QuantStats sum;
                for (const QuantStats& s : member.stats) sum += s;
                if (!std::isfinite(sum.max_error)) return not_finite(member.entry, member.scale.own_amax);
                report.add(sum);
                for (const uint64_t content : member.contents) report.content_hash += content;
                report.amax = member.scale.own_amax;
                report.search_multiplier = member.scale.multiplier;
                report.blind_search = is_blind(member) || (member.scale.blind && member.scale.own_amax > 0);
                report.gaps = member.gaps;
            }
            report.tensor_scale = member.scale.tensor_scale;
            Json checksums = Json::array();
            for (size_t f = 0; f < member.files.size(); ++f)
                checksums.push_back({{"file", member.files[f]}, {"sum", member.checksums[f]}});
            lines.push_back(
                {{"index", member.index}, {"checksums", std::move(checksums)}, {"report", to_json(report)}});
            job_.bytes_written += report.stored_bytes;
            job_.reports[member.index] = std::move(report);
        }
        Status status = job_.journal.append(unit_, std::move(lines));
        if (!status.ok()) job_.machine_failed = true;
        return status;
    }

    // Reuses the unit's journal entry; false: there is no usable entry.
    bool recall() {
        auto lines = job_.journal.finished(unit_);
        if (!lines && job_.earlier) lines = job_.earlier->finished(unit_);
        if (!lines || !lines->is_array()) return false;
        return std::ranges::all_of(members_, [&](Member& member) { return recall(member, *lines); });
    }

    bool recall(Member& member, const Json& lines) {
        if (member.files.empty()) return true;
        for (const Json& line : lines) {
            size_t index = 0;
            if (!Fields(line).need("index", index).ok() || index != member.index) continue;
            const auto report = Fields(line).object("report");
            if (!report.ok() || !recall_checksums(member, line)) return false;
            auto parsed = tensor_report_from_json(**report);
            if (!parsed.ok() || parsed->name != member.entry.tensor) return false;
            parsed->reason = member.entry.reason;  // texts may change between runs, numbers cannot
            job_.reports[member.index] = *std::move(parsed);
            return true;
        }
        return false;
    }

    // Reads the checksums of the member's files; false: one is missing.
    static bool recall_checksums(Member& member, const Json& line) {
        const auto list = line.find("checksums");
        if (list == line.end() || !list->is_array()) return false;
        size_t found = 0;
        for (const Json& one : *list) {
            int file = 0;
            uint64_t sum = 0;
            if (!Fields(one).need("file", file).ok() || !Fields(one).need("sum", sum).ok()) return false;
            const auto at = std::ranges::find(member.files, file);
            if (at == member.files.end()) continue;
            member.checksums[static_cast<size_t>(at - member.files.begin())] = sum;
            ++found;
        }
        return found == member.files.size();
    }

    void resume() {
        job_.resumed += static_cast<int64_t>(members_.size());
        for (const Member& member : members_) job_.meter.add(source_bytes(member.from), member.entry.tensor);
    }

    const std::string& name() const { return members_.front().entry.tensor; }

    JobContext& job_;
    const int64_t unit_;
    Stage stage_ = Stage::begin;
    std::vector<Member> members_;
    std::vector<std::pair<size_t, int64_t>> tasks_;  // pairs of member and panel
    std::atomic<bool> mismatch_{false};
};

}  // namespace

std::vector<int> JobContext::files_of(size_t index) const {
    std::vector<int> files = out.files_of(index);
    if (file) std::erase_if(files, [&](int f) { return f != *file; });
    return files;
}

int64_t source_bytes(const CheckpointTensor& tensor) {
    return tensor.quantized() ? tensor.stored_bytes : tensor.rows() * tensor.cols() * dtype_bytes(tensor.dtype);
}

TensorReport planned_report(const Checkpoint& source, const Plan& plan, const ActivationScales& scales, size_t index) {
    const PlanEntry& entry = plan.entries[index];
    const CheckpointTensor& from = source.tensors()[index];
    const bool quantized = entry.spec.format != Format::none;
    TensorReport report{.name = entry.tensor,
                        .shape = entry.shape,
                        .dtype = from.dtype,
                        .format = quantized ? entry.spec.format : from.format,
                        .method = quantized ? method_text(entry) : "",
                        .activation = quantized ? entry.activation : from.activation,
                        .scale_group = quantized ? entry.scale_group : "",
                        .reason = entry.reason,
                        .source_bytes = source_bytes(from),
                        .elements = entry.rows() * entry.cols()};
    report.input_scale = quantized ? scales.input[index] : from.input_scale;
    if (quantized) {
        const auto bytes = [&](auto of) { return of(entry.spec.format, entry.rows(), entry.cols()); };
        report.stored_bytes = bytes(code_bytes) + bytes(block_scale_bytes) + 4 * bytes(float_scale_count) +
                              (format_layout(entry.spec.format).tensor_scale ? 4 : 0) + (report.input_scale ? 4 : 0);
    } else {
        report.stored_bytes = report.source_bytes;
    }
    return report;
}

std::unique_ptr<UnitWork> start_unit(JobContext& job, int64_t unit) {
    return std::make_unique<QuantizeUnit>(job, unit);
}

}  // namespace nibble
