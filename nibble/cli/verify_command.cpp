// `nibble verify OUT [--against SRC]`: checks that a checkpoint is complete and valid, and measures its errors.
#include "base/utf8.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "nibble/verify.h"

#include <fmt/format.h>

namespace nibble {
namespace {

struct VerifyConfig : VerifyCheckpointsOptions {
    bool json = false, quiet = false;
};

Result<Outcome> run_verify(const VerifyConfig& config) {
    Console console(config.quiet || config.json, config.quiet);
    NIBBLE_TRY(const VerificationReport report, verify_checkpoints(config, console.hooks()));
    console.end_line();
    if (!config.json)
        for (const VerifiedCheckpoint& one : report.checkpoints)
            if (!one.error.empty()) say("nibble: " + printable(one.error));
    fmt::print("{}", config.json ? report.json() : report.text());
    return Outcome{.findings = !report.passed()};
}

}  // namespace

void add_verify(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<VerifyConfig>();
    CLI::App* command = app.add_subcommand(
        "verify", "check that a checkpoint is complete and valid; with --against, measure the error of every tensor");
    command->add_option("path", config->paths, "one checkpoint, or several to compare")->required();
    command->add_option("--against", config->against, "the checkpoint it was made from");
    add_partial_flag(*command, config->partial);
    add_threads_flag(*command, config->threads);
    add_json_flag(*command, config->json);
    add_quiet_flag(*command, config->quiet);
    command->footer(
        "Exit status 1 if something is wrong.\nExample:\n  nibble verify SmolLM2-NVFP4 --against SmolLM2-BF16");
    command->callback([config, &run] { run = [config] { return run_verify(*config); }; });
}

}  // namespace nibble
