#include "page/html.h"
#include "page/numbers.h"
#include "page/svg.h"
#include "run/charts.h"
#include "run/history.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

namespace nibble {
namespace {

using SamplesOf = std::function<std::vector<ChartSample>(const RunHistory&)>;

// Returns a section with one chart of all runs, or "" if no run has a value.
std::string chart_section(const std::vector<RunHistory>& runs, const std::string& title, const std::string& y_label,
                          const SamplesOf& samples) {
    std::vector<ChartCurve> curves;
    for (size_t r = 0; r < runs.size(); ++r) curves.push_back({runs[r].name, int(r), samples(runs[r])});
    const std::string chart = step_chart({.title = title, .y_label = y_label}, curves);
    return chart.empty() ? "" : fmt::format("<section><h2>{}</h2>\n{}</section>\n", escape_html(title), chart);
}

std::string page_legend(const std::vector<RunHistory>& runs) {
    std::string out = "<div class=\"legend\">";
    for (size_t r = 0; r < runs.size(); ++r)
        out += fmt::format("<span>{} {}</span>", marker_icon(int(r)), escape_html(runs[r].name));
    return out + "</div>\n";
}

constexpr size_t last_steps = 20;

std::string runs_table(const std::vector<RunHistory>& runs) {
    std::string rows;
    for (size_t r = 0; r < runs.size(); ++r) {
        const RunHistory& run = runs[r];
        double seconds = 0;
        int64_t tokens = 0, skipped = 0;
        for (const LoggedStep& s : run.steps) {
            seconds += s.seconds;
            tokens += s.tokens;
            skipped += s.skipped;
        }
        const double loss = mean_loss(run, last_steps), rate = seconds > 0 ? double(tokens) / seconds : 0;
        rows += fmt::format("<tr><td class=\"l\">{} {}</td>", marker_icon(int(r)), escape_html(run.name));
        rows += number_cell(human_count(run.steps.back().step + 1), double(run.steps.back().step));
        rows += number_cell(human_count(tokens), double(tokens));
        rows += number_cell(fmt::format("{:.4f}", loss), loss);
        const auto validation = run.last_validation();
        rows += validation ? number_cell(fmt::format("{:.4f}", *validation), *validation) : cell("–");
        rows += number_cell(human_count(std::llround(rate)), rate) + number_cell(human_seconds(seconds), seconds);
        rows += number_cell(human_count(skipped), double(skipped)) + "</tr>\n";
    }
    return fmt::format(
        "<section><h2>Runs</h2>\n<p class=\"note\">Loss: the mean of the last {} steps.</p>\n{}</section>\n",
        last_steps,
        table("sortable",
              {"<run", "steps", "tokens", "loss", "validation loss", "tokens/s", "time in steps", "skipped"}, rows));
}

struct GroupLoss {
    std::string name;
    std::vector<double> losses;  // of its runs

    double mean() const {
        double sum = 0;
        for (const double loss : losses) sum += loss;
        return sum / double(losses.size());
    }
    // Returns the standard deviation over seeds, or 0 for a single seed.
    double deviation() const {
        double sum = 0;
        for (const double loss : losses) sum += (loss - mean()) * (loss - mean());
        return losses.size() > 1 ? std::sqrt(sum / double(losses.size() - 1)) : 0;
    }
};

// Compares the final validation losses if all runs have one, else the means of the last training losses.
std::string gaps_section(const std::vector<RunHistory>& runs) {
    const bool validated = std::ranges::none_of(runs, [](const RunHistory& r) { return !r.last_validation(); });
    std::vector<GroupLoss> groups;
    for (const RunHistory& run : runs) {
        auto group = std::ranges::find(groups, run.group, &GroupLoss::name);
        if (group == groups.end()) group = groups.insert(groups.end(), {run.group, {}});
        group->losses.push_back(validated ? *run.last_validation() : mean_loss(run, last_steps));
    }
    if (groups.size() < 2) return {};
    std::string rows;
    for (const GroupLoss& g : groups) {
        const double gap = g.mean() - groups[0].mean();
        const auto spread = [&](double value) { return g.losses.size() > 1 ? fmt::format(" ± {:.4f}", value) : ""; };
        const double error = std::hypot(g.deviation(), groups[0].deviation());
        rows += fmt::format("<tr><td class=\"l\">{}</td>", escape_html(g.name));
        rows += number_cell(human_count(std::ssize(g.losses)), double(g.losses.size()));
        rows += number_cell(fmt::format("{:.4f}{}", g.mean(), spread(g.deviation())), g.mean());
        rows += &g == groups.data() ? cell("–") : number_cell(fmt::format("{:+.4f}{}", gap, spread(error)), gap);
        rows += "</tr>\n";
    }
    return fmt::format(
        "<section><h2>Loss gaps</h2>\n<p class=\"note\">{} in nats, against {}; ± the standard deviation of "
        "seeds.</p>\n"
        "{}</section>\n",
        validated ? "Validation loss" : "Loss of the last steps", escape_html(groups[0].name),
        table("sortable", {"<runs", "seeds", "loss", "gap"}, rows));
}

std::string warnings_of(const std::vector<RunHistory>& runs) {
    std::string items;
    for (const RunHistory& run : runs)
        for (const std::string& warning : run.warnings)
            items += fmt::format("<li>{}: {}</li>\n", escape_html(run.name), escape_html(warning));
    return items.empty() ? "" : fmt::format("<section><h2>Warnings</h2>\n<ul>{}</ul></section>\n", items);
}

}  // namespace

std::string run_page(const std::vector<RunHistory>& runs, int reload_seconds) {
    const auto of_steps = [](double (*value)(const LoggedStep&)) {
        return [value](const RunHistory& run) {
            std::vector<ChartSample> out;
            for (const LoggedStep& s : run.steps) out.push_back({double(s.step), value(s)});
            return out;
        };
    };
    const std::string title = runs.size() == 1 ? runs[0].name : fmt::format("{} runs", runs.size());
    std::string main = fmt::format("<header><div class=\"kicker\">nibble · training</div>\n<h1>{}</h1></header>\n{}",
                                   escape_html(title), page_legend(runs));
    main += runs_table(runs) + gaps_section(runs) + warnings_of(runs);
    main += chart_section(runs, "Loss", "nats per token", of_steps([](const LoggedStep& s) { return s.loss; }));
    main += chart_section(runs, "Validation loss", "nats per token", [](const RunHistory& run) {
        std::vector<ChartSample> out;
        for (const LoggedStep& s : run.steps)
            if (s.validation) out.push_back({double(s.step), *s.validation});
        return out;
    });
    main += chart_section(runs, "Gradient norm", "before clipping",
                          of_steps([](const LoggedStep& s) { return s.gradient_norm; }));
    main += chart_section(runs, "Learning rate", "", of_steps([](const LoggedStep& s) { return s.learning_rate; }));
    main += chart_section(runs, "Throughput", "tokens/s",
                          of_steps([](const LoggedStep& s) { return s.tokens_per_second(); }));
    if (runs.size() == 1) main += quality_section(runs[0].quality, runs[0].quality_step);
    return document("nibble · " + title, main, reload_seconds);
}

}  // namespace nibble
