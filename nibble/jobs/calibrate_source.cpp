#include "jobs/calibrate_source.h"

#include "io/journal.h"
#include "jobs/calibration_text.h"
#include "quant/awq_search.h"
#include "quant/job.h"
#include "quant/plan_json.h"

#include <algorithm>

namespace nibble {
namespace {

namespace fs = std::filesystem;

class SourceCalibration {
public:
    SourceCalibration(const QuantizeOptions& options, const QuantizeSettings& settings, const Checkpoint& source,
                      const std::optional<StageChainOptions>& ranks, const JobHooks& hooks)
        : options_(options),
          settings_(settings),
          source_(source),
          ranks_(ranks),
          hooks_(hooks),
          pool_(options.threads) {}

    Result<Calibrated> run(Plan plan, std::optional<ScaleTable> given) {
        out_.plan = std::move(plan);
        out_.scales = std::move(given);
        out_.settings = settings_json(options_, settings_);
        if (!out_.plan.awq && !needs_calibration(out_.plan))
            return fail(ErrorKind::recipe, "--calib: this recipe stores nothing that depends on activations");
        NIBBLE_CHECK(check_output());
        if (!ranks_) {
            NIBBLE_TRY(out_.folder, CalibrationFolder::hold(calibration_folder(options_), options_.resume));
        }
        if (out_.plan.awq) NIBBLE_CHECK(fold_scales());
        if (needs_calibration(out_.plan)) NIBBLE_CHECK(find_ranges());
        return std::move(out_);
    }

private:
    // Checks, before the work, everything that would otherwise fail at its end.
    Status check_output() {
        const ExportMode mode = resumes_export(options_) ? ExportMode::resume : ExportMode::create;
        const Status possible =
            WorkFolder::check(options_.out, mode, planned_bytes(out_.plan) + report_bytes(out_.plan))
                .as(ErrorKind::file);
        if (std::error_code none; !possible.ok() && fs::exists(options_.out, none))
            CalibrationFolder::tidy(calibration_folder(options_));
        return possible;
    }

    const Checkpoint& model() const { return out_.folded ? *out_.folded : source_; }

    Status resolve() {
        NIBBLE_TRY(out_.plan, make_plan(options_, settings_, model(),
                                        {.scales = out_.scales ? &*out_.scales : nullptr,
                                         .statistics = out_.statistics != nullptr,
                                         .folded = out_.folded != nullptr}));
        return Ok{};
    }

    CalibrationOptions calibration_options() const {
        return {.range = settings_.range,
                .all_experts = options_.calib.all_experts,
                .gradient_tokens = options_.calib.gradients,
                .scratch = fs::absolute(options_.out).parent_path(),
                .ranks = ranks_};
    }

    void report_gaps(std::vector<CalibrationGap>& gaps) {
        for (CalibrationGap& gap : gaps) {
            hooks_.emit_warning(gap.text);
            out_.gaps.push_back(std::move(gap));
        }
    }

    // awq_lite: searches scales and multiplies them into the weights.
    Status fold_scales() {
        NIBBLE_TRY(const auto sequences, calibration_sequences(options_.calib, source_, hooks_));
        CalibrationOptions how = calibration_options();
        NIBBLE_CHECK(identify(how, source_));
        auto searched = awq_search(source_, out_.plan, sequences, how, pool_, hooks_);
        if (!searched.ok()) return with_next_step(std::move(searched).error(), false);
        AwqResult found = *std::move(searched);
        for (const std::string& warning : found.warnings) hooks_.emit_warning(warning);
        report_gaps(found.gaps);
        out_.settings["awq_lite"] = found.summary();
        NIBBLE_TRY(out_.folded, fold_checkpoint(source_, std::move(found.folds)));
        NIBBLE_CHECK(resolve());
        std::ranges::move(found.warnings, std::back_inserter(out_.plan.warnings));
        return Ok{};
    }

    // Collects ranges of inputs, keys and values, and statistics for solvers.
    Status find_ranges() {
        // Sums have another order on a GPU.
        if (settings_.device.cuda && calibrates_on_device(out_.plan)) out_.settings["calibration_device"] = "cuda";
        NIBBLE_TRY(auto seen, run_text());
        ScaleTable found = scale_table(seen, out_.plan, settings_.arithmetic);
        if (out_.scales) {
            out_.scales->values.merge(found.values);
            out_.scales->origin += " and " + found.origin;
        } else {
            out_.scales = std::move(found);
        }
        for (const std::string& warning : seen.warnings) hooks_.emit_warning(warning);
        report_gaps(seen.gaps);
        out_.statistics = std::move(seen.statistics);
        out_.output_errors = std::move(seen.output_errors);
        std::vector<std::string> warnings = std::move(out_.plan.warnings);
        NIBBLE_CHECK(resolve());
        out_.plan.warnings = std::move(warnings);
        return Ok{};
    }

    Status identify(CalibrationOptions& how, const Checkpoint& model) const {
        NIBBLE_TRY(how.job, source_identity(model));
        how.job.emplace_back("version of nibble", NIBBLE_VERSION);
        for (const auto& [name, value] : out_.settings.items()) how.job.emplace_back("setting " + name, value.dump());
        return Ok{};
    }

    Result<Calibration> run_text() {
        NIBBLE_TRY(const auto sequences, calibration_sequences(options_.calib, model(), hooks_));
        CalibrationOptions how = calibration_options();
        how.device = settings_.device;
        how.keep = calibration_folder(options_);
        NIBBLE_CHECK(identify(how, model()));
        auto found = calibrate(model(), out_.plan, options_.calib.file, sequences, how, pool_, hooks_);
        if (found.ok()) return found;
        if (ranks_) return found;
        const bool kept = Journal::holds_units(how.keep / Journal::file_name);
        std::error_code none;
        for (const auto& entry : fs::directory_iterator(how.keep, none))  // nothing to continue from
            if (!kept && entry.path().filename() != ".nibble-lock") fs::remove(entry.path(), none);
        return with_next_step(std::move(found).error(), kept);
    }

    // After a stop: what --resume continues with.
    Error with_next_step(Error error, bool kept) const {
        if (error.kind() != ErrorKind::cancelled || ranks_) return error;
        return fail(ErrorKind::cancelled, "{}; {}", error.message(),
                    kept ? fmt::format("{} keeps what it found, and --resume continues there",
                                       calibration_folder(options_).string())
                         : "it had found nothing to keep, and --resume starts it from the beginning");
    }

    const QuantizeOptions& options_;
    const QuantizeSettings& settings_;
    const Checkpoint& source_;
    const std::optional<StageChainOptions>& ranks_;
    const JobHooks& hooks_;
    ThreadPool pool_;
    Calibrated out_;
};

}  // namespace

Result<Calibrated> calibrate_source(const QuantizeOptions& options, const QuantizeSettings& settings,
                                    const Checkpoint& source, Plan plan, std::optional<ScaleTable> given,
                                    const std::optional<StageChainOptions>& ranks, const JobHooks& hooks) {
    return SourceCalibration(options, settings, source, ranks, hooks)
        .run(std::move(plan), std::move(given))
        .as(ErrorKind::checkpoint);
}

}  // namespace nibble
