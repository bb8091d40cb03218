#include "nibble/calibrate.h"
#include "checkpoint/output_place.h"
#include "io/atomic_file.h"
#include "jobs/calibration_text.h"
#include "jobs/job.h"
#include "jobs/one_process.h"
#include "jobs/open_checkpoint.h"
#include "jobs/quantize_plan.h"
#include "quant/calibrate.h"

#include <algorithm>

namespace nibble {
namespace {

// Error: the plan has solvers or awq_lite. Their scales are useless without the weights that they change.
Status check_plan(const Plan& plan) {
    const bool solves = std::ranges::any_of(plan.entries, [](const PlanEntry& e) { return bool(e.solver); });
    if (plan.awq || solves)
        return fail(ErrorKind::recipe, "recipe {} also uses the text to compute weights: run nibble quantize --calib",
                    plan.recipe);
    if (!needs_calibration(plan))
        return fail(ErrorKind::recipe, "--calib: this recipe stores nothing that depends on activations");
    return Ok{};
}

Status write_scales(const std::string& path, const ScaleTable& table) {
    Json json = Json::object();
    for (const auto& [name, value] : table.values) json[name] = value;
    return write_file_atomically(path, json.dump(1) + "\n");
}

Result<CalibrationReport> calibrate_job(const QuantizeOptions& options, const JobHooks& hooks) {
    NIBBLE_CHECK(need_one_process("calibration"));
    if (options.calib.file.empty()) return fail(ErrorKind::usage, "calibration runs the model on text: name a file");
    if (!options.out.empty()) NIBBLE_CHECK(check_output_file(options.out).as(ErrorKind::file));
    NIBBLE_TRY(const QuantizeSettings settings, read_settings(options));
    if (settings.device.cuda) NIBBLE_CHECK(open_device(settings.device).as(ErrorKind::device));
    NIBBLE_TRY(const std::unique_ptr<Checkpoint> source, open_checkpoint(options.source, hooks));
    NIBBLE_CHECK(check_weights_present(*source, options.partial, hooks));
    NIBBLE_TRY(const Plan plan, make_plan(options, settings, *source, {}));
    NIBBLE_CHECK(check_plan(plan));
    NIBBLE_TRY(const auto sequences, calibration_sequences(options.calib, *source, hooks));
    ThreadPool pool(options.threads);
    const CalibrationOptions how{.range = settings.range,
                                 .all_experts = options.calib.all_experts,
                                 .scratch = std::filesystem::temp_directory_path(),
                                 .device = settings.device};
    NIBBLE_TRY(const Calibration seen,
               calibrate(*source, plan, options.calib.file, sequences, how, pool, hooks).as(ErrorKind::checkpoint));
    const ScaleTable table = scale_table(seen, plan, settings.arithmetic);
    if (!options.out.empty()) NIBBLE_CHECK(write_scales(options.out, table));
    CalibrationReport report{.origin = table.origin, .scales = table.values, .warnings = seen.warnings};
    for (const CalibrationGap& gap : seen.gaps) report.warnings.push_back(gap.text);
    for (const std::string& warning : report.warnings) hooks.emit_warning(warning);
    return report;
}

}  // namespace

Result<CalibrationReport> calibrate(const QuantizeOptions& options, const JobHooks& hooks) {
    return as_job([&] { return calibrate_job(options, hooks).as(ErrorKind::checkpoint); });
}

}  // namespace nibble
