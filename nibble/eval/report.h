// What an evaluation found: several checkpoints, task by task; as JSON, as a table for the terminal and as a page.
#pragma once

#include "eval/task.h"

#include <optional>
#include <string>
#include <vector>

namespace nibble {

struct SubjectResult {
    std::string name, path;
    int64_t stored_bytes = 0;        // of all tensors
    double bits_per_element = 0;     // of all tensors
    Json settings = Json::object();  // compute, KV format, whether activations are quantized
    std::vector<TaskResult> tasks;
    double seconds = 0;  // of this run; what a journal held took no time
};

struct EvalReport {
    std::vector<SubjectResult> subjects;
    int reference = -1;  // index of the subject others are measured against; -1: none
};

// Score of a metric divided by the reference's: 1 is as good. A share is better above 1, a perplexity is worse above 1.
// Nothing for metrics that do not compare, the reference itself, or a reference that scored 0. The error assumes
// independent scores: it is an upper bound, as both models answer the same items.
std::optional<Estimate> relative_score(const EvalReport& report, size_t subject, size_t task, size_t metric);

// "12.34 ± 0.05", shares as percent.
std::string metric_text(const Metric& metric);
// Of a relative score: "99.1 % of the reference", and of perplexities "1.0243 times the reference's".
std::string relative_text(const Metric& metric, const Estimate& relative);

// Without the items' own data (samples).
Json to_json(const EvalReport& report);
// Up to 100 columns, no colour, ends with a newline.
std::string report_text(const EvalReport& report);
// One HTML page that stands alone (page/html.h). The same report gives the same bytes.
std::string render_html(const EvalReport& report);

}  // namespace nibble
