#include "nibble/verify.h"

#include "base/json.h"
#include "base/utf8.h"
#include "checkpoint/work_folder.h"
#include "jobs/job.h"
#include "jobs/open_checkpoint.h"
#include "quant/report_summary.h"
#include "quant/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace nibble {
namespace {

// Returns the formats that the recipe required, from the nibble.json next to the weights; no value: another program
// wrote the checkpoint.
Result<std::optional<ExpectedFormats>> expected_of(const std::filesystem::path& checkpoint) {
    const auto manifest = checkpoint / manifest_name;
    if (!std::filesystem::exists(manifest)) return std::optional<ExpectedFormats>{};
    NIBBLE_TRY(const auto json, read_json_file(manifest));
    if (!json.is_object() || !json.contains("tensors")) return std::optional<ExpectedFormats>{};
    NIBBLE_TRY(auto expected, expected_formats_from_json(json["tensors"]).within(manifest.string()));
    return std::optional<ExpectedFormats>(std::move(expected));
}

// Returns true if the job multiplied scales of inputs into norms and weights (awq_lite), according to its report. The
// model then computes the same function, but most tensors differ from the source's.
bool folds_scales(const std::filesystem::path& checkpoint) {
    const auto path = checkpoint / "nibble-report.json";
    std::error_code none;
    if (!std::filesystem::is_regular_file(path, none)) return false;
    const auto report = read_json_file(path);
    if (!report.ok() || !report->is_object()) return false;
    const auto settings = report->find("settings");
    return settings != report->end() && settings->is_object() && settings->contains("awq_lite");
}

Result<VerifyReport> verify_one(const std::string& path, const Checkpoint* source, bool complete, ThreadPool& pool,
                                const JobHooks& hooks) {
    NIBBLE_TRY(const auto expected, expected_of(path));
    NIBBLE_TRY(const auto checkpoint, open_checkpoint(path, hooks, ScaleReading::raw));
    if (source && quantized_text(*checkpoint).empty() && !quantized_text(*source).empty() &&
        !std::filesystem::exists(std::filesystem::path(path) / manifest_name))
        return fail(ErrorKind::usage,
                    "{}: is not quantized, but {} is; --against names the source: nibble verify {} --against {}", path,
                    source->path().string(), source->path().string(), path);
    std::unique_ptr<Checkpoint> whole;  // the source, with its stacks of experts as in the checkpoint
    if (source && std::ranges::any_of(checkpoint->tensors(), [](const CheckpointTensor& t) { return t.experts > 0; })) {
        NIBBLE_TRY(whole, Checkpoint::open(source->path(), ScaleReading::checked, StackReading::whole));
        source = whole.get();
    }
    if (source && folds_scales(path)) {
        hooks.emit_warning(
            fmt::format("{}: awq_lite moved scales of inputs into norms and weights, so tensors cannot be compared "
                        "with the source; compare the models with `nibble eval --against`",
                        path));
        source = nullptr;
    }
    return verify(*checkpoint, {.source = source, .expected = expected ? &*expected : nullptr, .complete = complete},
                  pool, hooks);
}

// A scale that is not finite makes the error NaN.
std::string sqnr_text(const ReportTotals& totals) {
    if (!std::isfinite(totals.squared_error)) return "-";
    return totals.squared_error > 0 ? fmt::format("{:.2f}", totals.sqnr_db) : "exact";
}

ReportTotals totals_of(const VerifyReport& report) {
    QuantReport sums;
    sums.tensors = report.tensors;
    return sums.totals();
}

// Compares several checkpoints, one line each.
std::string comparison(std::span<const VerifyReport> reports) {
    size_t widest = 10;
    for (const VerifyReport& r : reports) widest = std::max(widest, r.path.size());
    std::string text = fmt::format("{:<{}}  {:<18} {:>9} {:>12} {:>9}  {}\n", "checkpoint", widest, "dialect", "size",
                                   "bits/weight", "SQNR dB", "findings");
    for (const VerifyReport& r : reports) {
        if (!r.error.empty()) {
            text += fmt::format("{:<{}}  cannot be read\n", r.path, widest);
            continue;
        }
        const ReportTotals totals = totals_of(r);
        text += fmt::format("{:<{}}  {:<18} {:>9} {:>12.3f} {:>9}  {}\n", r.path, widest, dialect_name(r.dialect),
                            human_bytes(totals.stored_bytes), totals.bits_per_element, sqnr_text(totals),
                            r.findings.size());
    }
    return text;
}

std::string reports_text(std::span<const VerifyReport> reports) {
    if (reports.size() == 1) return reports[0].error.empty() ? to_text(reports[0]) : std::string();
    std::string text;
    for (const VerifyReport& report : reports)
        for (const Finding& finding : report.findings)
            text += printable(fmt::format("{}: {}: {}", report.path, finding.tensor, finding.text)) + "\n";
    return text + comparison(reports);
}

std::string reports_json(std::span<const VerifyReport> reports) {
    Json json = Json::array();
    for (const VerifyReport& report : reports) json.push_back(to_json(report));
    return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

VerifiedCheckpoint summary_of(const VerifyReport& report) {
    VerifiedCheckpoint out{.path = report.path, .error = report.error};
    for (const Finding& f : report.findings)
        out.findings.push_back(f.tensor.empty() ? f.text : fmt::format("{}: {}", f.tensor, f.text));
    const ReportTotals totals = totals_of(report);
    out.stored_bytes = totals.stored_bytes;
    out.bits_per_weight = totals.bits_per_element;
    out.sqnr_db = totals.sqnr_db;
    return out;
}

VerificationReport verification_report(std::vector<VerifyReport> all) {
    VerificationReport out;
    for (const VerifyReport& report : all) out.checkpoints.push_back(summary_of(report));
    const auto reports = std::make_shared<const std::vector<VerifyReport>>(std::move(all));
    out.text = [reports] { return reports_text(*reports); };
    out.json = [reports] { return reports_json(*reports); };
    return out;
}

}  // namespace

Result<VerificationReport> verify_checkpoints(const VerifyCheckpointsOptions& options, const JobHooks& hooks) {
    return as_job([&]() -> Result<VerificationReport> {
        ThreadPool pool(options.threads);
        std::unique_ptr<Checkpoint> source;
        if (!options.against.empty()) {
            NIBBLE_TRY(source, Checkpoint::open(options.against));
        }
        std::vector<VerifyReport> reports;
        for (const std::string& path : options.paths) {
            auto report = verify_one(path, source.get(), !options.partial, pool, hooks);
            if (hooks.should_stop()) return fail(ErrorKind::cancelled, "stopped on request; nothing was changed");
            reports.push_back(report.ok() ? *std::move(report)
                                          : VerifyReport{.path = path, .error = report.error().message()});
        }
        return verification_report(std::move(reports));
    });
}

}  // namespace nibble
