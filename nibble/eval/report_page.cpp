#include "eval/report.h"

#include "page/html.h"
#include "page/numbers.h"
#include "page/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

// Tasks of the first subject; all subjects ran the same tasks.
const std::vector<TaskResult>& tasks_of(const EvalReport& r) { return r.subjects.front().tasks; }

std::string legend(const EvalReport& r, bool with_reference = true) {
    std::string out = "<div class=\"legend\">";
    for (size_t s = 0; s < r.subjects.size(); ++s)
        if (with_reference || int(s) != r.reference)
            out += fmt::format("<span>{}{} {}</span>", marker_icon(int(s)), s + 1, escape_html(r.subjects[s].name));
    return out + "</div>\n";
}

std::string header(const EvalReport& r) {
    std::string meta;
    for (const TaskResult& t : tasks_of(r)) meta += fmt::format("<span>{}</span>", escape_html(t.task));
    if (r.reference >= 0)
        meta += fmt::format("<span class=\"badge good\">reference {}</span>",
                            escape_html(r.subjects[size_t(r.reference)].name));
    return fmt::format(
        "<header><div class=\"kicker\">nibble · evaluation</div>\n<h1>{} checkpoint{}</h1>\n"
        "<div class=\"meta\">{}</div></header>\n",
        r.subjects.size(), r.subjects.size() == 1 ? "" : "s", meta);
}

std::string checkpoints(const EvalReport& r) {
    std::string rows;
    for (size_t s = 0; s < r.subjects.size(); ++s) {
        const SubjectResult& x = r.subjects[s];
        std::string settings;
        for (const auto& [name, value] : x.settings.items())
            settings += fmt::format("{}{} {}", settings.empty() ? "" : ", ", name,
                                    value.is_string() ? value.get<std::string>() : value.dump());
        rows += fmt::format("<tr><td class=\"l\">{}{} {}</td>", marker_icon(int(s)), s + 1, escape_html(x.name));
        rows += number_cell(human_bytes(x.stored_bytes), double(x.stored_bytes));
        rows += number_cell(fmt::format("{:.2f}", x.bits_per_element), x.bits_per_element);
        rows += cell(settings, "wrap") + cell(human_seconds(x.seconds)) + name_cell(x.path) + "</tr>\n";
    }
    return fmt::format("<section><h2>Checkpoints</h2>\n{}</section>\n",
                       table("sortable", {"<name", "size", "bits per weight", "<settings", "time", "<path"}, rows));
}

// A table with a row per metric and a column per checkpoint; the relative score is below each number.
std::string scores(const EvalReport& r) {
    std::vector<std::string> heads{"<task", "<metric"};
    for (const SubjectResult& s : r.subjects) heads.push_back(s.name);
    std::string rows;
    for (size_t t = 0; t < tasks_of(r).size(); ++t)
        for (size_t m = 0; m < tasks_of(r)[t].metrics.size(); ++m) {
            rows += "<tr>" + cell(m == 0 ? tasks_of(r)[t].task : "", "l") + cell(tasks_of(r)[t].metrics[m].name, "l");
            for (size_t s = 0; s < r.subjects.size(); ++s) {
                const auto& metrics = r.subjects[s].tasks[t].metrics;
                if (m >= metrics.size()) {  // the reference is not compared with itself
                    rows += cell("");
                    continue;
                }
                const auto relative = relative_score(r, s, t, m);
                rows += fmt::format("<td data-v=\"{:.9g}\">{}{}</td>", metrics[m].estimate.value,
                                    escape_html(metric_text(metrics[m])),
                                    relative ? fmt::format("<br><span class=\"soft\">{}</span>",
                                                           escape_html(relative_text(metrics[m], *relative)))
                                             : "");
            }
            rows += "</tr>\n";
        }
    return fmt::format("<section><h2>Scores</h2>\n<p class=\"note\">± one standard error. {}</p>\n{}</section>\n",
                       r.reference >= 0 ? "Below a score: the score divided by the reference's. A perplexity is worse "
                                          "above 1, another score is worse below 100 %."
                                        : "",
                       table({}, heads, rows));
}

