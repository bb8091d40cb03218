#include "quant/job.h"

#include "checkpoint/source_files.h"
#include "quant/quantize_unit.h"

#include <fmt/chrono.h>

#include <algorithm>

namespace nibble {
namespace {

std::string scales_text(const ActivationScales& scales) {
    std::string text;
    for (const auto& scale : scales.input) text += scale ? fmt::format("{} ", *scale) : "- ";
    for (const auto& [name, value] : scales.kv) text += fmt::format("{} {} ", name, value);
    return text;
}

// Writes the KV scales, which follow the plan's tensors in the export.
Status write_kv_scales(const ActivationScales& scales, size_t first, Export& out) {
    for (size_t i = 0; i < scales.kv.size(); ++i) {
        const MatrixView view{DType::f32, 1, 1, reinterpret_cast<const std::byte*>(&scales.kv[i].second)};
        NIBBLE_CHECK(out.write_plain(first + i, 0, view).within(scales.kv[i].first));
    }
    return Ok{};
}

QuantReport make_report(JobContext& job, const ThreadPool& pool) {
    const Plan& plan = job.plan;
    QuantReport report{.source = job.source.path().string(),
                       .recipe = plan.recipe,
                       .plan = to_text(plan),
                       .settings = job.options.settings,
                       .versions = job.options.versions,
                       .kv = plan.kv,
                       .kv_scales = job.options.scales.kv,
                       .weights_only = plan.weights_only,
                       .warnings = plan.warnings,
                       .tensors = std::move(job.reports)};
    for (const std::string& warning : job.options.scales.warnings) report.warnings.push_back(warning);
    report.gaps = gaps_of_tensors(plan, report.tensors);
    const double seconds = job.meter.seconds();
    report.timing = {.seconds = seconds,
                     .bytes_read = job.bytes_read,
                     .bytes_written = job.bytes_written,
                     .gigabytes_per_second = static_cast<double>(job.bytes_read) / seconds / 1e9,
                     .threads = pool.threads(),
                     .kernels = std::string(job.workers.name()),
                     .peak_anonymous_bytes = job.meter.peak_anonymous(),
                     .peak_resident_bytes = memory_use().peak_resident,
                     .resumed_tensors = job.resumed,
                     .finished_at = fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)))};
    return report;
}

std::string kept(const JobContext& job) {
    if (job.file) return "the same command continues";
    size_t finished = 0;
    for (size_t unit = 0; unit < job.units.size(); ++unit)
        if (job.journal.holds(static_cast<int64_t>(unit))) finished += job.units[unit].size();
    return fmt::format("{} of {} tensors are finished and kept in {}; the same command with --resume continues",
                       finished, job.plan.entries.size(), job.out.work_dir().string());
}

// Checks that the job has what the plan needs.
Status check_job(const Checkpoint& source, const Plan& plan, const JobOptions& options) {
    NIBBLE_CHECK(check_plan(source, plan));
    if (options.scales.input.size() != plan.entries.size())
        return fail("activation scales for {} tensors, the plan has {}", options.scales.input.size(),
                    plan.entries.size());
    for (const PlanEntry& entry : plan.entries)
        if (entry.solver && !options.statistics)
            return fail("{}: {} needs calibration: pass --calib FILE", entry.tensor, to_string(entry.solver));
    return Ok{};
}

// Returns the numbers of the units with a part in `file`; no value: of all units.
std::vector<int64_t> units_of(const std::vector<Unit>& units, const Export& out, std::optional<int> file) {
    std::vector<int64_t> numbers;
    const auto stores = [&](size_t index) {
        const std::vector<int> files = out.files_of(index);
        return std::ranges::find(files, *file) != files.end();
    };
    for (size_t unit = 0; unit < units.size(); ++unit)
        if (!file || std::ranges::any_of(units[unit], stores)) numbers.push_back(static_cast<int64_t>(unit));
    return numbers;
}

// The common part of a job over all files and of one over a single file.
struct JobParts {
    Journal& journal;
    std::optional<int> file;
    const Journal* earlier = nullptr;
};

