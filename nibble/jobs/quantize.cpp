#include "nibble/quantize.h"

#include "checkpoint/output_place.h"
#include "checkpoint/work_folder.h"
#include "io/atomic_file.h"
#include "jobs/calibrate_source.h"
#include "jobs/job.h"
#include "jobs/manifest.h"
#include "jobs/open_checkpoint.h"
#include "quant/device_workers.h"
#include "quant/job.h"
#include "quant/kept_scales.h"
#include "quant/plan_json.h"
#include "quant/quantized_card.h"
#include "quant/rank_job.h"
#include "quant/report_html.h"
#include "quant/report_text.h"
#include "quant/units.h"
#include "quant/verify.h"
#include "run/rank_device.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace nibble {
namespace {

namespace fs = std::filesystem;

using JobClock = std::chrono::steady_clock;
double seconds_since(JobClock::time_point begin) {
    return std::chrono::duration<double>(JobClock::now() - begin).count();
}

// Returns true if the output exists and its manifest contains this command: a scheduler has repeated a finished job.
bool made_by_this_command(const QuantizeOptions& options) {
    std::error_code ignored;
    const fs::path manifest = fs::is_regular_file(options.out, ignored)  // GGUF
                                  ? fs::path(options.out + "." + std::string(manifest_name))
                                  : fs::path(options.out) / manifest_name;
    if (!options.resume || options.command.whole.empty() || !fs::is_regular_file(manifest, ignored)) return false;
    const auto json = read_json_file(manifest);
    return json.ok() && json->is_object() && json->value("command", Json()) == Json(options.command.whole);
}

// Error: the source is quantized. The error of rounding twice would not show in the report, which compares with the
// source.
Status refuse_quantized_source(const QuantizeOptions& options, const Checkpoint& source) {
    const std::string already = quantized_text(source);
    if (options.requantize || already.empty()) return Ok{};
    return fail(ErrorKind::usage,
                "{}: {}: quantize the checkpoint that it was made from, or decode and quantize it again with "
                "--requantize; the report then omits the errors of the first quantization",
                options.source, already);
}

// Error: the plan quantizes nothing. Presets for other architectures (for example, only experts) may match nothing.
Status refuse_empty_plan(const QuantizeOptions& options, const Plan& plan) {
    if (std::ranges::any_of(plan.entries, [](const PlanEntry& e) { return e.spec.format != Format::none; }))
        return Ok{};
    return fail(ErrorKind::recipe,
                "{}: recipe {} quantizes nothing of this model: its rules match none of the linears; choose another",
                options.source, options.recipe);
}

// Error: the recipe stores scales of activations, but neither --input-scales nor --calib is given.
Status refuse_missing_activations(const Plan& plan) {
    if (plan.needs_activations.empty()) return Ok{};
    const size_t others = plan.needs_activations.size() - 1;
    return fail(ErrorKind::recipe, "the recipe needs activations: {}{}", plan.needs_activations.front(),
                others ? fmt::format(" (and {} more)", others) : "");
}

void warn_of_cpu_passes(const DeviceChoice& device, const Plan& plan, const JobHooks& hooks) {
    if (!device.cuda) return;
    if (plan.awq) hooks.emit_warning("awq_lite searches its scales on the CPU, whatever --device says");
    if (!calibrates_on_device(plan))
        hooks.emit_warning(
            "nibble_best reads gradients, which only the CPU computes: calibration runs there, whatever --device says");
}

// Schedulers repeat the command of a killed job, which may not have written anything.
void note_a_fresh_start(const QuantizeOptions& options, const JobHooks& hooks) {
    if (!options.resume || fs::exists(partial_output(options)) || fs::exists(calibration_folder(options))) return;
    hooks.emit_note(fmt::format("{}: nothing to resume, the job starts from the beginning", options.out));
}

// With a GPU there are two threads per core: one reads or writes while the other waits for its panel.
// Several ranks of a machine divide its cores, unless their launcher has done so.
int thread_count(const QuantizeOptions& options, const DeviceChoice& device, const RankPlace& place) {
    if (options.threads > 0) return options.threads;
    const bool whole_machine = usable_cores() == ::sysconf(_SC_NPROCESSORS_ONLN);
    const int cores = std::max(1, usable_cores() / (whole_machine ? place.local_size.value_or(1) : 1));
    return device.cuda ? 2 * cores : cores;
}

std::chrono::seconds rank_expiry(const QuantizeOptions& options) {
    return std::chrono::seconds(options.rank_timeout_seconds);
}

// Error: ranks calibrate on a GPU, whose passes are not divided.
Status refuse_device_calibration_by_ranks(const QuantizeOptions& options, const DeviceChoice& device,
                                          const RankPlace& place) {
    if (place.alone() || options.calib.file.empty() || !device.cuda) return Ok{};
    return fail(ErrorKind::usage,
                "--calib with {} ranks runs on the CPU: omit --device, or calibrate in one process and pass its scales "
                "with --input-scales",
                place.size);
}

// Returns null on the CPU. Weight solvers do not run on a GPU; their tensors stay on the CPU, and a note reports it.
Result<std::unique_ptr<PanelWorkers>> workers_on(const DeviceChoice& device, const Checkpoint& source, const Plan& plan,
                                                 int threads, const JobHooks& hooks) {
    if (!device.cuda) return std::unique_ptr<PanelWorkers>();
    NIBBLE_TRY(auto workers, open_device_workers(device, source, plan, threads).as(ErrorKind::device));
    const auto solved = std::ranges::count_if(plan.entries, [](const PlanEntry& e) { return bool(e.solver); });
    if (solved) hooks.emit_warning(fmt::format("{} tensors have a weight solver, which runs on the CPU", solved));
    return workers;
}

Result<ExportSpec> export_spec(const QuantizeOptions& options, const QuantizeSettings& settings,
                               const Checkpoint& source, const Plan& plan, const ActivationScales& scales) {
    NIBBLE_TRY(auto side_files, source.side_files());
    return ExportSpec{.dialect = settings.dialect,
                      .out = options.out,
                      .tensors = export_tensors(source, plan, scales),
                      .kv = plan.kv,
                      .config = source.config(),
                      .side_files = std::move(side_files),
                      .max_shard_bytes = settings.max_shard_bytes,
                      .manifest = {},
                      .report_bytes = report_bytes(plan)};
}

// With `compat`, stacks that Model Optimizer exports as stacks stay stacks in its dialect.
StackReading stack_reading(const QuantizeOptions& options, const QuantizeSettings& settings) {
    const bool kept = settings.dialect == Dialect::modelopt && options.compat != "none";
    return kept ? StackReading::whole : StackReading::split;
}

// Reads the work folder back. A checkpoint that fails never gets its final name.
Result<std::string> verify_written(const QuantizeOptions& options, const QuantizeSettings& settings,
                                   const Checkpoint& source, const Plan& plan, const QuantReport& report,
                                   const Export& out, ThreadPool& pool, const JobHooks& hooks) {
    NIBBLE_TRY(const auto written,
               Checkpoint::open(out.checkpoint_path(), ScaleReading::checked, stack_reading(options, settings)));
    const ExpectedFormats expected = expected_formats(plan);
    NIBBLE_TRY(
        const auto checked,
        verify(*written,
               {.kernels = settings.kernels, .source = &source, .expected = &expected, .computed = &report.tensors},
               pool, hooks));
    if (!checked.passed())
        return fail(ErrorKind::checkpoint,
                    "{}: verification found {} problems, the first: {}: {}; the unfinished checkpoint stays in {}",
                    options.out, checked.findings.size(), checked.findings.front().tensor,
                    checked.findings.front().text, out.work_dir().string());
    return fmt::format(
        "{} tensors read back: codes and scales equal the computed ones, all other tensors equal the source's",
        checked.tensors.size());
}

Status write_reports(const QuantizeOptions& options, const QuantizeSettings& settings, const QuantReport& report,
                     const std::string& source_card, const Export& out) {
    NIBBLE_CHECK(write_file_atomically(out.work_dir() / "nibble-report.json", to_json_text(report)));
    NIBBLE_CHECK(write_file_atomically(out.work_dir() / "nibble-report.html", render_html(report)));
    if (settings.dialect == Dialect::gguf) return Ok{};
    const ModelCard card =
        quantized_card(report, settings.dialect, hub_name(options.out), hub_name(options.source), options.command.card);
    return write_file_atomically(out.work_dir() / model_card_name, model_card_text(card, source_card));
}

QuantizeReport report_without_text(QuantizeReport::Outcome outcome) {
    QuantizeReport out;
    out.outcome = outcome;
    out.text = out.json = [] { return std::string(); };
    return out;
}

QuantizeReport planned_report(Plan made) {
    QuantizeReport out;
    out.outcome = QuantizeReport::Outcome::planned;
    out.tensors = std::ssize(made.entries);
    out.quantized_tensors =
        std::ranges::count_if(made.entries, [](const PlanEntry& e) { return e.spec.format != Format::none; });
    out.warnings = made.warnings;
    const auto plan = std::make_shared<const Plan>(std::move(made));
    out.text = [plan] { return to_text(*plan); };
    out.json = [plan] { return to_json(*plan).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; };
    return out;
}

QuantizeReport written_report(const Plan& plan, QuantReport made) {
    QuantizeReport out;
    const ReportTotals totals = made.totals();
    out.tensors = totals.tensors;
    out.quantized_tensors = totals.quantized_tensors;
    out.stored_bytes = totals.stored_bytes;
    out.bits_per_quantized_weight = totals.quantized_bits_per_element;
    out.sqnr_db = totals.sqnr_db;
    out.warnings = plan.warnings;
    const auto report = std::make_shared<const QuantReport>(std::move(made));
    out.text = [report] { return report_text(*report); };
    out.json = [report] { return to_json_text(*report); };
    return out;
}

// Removes what a process left that was killed after it had published the output. Nothing else is removed: the error of
// check() is that the output exists, or that a process works there.
void remove_leftovers(const std::string& out) {
    remove_rank_folder(out);
    (void)WorkFolder::check(out, ExportMode::resume, 0).ok();
}

// Joins the other ranks. Returns null if they have finished the job.
Result<std::unique_ptr<RankJob>> join_ranks(const QuantizeOptions& options, const RankPlace& place,
                                            const JobIdentity& facts, const JobHooks& hooks) {
    if (is_finished_output(options.out)) {
        if (made_by_this_command(options)) {
            remove_leftovers(options.out);
            return std::unique_ptr<RankJob>();
        }
        return fail(ErrorKind::file, "{}: exists already; remove it or choose another output", options.out);
    }
    return RankJob::join({.place = place, .out = options.out, .expiry = rank_expiry(options)}, facts, hooks);
}

// Quantizes files until none is left. Returns true in the rank that must finish the job.
Result<bool> work_with_ranks(RankJob& ranks, const QuantizeOptions& options, const Checkpoint& source, const Plan& plan,
                             const JobOptions& job, const ExportSpec& spec, ThreadPool& pool) {
    NIBBLE_TRY(const bool last, ranks.work(source, plan, job, spec, pool));
    if (!last) remove_leftovers(options.out);
    return last;
}

// Returns everything that decides the bytes of a job with calibration, for ranks that compare their jobs before it.
Result<JobIdentity> calibration_facts(const QuantizeOptions& options, const QuantizeSettings& settings,
                                      const Checkpoint& source) {
    NIBBLE_TRY(JobIdentity facts, source_identity(source));
    facts.emplace_back("version of nibble", NIBBLE_VERSION);
    const Json described = settings_json(options, settings);
    for (const auto& [name, value] : described.items())
        facts.emplace_back(name, value.dump(-1, ' ', false, Json::error_handler_t::replace));
    const CalibrationText& text = options.calib;
    facts.emplace_back("calibration text", fmt::format("{}, {} tokens in sequences of {}, {} with gradients, {}{}",
                                                       text.range, text.tokens, text.sequence, text.gradients,
                                                       options.input_scales, text.all_experts ? ", all experts" : ""));
    return facts;
}

// Returns the place where ranks share a calibration. One process joins the work that ranks have left; no value: it
// works alone.
std::optional<StageChainOptions> calibration_by_ranks(const QuantizeOptions& options, const RankPlace& place) {
    std::error_code ignored;
    const fs::path folder = rank_calibration_folder(options.out);
    if (place.alone() && !fs::is_directory(folder, ignored)) return std::nullopt;
    return StageChainOptions{.folder = folder,
                             .who = place.alone() ? "one process" : fmt::format("rank {}", place.rank),
                             .expiry = rank_expiry(options),
                             .should_stop = {}};
}

// Adds the work of ranks, if there is any, to the journal of this output.
Status merge_rank_work(const Checkpoint& source, const Plan& plan, const JobOptions& job, const Export& out,
                       const QuantizeOptions& options) {
    std::error_code ignored;
    if (!fs::exists(rank_folder(options.out), ignored)) return Ok{};
    NIBBLE_TRY(const JobIdentity identity, quantize_identity(source, plan, job));
    return merge_rank_journals(options.out, out.work_dir(), identity, std::ssize(make_units(plan)));
}

Result<QuantizeReport> quantize_job(const QuantizeOptions& given_options, const JobHooks& hooks) {
    const auto begin = JobClock::now();
    NIBBLE_TRY(const RankPlace place, rank_place());
    QuantizeOptions options = given_options;
    options.resume |= !place.alone();  // ranks start at different times, so every one continues what it finds
    if (made_by_this_command(options)) {
        hooks.emit_note(fmt::format("{}: already written by this command", options.out));
        remove_leftovers(options.out);
        return report_without_text(QuantizeReport::Outcome::made_before);
    }
    NIBBLE_TRY(QuantizeSettings settings, read_settings(options));
    if (settings.device.cuda && !place.alone()) NIBBLE_CHECK(choose_rank_device(0, place, settings.device));
    if (settings.device.cuda && !options.dry_run) NIBBLE_CHECK(open_device(settings.device).as(ErrorKind::device));
    NIBBLE_TRY(const std::unique_ptr<Checkpoint> opened,
               open_checkpoint(options.source, hooks, ScaleReading::checked, stack_reading(options, settings)));
    NIBBLE_CHECK(check_weights_present(*opened, options.partial, hooks));
    NIBBLE_CHECK(refuse_output_in_source(options.out, options.source));
    NIBBLE_CHECK(refuse_quantized_source(options, *opened));
    std::optional<ScaleTable> given;
    if (!options.input_scales.empty() && !given_scale(options)) {
        NIBBLE_TRY(given, read_scale_table(options.input_scales));
    }

    // Checks everything that follows from names, shapes and formats before the first tensor is read.
    NIBBLE_TRY(Plan plan, make_plan(options, settings, *opened, {.scales = given ? &*given : nullptr}));
    if (settings.dialect != Dialect::gguf) NIBBLE_CHECK(refuse_empty_plan(options, plan));
    NIBBLE_TRY(const ExportSpec planned, export_spec(options, settings, *opened, plan, placeholder_scales(plan)));
    if (const Status free = check_export(planned).as(ErrorKind::recipe); !free.ok()) {
        if (place.alone() || !made_by_this_command(options)) return free.error();
        return report_without_text(QuantizeReport::Outcome::by_another_rank);  // published in the meantime
    }
    note_outside_links(*opened, planned.side_files, hooks);
    const bool calibrates = !options.calib.file.empty();
    NIBBLE_CHECK(refuse_device_calibration_by_ranks(options, settings.device, place));
    if (calibrates) warn_of_cpu_passes(settings.device, plan, hooks);
    if (options.dry_run) return planned_report(std::move(plan));
    if (place.alone()) note_a_fresh_start(options, hooks);
    for (const std::string& warning : plan.warnings) hooks.emit_warning(warning);

    std::unique_ptr<RankJob> ranks;
    if (place.alone()) NIBBLE_CHECK(refuse_working_ranks(options.out, options.resume, rank_expiry(options), hooks));
    if (!place.alone()) options.threads = thread_count(options, settings.device, place);
    if (!place.alone() && calibrates) {
        NIBBLE_TRY(const JobIdentity facts, calibration_facts(options, settings, *opened));
        NIBBLE_TRY(ranks, join_ranks(options, place, facts, hooks));
        if (!ranks) return report_without_text(QuantizeReport::Outcome::by_another_rank);
    }
    Calibrated calibrated;
    const auto calibration_begin = JobClock::now();
    if (calibrates) {
        auto found = calibrate_source(options, settings, *opened, std::move(plan), std::move(given),
                                      calibration_by_ranks(options, place), hooks);
        // The others may have removed the folder of ranks after they had published the output.
        if (!found.ok() && ranks && ranks->finished())
            return report_without_text(QuantizeReport::Outcome::by_another_rank);
        NIBBLE_TRY(calibrated, std::move(found));
    } else {
        calibrated.plan = std::move(plan);
        calibrated.scales = std::move(given);
        calibrated.settings = settings_json(options, settings);
    }
    const double calibration_seconds = calibrates ? seconds_since(calibration_begin) : 0;
    plan = std::move(calibrated.plan);
    const Checkpoint& source = calibrated.folded ? *calibrated.folded : *opened;
    NIBBLE_CHECK(refuse_missing_activations(plan));
    NIBBLE_TRY(
        const auto scales,
        resolve_activation_scales(plan, calibrated.scales ? &*calibrated.scales : nullptr).as(ErrorKind::recipe));
    for (const std::string& warning : scales.warnings) hooks.emit_warning(warning);

    ThreadPool pool(thread_count(options, settings.device, place));
    NIBBLE_TRY(const auto workers, workers_on(settings.device, source, plan, pool.threads(), hooks));
    const JobOptions job{.kernels = settings.kernels,
                         .workers = workers.get(),
                         .scales = scales,
                         .statistics = calibrated.statistics.get(),
                         .settings = std::move(calibrated.settings),
                         .versions = {{"nibble", NIBBLE_VERSION}}};
    const Manifest manifest{.command_line = options.command.whole,
                            .settings = job.settings,
                            .recipe = plan.recipe,
                            .tensors = to_json(expected_formats(plan))};
    NIBBLE_TRY(ExportSpec spec, export_spec(options, settings, source, plan, scales));
    spec.manifest = to_text(manifest);
    std::string source_card;
    if (settings.dialect != Dialect::gguf) {
        NIBBLE_TRY(source_card, take_model_card(spec.side_files));
    }
    if (const std::string note = export_note(spec); !note.empty()) {
        hooks.emit_warning(note);
        plan.warnings.push_back(note);
    }
    if (!place.alone() && !ranks) {
        NIBBLE_TRY(const JobIdentity facts, quantize_identity(source, plan, job));
        NIBBLE_TRY(ranks, join_ranks(options, place, facts, hooks));
    }
    if (!place.alone()) {
        bool last = false;
        if (ranks) {
            NIBBLE_TRY(last, work_with_ranks(*ranks, options, source, plan, job, spec, pool));
        }
        if (!last) return report_without_text(QuantizeReport::Outcome::by_another_rank);
    }
    NIBBLE_TRY(const auto out,
               open_export(std::move(spec), resumes_export(options) ? ExportMode::resume : ExportMode::create));
    if (options.resume) NIBBLE_CHECK(merge_rank_work(source, plan, job, *out, options));
    NIBBLE_TRY(QuantReport report, run_quantize(source, plan, job, *out, pool, hooks).as(ErrorKind::checkpoint));
    report.timing.command = options.command.whole;
    report.timing.output = options.out;
    report.timing.calibration_seconds = calibration_seconds;
    report.output_errors = std::move(calibrated.output_errors);
    // calibration has reported its own gaps
    for (const CalibrationGap& gap : report.gaps) hooks.emit_warning(gap.text);
    report.gaps.insert(report.gaps.begin(), std::make_move_iterator(calibrated.gaps.begin()),
                       std::make_move_iterator(calibrated.gaps.end()));
    NIBBLE_CHECK(keep_exact_scales(settings.dialect, to_text(manifest), *out, report));
    NIBBLE_TRY(report.timing.verified, verify_written(options, settings, source, plan, report, *out, pool, hooks));
    report.timing.whole_seconds = seconds_since(begin);
    NIBBLE_CHECK(write_reports(options, settings, report, source_card, *out));
    NIBBLE_CHECK(calibrated.folder.mark_done());
    NIBBLE_CHECK(out->finish());
    calibrated.folder.remove();
    ranks.reset();
    remove_rank_folder(options.out);
    return written_report(plan, std::move(report));
}

}  // namespace

Result<QuantizeReport> quantize(const QuantizeOptions& options, const JobHooks& hooks) {
    return as_job([&] { return quantize_job(options, hooks); });
}

}  // namespace nibble
