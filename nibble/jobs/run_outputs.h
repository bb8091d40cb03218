// Outputs of a run: what the jobs of training and of reinforcement learning share when they export a model.
#pragma once

#include "jobs/manifest.h"
#include "run/export.h"
#include "train/train_precision.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace nibble {

// Returns the description of the exports of a job. `base`: the checkpoint that the run started from; `how`: words for
// the model card; `identity`: the settings that decide the bits of the run.
template <class Job>
RunExport run_export_of(const Job& job, std::filesystem::path base, std::string how, Json identity) {
    const auto& c = job.config;
    return {.output = c.output,
            .base = std::move(base),
            .how = std::move(how),
            .precision = std::string(train_precision_name(c.precision)),
            .steps = c.steps,
            .command = job.command.card,
            .manifest = to_text(Manifest{.command_line = job.command.whole, .settings = std::move(identity)}),
            .resumed = c.resume};
}

// Adds a written file or folder, and the line about it, to a job's report.
template <class Report>
void add_output(Report& report, const std::filesystem::path& what, std::string_view meaning) {
    report.outputs.push_back(what.string());
    report.lines.push_back(fmt::format("{}: {}", what.string(), meaning));
}

}  // namespace nibble