Result<QuantReport> run_job(const Checkpoint& source, const Plan& plan, const JobOptions& options, Export& out,
                            const JobParts& parts, const JobIdentity& identity, ThreadPool& pool,
                            const JobHooks& hooks) {
    const QuantizeKernels* kernels = options.kernels;
    if (!kernels) {
        NIBBLE_TRY(kernels, select_quantize_kernels());
    }
    const auto host = options.workers ? nullptr : host_workers(*kernels, pool.threads());
    PanelWorkers& workers = options.workers ? *options.workers : *host;
    if (workers.count() < pool.threads())
        return fail("{} workers on {} for {} threads", workers.count(), workers.name(), pool.threads());
    NIBBLE_TRY(const SolverKernels* solver, select_solver_kernels(kernels->name));
    NIBBLE_CHECK(write_kv_scales(options.scales, plan.entries.size(), out));

    const std::vector<Unit> units = make_units(plan);
    const std::vector<int64_t> numbers = units_of(units, out, parts.file);
    int64_t total = 0;
    for (const int64_t unit : numbers)
        for (const size_t i : units[static_cast<size_t>(unit)]) total += source_bytes(source.tensors()[i]);
    ProgressMeter meter(hooks, "quantize", total);
    JobContext job{.source = source,
                   .plan = plan,
                   .options = options,
                   .kernels = *kernels,
                   .solver = *solver,
                   .workers = workers,
                   .pool = pool,
                   .out = out,
                   .journal = parts.journal,
                   .units = units,
                   .file = parts.file,
                   .earlier = parts.earlier,
                   .meter = meter,
                   .scratch = std::vector<PanelScratch>(static_cast<size_t>(pool.threads())),
                   .reports = std::vector<TensorReport>(plan.entries.size())};
    const auto end = run_units(
        pool, std::ssize(numbers), [&](int64_t i) { return start_unit(job, numbers[static_cast<size_t>(i)]); },
        [&] { return hooks.should_stop(); });
    if (!end.ok() && job.machine_failed)
        return Error(fmt::format("{} ({})", end.error().message(), kept(job)), end.error().kind());
    if (!end.ok()) return end.error();
    if (*end == RunEnd::stopped) return fail(ErrorKind::cancelled, "stopped on request: {}", kept(job));
    NIBBLE_CHECK(check_source_unchanged(source, identity));
    meter.finish();
    return make_report(job, pool);
}

// Adds the lines of `more` to those of a unit: checksums of further files, members with parts in further files.
void add_lines(Json& lines, Json more) {
    for (Json& line : more) {
        const auto same = std::ranges::find_if(lines, [&](const Json& l) { return l["index"] == line["index"]; });
        if (same == lines.end()) {
            lines.push_back(std::move(line));
            continue;
        }
        Json& sums = (*same)["checksums"];
        for (Json& sum : line["checksums"]) {
            const auto old = std::ranges::find_if(sums, [&](const Json& s) { return s["file"] == sum["file"]; });
            if (old == sums.end())
                sums.push_back(std::move(sum));
            else
                *old = std::move(sum);
        }
    }
}

bool is_list_of_members(const Json& lines) {
    return lines.is_array() && std::ranges::all_of(lines, [](const Json& line) {
               return line.is_object() && line.contains("index") && line.contains("checksums") &&
                      line["checksums"].is_array() &&
                      std::ranges::all_of(line["checksums"], [](const Json& sum) { return sum.contains("file"); });
           });
}

}  // namespace

Result<JobIdentity> source_identity(const Checkpoint& source) {
    JobIdentity identity;
    identity.emplace_back("source config",
                          hash_text(source.config().dump(-1, ' ', false, Json::error_handler_t::replace)));
    NIBBLE_TRY(auto files, source_files(source));
    for (auto& file : files) identity.push_back(std::move(file));
    return identity;
}

Result<JobIdentity> quantize_identity(const Checkpoint& source, const Plan& plan, const JobOptions& options) {
    JobIdentity identity;
    for (const auto& [name, value] : options.versions.items())
        identity.emplace_back("version of " + name, value.dump());
    for (const auto& [name, value] : options.settings.items())
        identity.emplace_back("setting " + name, value.dump(-1, ' ', false, Json::error_handler_t::replace));
    identity.emplace_back("recipe and plan", hash_text(plan_identity(plan)));
    identity.emplace_back("activation scales", hash_text(scales_text(options.scales)));
    if (options.statistics) identity.emplace_back("statistics", hash_text(options.statistics->identity()));
    NIBBLE_TRY(auto files, source_identity(source));
    for (auto& file : files) identity.push_back(std::move(file));
    return identity;
}

Result<QuantReport> run_quantize(const Checkpoint& source, const Plan& plan, const JobOptions& options, Export& out,
                                 ThreadPool& pool, const JobHooks& hooks) {
    NIBBLE_CHECK(check_job(source, plan, options));
    NIBBLE_TRY(const JobIdentity identity, quantize_identity(source, plan, options));
    NIBBLE_TRY(const auto journal, Journal::open(out.work_dir(), identity));
    return run_job(source, plan, options, out, {.journal = *journal, .file = {}}, identity, pool, hooks);
}

Status run_quantize_file(const Checkpoint& source, const Plan& plan, const JobOptions& options, Export& out,
                         const FileWork& work, ThreadPool& pool, const JobHooks& hooks) {
    NIBBLE_CHECK(check_job(source, plan, options));
    NIBBLE_TRY(const JobIdentity identity, quantize_identity(source, plan, options));
    NIBBLE_CHECK(run_job(source, plan, options, out,
                         {.journal = work.journal, .file = work.file, .earlier = work.earlier}, identity, pool, hooks));
    return Ok{};
}

Status merge_journals(std::span<const std::unique_ptr<Journal>> parts, int64_t units, Journal& whole) {
    for (int64_t unit = 0; unit < units; ++unit) {
        Json lines = Json::array();
        for (const auto& part : parts)
            if (auto more = part->finished(unit); more && is_list_of_members(*more)) add_lines(lines, *std::move(more));
        if (!lines.empty()) NIBBLE_CHECK(whole.append(unit, std::move(lines)));
    }
    return Ok{};
}

}  // namespace nibble
