// Reads a run's log (run/log.h) for pages and comparisons.
//
// The first line is {"run": {...}}, of which "name" and "group" (equal for runs that differ only in their seed) are
// read. A step is {"step", "loss", "gradient_norm", "learning_rate", "seconds", "tokens"}. Some steps also have
// "validation", "quality" (a list of UnitQuality), and "skipped" if nothing was changed. {"warning"} is displayed.
// Other lines and fields are ignored.
#pragma once

#include "base/json.h"
#include "train/cast_quality.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

struct LoggedStep {
    int64_t step = 0;  // from 0
    double loss = 0, gradient_norm = 0, learning_rate = 0;
    double seconds = 0;  // duration of this step
    int64_t tokens = 0;  // tokens of this step
    bool skipped = false;
    std::optional<double> validation;  // the loss on held-out rows after this step

    double tokens_per_second() const { return seconds > 0 ? double(tokens) / seconds : 0; }
};

struct RunHistory {
    std::string name;   // name of the run; the folder's if the log has none
    std::string group;  // runs of one group differ only in their seed
    Json about = Json::object();
    std::vector<LoggedStep> steps;
    std::vector<std::string> warnings;
    std::vector<UnitQuality> quality;  // the newest measurement of rounding errors
    int64_t quality_step = -1;

    std::optional<double> last_validation() const;
};

Json to_json(const LoggedStep& step);

// `run`: a run's folder or its log. Errors: no log; a line without required fields (names the line); no steps.
Result<RunHistory> read_run_history(const std::filesystem::path& run);

// Returns the mean over the last `count` steps, which reduces the noise of single batches.
double mean_loss(const RunHistory& run, size_t count);

// Returns a self-contained page with charts of loss, validation loss, gradient norm, learning rate and throughput of
// all runs. If there are several groups, a table shows their differences from the first one and the spread over seeds.
// `reload_seconds`: argument of document() (page/html.h).
std::string run_page(const std::vector<RunHistory>& runs, int reload_seconds = 0);

}  // namespace nibble
