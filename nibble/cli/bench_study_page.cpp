#include "cli/bench_study.h"

#include "cli/engine.h"
#include "page/html.h"
#include "page/numbers.h"
#include "page/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

std::string text_of(const Json& json, const char* name) { return json[name].get<std::string>(); }
double number_of(const Json& json, const char* name) { return json[name].get<double>(); }

struct StudyColumn {
    std::string head;
    std::vector<std::string> cells;  // a row a checkpoint; empty: not measured
};

// Of a text perplexity and what KL divergence says in two figures, of other tasks all; empty: left to study.json and to
// the folder of `nibble eval`.
std::string column_head(const std::string& task, const std::string& metric) {
    if (task != "perplexity") return task + " " + metric;
    return metric == "perplexity" || metric == "KL mean" || metric == "same likeliest token" ? metric : std::string();
}

// What is one figure a checkpoint.
std::vector<StudyColumn> columns_of(const Json& study) {
    std::vector<StudyColumn> columns{{"weights", {}}, {"memory", {}}, {"load s", {}}};
    const Json& all = study["checkpoints"];
    for (size_t row = 0; row < all.size(); ++row) {
        const Json& one = all[row];
        columns[0].cells.push_back(human_bytes(one["weight_bytes"].get<int64_t>()));
        columns[1].cells.push_back(human_bytes(one["memory_bytes"].get<int64_t>()));
        columns[2].cells.push_back(fmt::format("{:.2f}", number_of(one, "load_seconds")));
        for (const Json& task : one["tasks"])
            for (const auto& [metric, value] : task["metrics"].items()) {
                const std::string head = column_head(text_of(task, "task"), metric);
                if (head.empty()) continue;
                auto column = std::ranges::find(columns, head, &StudyColumn::head);
                if (column == columns.end()) column = columns.insert(columns.end(), {head, {}});
                column->cells.resize(row);
                column->cells.push_back(human_value(number_of(value, "value")));
            }
    }
    for (StudyColumn& column : columns) column.cells.resize(all.size());
    return columns;
}

// `first`: the load of as many clients at the first checkpoint, the one that the others come from.
std::string load_cells(const Json& load, const Json& first) {
    const auto trio = [&](const char* name) {
        const Json& q = load[name];
        return cell(
            fmt::format("{:.1f} / {:.1f} / {:.1f}", number_of(q, "p50"), number_of(q, "p90"), number_of(q, "p99")));
    };
    const double rate = number_of(load, "output_tokens_per_second");
    const auto clients = load["concurrency"].get<int64_t>();
    const double itl = number_of(load["tpot_ms"], "p50");
    const double of_first = rate / number_of(first, "output_tokens_per_second");
    return number_cell(std::to_string(clients), double(clients)) + number_cell(fmt::format("{:.1f}", rate), rate) +
           number_cell(fmt::format("{:.2f}", of_first), of_first) +
           cell(itl > 0 ? fmt::format("{:.1f}", 1e3 / itl) : "") + trio("ttft_ms") + trio("tpot_ms");
}

// A curve a checkpoint, points by rising numbers of clients: x(load), and y(load, "p50") with a band to y(load, "p99").
template <class X, class Y>
std::string curves(const Json& study, LineChart chart, const X& x, const Y& y) {
    chart.x_high = chart.y_high = 0;
    int style = 0;
    for (const Json& one : study["checkpoints"]) {
        Series series{.name = text_of(one, "name"), .style = style++};
        std::vector<Json> loads(one["loads"].begin(), one["loads"].end());
        std::ranges::sort(loads, {}, [](const Json& load) { return load["concurrency"].get<int64_t>(); });
        for (const Json& load : loads) {
            const double at = x(load), mid = y(load, "p50"), high = y(load, "p99");
            series.points.push_back(
                {at, mid, mid, high,
                 fmt::format("{}, {} clients: {:.1f} tokens/s, {:.2f} ms", series.name,
                             load["concurrency"].get<int64_t>(), number_of(load, "output_tokens_per_second"), mid)});
            chart.x_high = std::max(chart.x_high, chart.x_ticks.empty() ? at * 1.05 : at + 0.25);
            chart.y_high = std::max(chart.y_high, high * 1.05);
        }
        chart.series.push_back(std::move(series));
    }
    return draw(chart);
}

}  // namespace

