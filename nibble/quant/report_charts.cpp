#include "page/svg.h"
#include "quant/report_page.h"
#include "quant/report_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

namespace nibble {
namespace {

constexpr size_t most_in_one_chart = series_styles;
constexpr size_t most_panels = 24;

std::string describe(const std::string& role, const LayerSummary& l) {
    if (!l.sqnr.measured()) return {};
    if (l.sqnr.tensors == 1) return fmt::format("{}, layer {}: {} dB", role, l.layer, human_db(l.sqnr.low));
    return fmt::format("{}, layer {}, {} tensors: median {} dB, from {} to {} dB", role, l.layer, l.sqnr.tensors,
                       human_db(l.sqnr.median), human_db(l.sqnr.low), human_db(l.sqnr.high));
}

Series role_series(const RoleSummary& role, int style) {
    Series s{.name = role.role, .style = style};
    int previous = 0;
    for (const LayerSummary& l : role.layers) {
        // Layers without this role (in hybrid models) interrupt the line.
        if (!s.points.empty() && l.layer != previous + 1)
            s.points.push_back({double(l.layer) - 0.5, NAN, NAN, NAN, {}});
        const bool measured = l.sqnr.measured();
        s.points.push_back({double(l.layer), measured ? l.sqnr.low : NAN, measured ? l.sqnr.median : NAN,
                            measured ? l.sqnr.high : NAN, describe(role.role, l)});
        previous = l.layer;
    }
    return s;
}

std::string role_table(const std::vector<RoleSummary>& roles) {
    std::string rows;
    for (const RoleSummary& r : roles) {
        rows += "<tr>" + cell(r.role, "l") + cell(format_name(r.format), "l") +
                number_cell(human_count(r.tensors), double(r.tensors)) +
                number_cell(human_large(r.elements), double(r.elements)) +
                number_cell(human_db(r.pooled_db()), r.pooled_db());
        if (r.sqnr.measured())
            for (double d : {r.sqnr.low, r.sqnr.median, r.sqnr.high}) rows += number_cell(human_db(d), d);
        else
            rows += cell("–") + cell("–") + cell("–");
        rows += "</tr>\n";
    }
    return fmt::format(
        "<details><summary>As a table</summary>{}</details>",
        table("sortable", {"<role", "<format", "tensors", "weights", "SQNR of all, dB", "lowest", "median", "highest"},
              rows));
}

std::string role_panels(const LineChart& chart, std::span<const RoleSummary> roles, bool large) {
    std::string out = fmt::format("<div class=\"panels{}\">\n", large ? " large" : "");
    for (size_t i = 0; i < std::min(roles.size(), most_panels); ++i) {
        LineChart panel = chart;
        if (!large) panel.x_label = panel.y_label = "";
        panel.width = large ? 350 : 264;
        panel.height = large ? 210 : 138;
        panel.series = {chart.series[i]};
        panel.context = chart.series;
        panel.title = fmt::format("SQNR of {} by layer", roles[i].role);
        const SqnrRange& q = roles[i].sqnr;
        const std::string caption =
            q.measured() ? fmt::format("{:.1f}–{:.1f} dB", q.low, q.high) : std::string("lossless");
        out += fmt::format("<figure><figcaption><b>{}</b><span>{}</span></figcaption>{}</figure>\n",
                           escape_html(roles[i].role), caption, draw(panel));
    }
    out += "</div>\n";
    if (roles.size() > most_panels)
        out += fmt::format("<p class=\"note\">{} more roles are in the table.</p>\n", roles.size() - most_panels);
    return out;
}

bool has_bands(const RoleSummary& role) { return role.tensors > int64_t(role.layers.size()); }

// Charts the roles of one format that have layers: one chart with all roles if they can be distinguished, and one small
// chart each. Formats have separate charts because their SQNR differs by more than that of layers.
std::string format_chart(std::span<const RoleSummary> roles, bool only_format) {
    LineChart chart{
        .title = "SQNR by layer", .x_label = "layer", .y_label = "SQNR, dB", .height = only_format ? 360 : 270};
    double low = INFINITY, high = -INFINITY;
    int first = INT32_MAX, last = INT32_MIN;
    for (const RoleSummary& r : roles) {
        chart.series.push_back(role_series(r, int(chart.series.size())));
        for (const LayerSummary& l : r.layers) {
            first = std::min(first, l.layer);
            last = std::max(last, l.layer);
            if (!l.sqnr.measured()) continue;
            low = std::min(low, l.sqnr.low);
            high = std::max(high, l.sqnr.high);
        }
    }
    if (!std::isfinite(low)) return {};
    // The axis covers at least 2 dB, so that small differences do not look large.
    const double pad = std::max((high - low) * 0.06, (2.0 - (high - low)) / 2);
    chart.x_low = first - 0.6;
    chart.x_high = last + 0.6;
    chart.y_low = low - pad;
    chart.y_high = high + pad;

    std::string out = fmt::format("<h3>{}</h3>\n", format_name(roles.front().format));
    // Overlapping bands are not readable, so each role then has only its own chart.
    const bool bands = std::ranges::any_of(roles, has_bands);
    if (roles.size() == 1 || (roles.size() <= most_in_one_chart && !bands)) {
        out += "<div class=\"legend\">";
        for (const Series& s : chart.series)
            out += fmt::format("<span>{}{}</span>", marker_icon(s.style), escape_html(s.name));
        out += fmt::format("</div>\n<div class=\"chart\">{}</div>\n", draw(chart));
    }
    return roles.size() > 1 ? out + role_panels(chart, roles, bands) : out;
}

}  // namespace

std::string sqnr_section(const QuantReport& report) {
    const std::vector<RoleSummary> all = summarize_roles(report);
    if (all.empty()) return {};
    std::vector<RoleSummary> layered = all;
    std::erase_if(layered, [](const RoleSummary& r) { return r.layers.empty(); });
    const bool bands =
        std::ranges::any_of(layered, [](const RoleSummary& r) { return r.tensors > int64_t(r.layers.size()); });

    std::string out =
        "<section class=\"long\"><h2>Error by layer</h2>\n<p class=\"note\">SQNR: energy of the weights over energy of "
        "the "
        "error. Higher is better; 6 dB less is twice the error.";
    if (bands)
        out +=
            " Where a layer has several tensors of a role (experts), the line is their median and the band runs from "
            "the "
            "lowest to the highest.";
    if (chose_by_outputs(report)) out += fmt::format(" <strong>{}</strong>.", escape_html(sqnr_is_not_the_aim));
    out += "</p>\n";
    for (auto begin = layered.begin(); begin != layered.end();) {
        const auto end =
            std::find_if(begin, layered.end(), [&](const RoleSummary& r) { return r.format != begin->format; });
        out += format_chart({begin, end}, begin == layered.begin() && end == layered.end());
        begin = end;
    }
    return out + role_table(all) + "</section>\n";
}

std::string raised_section(const QuantReport& report) {
    const std::vector<RaisedSummary> layers = summarize_raised(report);
    if (layers.empty()) return {};
    int64_t raised = 0, blocks = 0;
    BarChart chart{
        .title = "Share of raised blocks by layer", .x_label = "layer", .y_label = "share of blocks", .height = 210};
    int first = INT32_MAX, last = INT32_MIN;
    for (const RaisedSummary& l : layers) {
        raised += l.raised;
        blocks += l.blocks;
        if (l.layer < 0) continue;
        first = std::min(first, l.layer);
        last = std::max(last, l.layer);
        chart.bars.push_back({l.layer - 0.42, l.layer + 0.42, double(l.raised) / double(l.blocks),
                              fmt::format("layer {}: {} of {} blocks ({})", l.layer, human_count(l.raised),
                                          human_count(l.blocks), human_share(l.raised, l.blocks))});
    }
    const bool four_over_six = raised_is_four_over_six(report);
    std::string out = fmt::format(
        "<section><h2>{}</h2>\n<p class=\"note\">{} of {} blocks ({}) {}</p>\n",
        four_over_six ? "Four instead of six" : "Raised block scales", human_count(raised), human_count(blocks),
        human_share(raised, blocks),
        four_over_six ? "had a smaller error with their largest weight at 4 than at 6: the search made their scale 1.5 "
                        "times as large."
                      : "had a smaller error with a scale above the one computed from their largest weight.");
    if (!chart.bars.empty()) {
        chart.x_low = first - 0.6;
        chart.x_high = last + 0.6;
        chart.x_ticks = nice_ticks(first, last + 0.5, 14, 1);
        out += fmt::format("<div class=\"chart\">{}</div>", draw(chart));
    }
    return out + "</section>\n";
}

}  // namespace nibble
