// The result of an evaluation of one or more checkpoints, per task: as JSON, as a table for the terminal and as a page.
#pragma once

#include "eval/task.h"

#include <optional>
#include <string>
#include <vector>

namespace nibble {

struct SubjectResult {
    std::string name, path;
    int64_t stored_bytes = 0;        // total over all tensors
    double bits_per_element = 0;     // average over all tensors
    Json settings = Json::object();  // compute, KV format, whether activations are quantized
    std::vector<TaskResult> tasks;
    double seconds = 0;  // duration of this run; results from a journal count as 0
};

struct EvalReport {
    std::vector<SubjectResult> subjects;
    int reference = -1;  // index of the subject that others are compared with; -1: none
};

// Returns a metric divided by the reference's. Above 1 is better for a share and worse for a perplexity. Returns
// nothing for metrics that do not compare, for the reference itself, or if the reference scored 0. The error assumes
// independent scores; it is an upper bound, because both models answer the same items.
std::optional<Estimate> relative_score(const EvalReport& report, size_t subject, size_t task, size_t metric);

// Formats "12.34 ± 0.05"; shares as percent.
std::string metric_text(const Metric& metric);
// Formats a relative score: "99.1 % of the reference", for perplexities "1.0243 times the reference's".
std::string relative_text(const Metric& metric, const Estimate& relative);

// Omits the data of single items (samples).
Json to_json(const EvalReport& report);
// Returns text of up to 100 columns without colour that ends with a newline.
std::string report_text(const EvalReport& report);
// Returns one self-contained HTML page (page/html.h). The same report gives the same bytes.
std::string render_html(const EvalReport& report);

}  // namespace nibble