std::string study_text(const Json& study) {
    const std::vector<StudyColumn> columns = columns_of(study);
    const Json& all = study["checkpoints"];
    size_t names = 10;
    for (const Json& one : all) names = std::max(names, text_of(one, "name").size());
    std::string text = fmt::format("{:<{}}", "checkpoint", names);
    for (const StudyColumn& c : columns) text += fmt::format("  {:>{}}", c.head, std::max<size_t>(c.head.size(), 10));
    text += "\n";
    for (size_t row = 0; row < all.size(); ++row) {
        text += fmt::format("{:<{}}", text_of(all[row], "name"), names);
        for (const StudyColumn& c : columns)
            text += fmt::format("  {:>{}}", c.cells[row], std::max<size_t>(c.head.size(), 10));
        text += "\n";
    }
    text += fmt::format("\noutput tokens/s, of {}'s, and in ms the median TTFT and TPOT\n{:>7}",
                        text_of(all[0], "name"), "clients");
    for (const Json& one : all) text += fmt::format("  {:>30}", text_of(one, "name"));
    text += "\n";
    for (size_t i = 0; i < all[0]["loads"].size(); ++i) {
        const Json& first = all[0]["loads"][i];
        text += fmt::format("{:>7}", first["concurrency"].get<int64_t>());
        for (const Json& one : all) {
            const Json& load = one["loads"][i];
            const double rate = number_of(load, "output_tokens_per_second");
            text += fmt::format("  {:>30}",
                                fmt::format("{:.1f} x{:.2f} ({:.1f}, {:.2f})", rate,
                                            rate / number_of(first, "output_tokens_per_second"),
                                            number_of(load["ttft_ms"], "p50"), number_of(load["tpot_ms"], "p50")));
        }
        text += "\n";
    }
    return text;
}

std::string study_page(const Json& study) {
    const Json& all = study["checkpoints"];
    const std::vector<StudyColumn> columns = columns_of(study);
    std::vector<std::string> heads{"<checkpoint"};
    for (const StudyColumn& c : columns) heads.push_back(c.head);
    std::string rows, loads, legend = "<div class=\"legend\">";
    for (size_t row = 0; row < all.size(); ++row) {
        const std::string name = text_of(all[row], "name");
        legend += fmt::format("<span>{}{}</span>", marker_icon(static_cast<int>(row)), escape_html(name));
        rows += "<tr>" + name_cell(name);
        for (const StudyColumn& c : columns) rows += cell(c.cells[row]);
        rows += "</tr>\n";
        for (size_t i = 0; i < all[row]["loads"].size(); ++i)
            loads += "<tr>" + name_cell(name) + load_cells(all[row]["loads"][i], all[0]["loads"][i]) + "</tr>\n";
    }
    legend += "</div>\n";
    const auto rate = [](const Json& load) { return number_of(load, "output_tokens_per_second"); };
    // Clients double from tick to tick.
    const auto clients = [](const Json& load) { return std::log2(number_of(load, "concurrency")); };
    const auto rate_of = [&](const Json& load, const char*) { return rate(load); };
    std::vector<Tick> doublings;
    for (const Json& one : all)
        for (const Json& load : one["loads"]) {
            const double at = clients(load);
            if (std::ranges::find(doublings, at, &Tick::at) == doublings.end())
                doublings.push_back({at, std::to_string(load["concurrency"].get<int64_t>())});
        }
    std::ranges::sort(doublings, {}, &Tick::at);
    const double lowest = doublings.empty() ? 0 : doublings.front().at - 0.25;
    // No band: the curve turns back where more clients get less.
    const auto tpot = [](const Json& load, const char*) { return number_of(load["tpot_ms"], "p50"); };
    const auto ttft = [](const Json& load, const char* q) { return number_of(load["ttft_ms"], q); };
    const std::string head = fmt::format(
        "<header><div class=\"kicker\">nibble · bench study</div>\n<h1>{}</h1>\n<p>{} tokens in, {} out; "
        "{}</p></header>\n",
        escape_html(name_of(text_of(study, "model"))), study["isl"].get<int64_t>(), study["osl"].get<int64_t>(),
        escape_html(text_of(study, "device")));
    return document("nibble bench study",
                    head + "<section>" + table("", heads, rows) +
                        "</section>\n<section><h2>Throughput and time per token</h2>" + legend +
                        curves(study,
                               {.title = "throughput and time per token",
                                .x_label = "output tokens a second",
                                .y_label = "TPOT, ms: median, by rising clients"},
                               rate, tpot) +
                        "</section>\n<section><h2>Throughput by clients</h2>" + legend +
                        curves(study,
                               {.title = "throughput by clients",
                                .x_label = "clients at once",
                                .y_label = "output tokens a second",
                                .x_low = lowest,
                                .x_ticks = doublings},
                               clients, rate_of) +
                        "</section>\n<section><h2>Time to the first token by clients</h2>" + legend +
                        curves(study,
                               {.title = "time to the first token",
                                .x_label = "clients at once",
                                .y_label = "TTFT, ms: median, band to p99",
                                .x_low = lowest,
                                .x_ticks = doublings},
                               clients, ttft) +
                        "</section>\n<section><h2>All loads</h2>" +
                        table("sortable",
                              {"<checkpoint", "clients", "tokens/s", "of " + text_of(all[0], "name"),
                               "tokens/s of a client", "TTFT ms p50 / p90 / p99", "TPOT ms p50 / p90 / p99"},
                              loads) +
                        "</section>\n");
}

}  // namespace nibble
