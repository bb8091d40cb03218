// `nibble verify OUT [--against SRC]`: is a checkpoint complete and sound, and what did it lose?
#include "base/utf8.h"
#include "cli/command.h"
#include "cli/open_checkpoint.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "quant/report_summary.h"
#include "quant/verify.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

namespace nibble {
namespace {

struct VerifyConfig {
    std::vector<std::string> paths;
    std::string against;
    int threads = 0;
    bool json = false, quiet = false;
};

// What the recipe wanted, from the nibble.json beside the weights; nothing for checkpoints that others made.
Result<std::optional<ExpectedFormats>> expected_of(const std::filesystem::path& checkpoint) {
    const auto manifest = checkpoint / "nibble.json";
    if (!std::filesystem::exists(manifest)) return std::optional<ExpectedFormats>{};
    NIBBLE_TRY(const auto json, read_json_file(manifest));
    if (!json.is_object() || !json.contains("tensors")) return std::optional<ExpectedFormats>{};
    NIBBLE_TRY(auto expected, expected_formats_from_json(json["tensors"]).within(manifest.string()));
    return std::optional<ExpectedFormats>(std::move(expected));
}

// An error is the checkpoint's own: others beside it still get their rows.
Result<VerifyReport> verify_opened(const std::string& path, bool quiet, const Checkpoint* source, ThreadPool& pool,
                                   const JobHooks& hooks) {
    NIBBLE_TRY(const auto expected, expected_of(path));
    NIBBLE_TRY(const auto checkpoint, open_checkpoint(path, quiet, ScaleReading::raw));
    return verify(*checkpoint, {.source = source, .expected = expected ? &*expected : nullptr}, pool, hooks);
}

VerifyReport verify_one(const std::string& path, bool quiet, const Checkpoint* source, ThreadPool& pool,
                        const JobHooks& hooks) {
    auto report = verify_opened(path, quiet, source, pool, hooks);
    if (report.ok()) return *std::move(report);
    return VerifyReport{.path = path, .error = report.error().message()};
}

// A scale that is not finite makes the error NaN.
std::string sqnr_text(const ReportTotals& totals) {
    if (!std::isfinite(totals.squared_error)) return "-";
    return totals.squared_error > 0 ? fmt::format("{:.2f}", totals.sqnr_db) : "exact";
}

// Several checkpoints side by side: one line each.
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
        QuantReport sums;
        sums.tensors = r.tensors;
        const ReportTotals totals = sums.totals();
        text += fmt::format("{:<{}}  {:<18} {:>9} {:>12.3f} {:>9}  {}\n", r.path, widest, dialect_name(r.dialect),
                            human_bytes(totals.stored_bytes), totals.bits_per_element, sqnr_text(totals),
                            r.findings.size());
    }
    return text;
}

Result<Outcome> run_verify(const VerifyConfig& config) {
    Console console(config.quiet || config.json);
    const JobHooks hooks = console.hooks();
    ThreadPool pool(config.threads);
    std::unique_ptr<Checkpoint> source;
    if (!config.against.empty()) {
        NIBBLE_TRY(source, Checkpoint::open(config.against));
    }
    std::vector<VerifyReport> reports;
    for (const std::string& path : config.paths) {
        reports.push_back(verify_one(path, config.quiet, source.get(), pool, hooks));
        if (hooks.should_stop()) return fail("stopped on request; nothing was changed");
    }
    console.end_line();
    bool passed = true;
    Json json = Json::array();
    for (const VerifyReport& report : reports) {
        passed = passed && report.passed();
        if (config.json)
            json.push_back(to_json(report));
        else if (!report.error.empty())
            say("nibble: " + printable(report.error));
        else if (reports.size() == 1)
            fmt::print("{}", to_text(report));
        else
            for (const Finding& finding : report.findings)
                fmt::print("{}\n", printable(fmt::format("{}: {}: {}", report.path, finding.tensor, finding.text)));
    }
    if (config.json)
        fmt::print("{}\n", json.dump(1, ' ', false, Json::error_handler_t::replace));
    else if (reports.size() > 1)
        fmt::print("{}", comparison(reports));
    return Outcome{.findings = !passed};
}

}  // namespace

void add_verify(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<VerifyConfig>();
    CLI::App* command =
        app.add_subcommand("verify", "is a checkpoint complete and sound; with --against, what did every tensor lose");
    command->add_option("path", config->paths, "one checkpoint, or several to compare")->required();
    command->add_option("--against", config->against, "the checkpoint it was made from");
    add_threads_flag(*command, config->threads);
    add_json_flag(*command, config->json);
    add_quiet_flag(*command, config->quiet);
    command->footer(
        "Exit status 1 when something is found.\nExample:\n  nibble verify SmolLM2-NVFP4 --against SmolLM2-BF16");
    command->callback([config, &run] { run = [config] { return run_verify(*config); }; });
}

}  // namespace nibble