std::string relative_scores(const EvalReport& r) {
    if (r.reference < 0) return {};
    std::string figures;
    for (size_t t = 0; t < tasks_of(r).size(); ++t)
        for (size_t m = 0; m < tasks_of(r)[t].metrics.size(); ++m) {
            BarChart chart{.x_high = double(r.subjects.size()), .width = 400, .height = 200};
            double high = 1;
            for (size_t s = 0; s < r.subjects.size(); ++s) {
                const bool itself = int(s) == r.reference;
                const auto relative = itself ? std::optional<Estimate>({1, 0}) : relative_score(r, s, t, m);
                if (!relative) continue;
                high = std::max(high, relative->value);
                chart.bars.push_back(
                    {double(s) + 0.15, double(s) + 0.85, relative->value,
                     fmt::format("{}: {}", r.subjects[s].name, relative_text(tasks_of(r)[t].metrics[m], *relative)),
                     int(s)});
                chart.x_ticks.push_back(
                    {double(s) + 0.5, fmt::format("{}", s + 1)});  // the names are too long for ticks
            }
            if (chart.bars.size() < 2) continue;
            const std::string &task = tasks_of(r)[t].task, &metric = tasks_of(r)[t].metrics[m].name;
            const std::string name = task == metric ? task : fmt::format("{}, {}", task, metric);
            chart.title = "Score divided by the reference's: " + name;
            chart.y_high = high * 1.06;
            figures += fmt::format("<figure><figcaption>{}</figcaption>{}</figure>\n", escape_html(name), draw(chart));
        }
    if (figures.empty()) return {};
    return fmt::format(
        "<section><h2>Scores divided by the reference's</h2>\n{}<div class=\"panels "
        "large\">{}</div></section>\n",
        legend(r), figures);
}

// KL divergence by share of tokens; shows the median and the tail.
std::string divergences(const EvalReport& r) {
    LineChart chart{.title = "Kullback-Leibler divergence from the reference, by share of tokens",
                    .x_label = "per cent of tokens below",
                    .y_label = "log10 of KL, nats",
                    .x_low = 0,
                    .x_high = 100,
                    .y_low = INFINITY,
                    .y_high = -INFINITY};
    for (size_t s = 0; s < r.subjects.size(); ++s)
        for (const TaskResult& task : r.subjects[s].tasks) {
            const auto quantiles = task.details.find("kl_quantiles");
            if (quantiles == task.details.end()) continue;
            Series series{.name = r.subjects[s].name, .style = int(s), .points = {}};
            for (const Json& q : *quantiles) {
                const double at = 100 * q[0].get<double>(), kl = q[1].get<double>();
                const double y = kl > 0 ? std::log10(kl) : NAN;
                series.points.push_back(
                    {at, y, y, y, fmt::format("{}\n{} % of tokens below {:.3g} nats", series.name, at, kl)});
                if (!std::isfinite(y)) continue;
                chart.y_low = std::min(chart.y_low, std::floor(y));
                chart.y_high = std::max(chart.y_high, std::ceil(y));
            }
            chart.series.push_back(std::move(series));
        }
    if (chart.series.empty() || !std::isfinite(chart.y_low)) return {};
    return fmt::format("<section><h2>Divergence from the reference</h2>\n{}<div class=\"chart\">{}</div></section>\n",
                       legend(r, false), draw(chart));
}

std::string settings(const EvalReport& r) {
    std::string items;
    for (const TaskResult& t : tasks_of(r)) {
        std::string text = fmt::format("{} items", t.items);
        for (const auto& [name, value] : t.details.items())
            if (!value.is_structured())
                text += fmt::format(", {} {}", name, value.is_string() ? value.get<std::string>() : value.dump());
        items += fmt::format("<dt>{}</dt><dd>{}</dd>\n", escape_html(t.task), escape_html(text));
    }
    return fmt::format("<section><h2>How it was measured</h2>\n<dl>{}</dl></section>\n", items);
}

}  // namespace

std::string render_html(const EvalReport& r) {
    if (r.subjects.empty()) return document("nibble evaluation", "<p>No checkpoints.</p>");
    return document("nibble evaluation",
                    header(r) + checkpoints(r) + scores(r) + relative_scores(r) + divergences(r) + settings(r));
}

}  // namespace nibble
