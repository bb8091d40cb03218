// `nibble verify OUT [--against SRC]`: is a checkpoint complete and sound, and what did it lose?
#include "base/utf8.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "jobs/verify.h"
#include "quant/report_summary.h"

#include <fmt/format.h>

#include <cmath>

namespace nibble {
namespace {

struct VerifyConfig : VerifyCheckpointsOptions {
    bool json = false, quiet = false;
};

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
    Console console(config.quiet || config.json, config.quiet);
    NIBBLE_TRY(const std::vector<VerifyReport> reports, verify_checkpoints(config, console.hooks()));
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
