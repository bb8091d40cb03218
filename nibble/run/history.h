// The content of a run's log (run/log.h), for pages and comparisons.
//
// The first line is {"run": {...}}; its "name" and "group" (what is equal in runs that differ by seed alone) are read
// here. A step is {"step", "loss", "gradient_norm", "learning_rate", "seconds", "tokens"}, with "validation" behind
// some, "quality" (a list of UnitQuality) and "skipped" where nothing was changed; {"warning"} is shown; other lines
// and fields are for readers of the file.
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
    double seconds = 0;  // of this step
    int64_t tokens = 0;  // of this step
    bool skipped = false;
    std::optional<double> validation;  // the loss on held-out rows after this step

    double tokens_per_second() const { return seconds > 0 ? double(tokens) / seconds : 0; }
};

struct RunHistory {
    std::string name;   // of the run; the folder's, where the log has none
    std::string group;  // runs of one group differ by their seed
    Json about = Json::object();
    std::vector<LoggedStep> steps;
    std::vector<std::string> warnings;
    std::vector<UnitQuality> quality;  // the newest look at what rounding does
    int64_t quality_step = -1;

    std::optional<double> last_validation() const;
};

Json to_json(const LoggedStep& step);

// `run`: a run's folder or its log. Errors: no log there, a line without its fields (names the line), no steps.
Result<RunHistory> read_run_history(const std::filesystem::path& run);

// Means over the last `count` steps, for the noise of single batches.
double mean_loss(const RunHistory& run, size_t count);

// One self-contained page: loss, validation loss, gradient norm, learning rate and throughput of all runs, a chart
// each; of several groups a table of their gaps to the first one, with the spread of their seeds. `reload_seconds`:
// document()'s (page/html.h).
std::string run_page(const std::vector<RunHistory>& runs, int reload_seconds = 0);

}  // namespace nibble
