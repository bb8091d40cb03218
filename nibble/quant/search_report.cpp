#include "page/html.h"
#include "page/numbers.h"
#include "page/svg.h"
#include "quant/search.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

Json point_json(const SearchSpace& space, const SearchPoint& point) {
    Json choice = Json::object();
    for (size_t g = 0; g < space.groups.size(); ++g) choice[space.groups[g].name] = space.formats[point.choice[g]].name;
    Json json{{"target", point.target}, {"bits", point.bits}, {"score", point.score}};
    if (point.kl) json["kl"] = *point.kl;
    json["choice"] = std::move(choice);
    return json;
}

// Returns the share of elements per format: "nvfp4 71 %, fp8 29 %".
std::string shares(const SearchSpace& space, const SearchPoint& point) {
    std::vector<int64_t> elements(space.formats.size());
    int64_t all = 0;
    for (size_t g = 0; g < space.groups.size(); ++g) {
        elements[point.choice[g]] += space.groups[g].elements;
        all += space.groups[g].elements;
    }
    std::string text;
    for (size_t f = 0; f < elements.size(); ++f)
        if (elements[f])
            text +=
                fmt::format("{}{} {}", text.empty() ? "" : ", ", space.formats[f].name, human_share(elements[f], all));
    return text;
}

std::string kl_text(const SearchPoint& point) { return point.kl ? fmt::format("{:.5f}", *point.kl) : "-"; }

std::string what_scores_are(const SearchScores& scores) {
    switch (scores.method) {
        case ScoreMethod::fisher:
            return "second-order estimate of the mean KL divergence, nats";
        case ScoreMethod::modelopt:
            return "sum of squared products of gradient and change";
        case ScoreMethod::kl:
            return "mean KL divergence of each group alone, nats, added up";
        case ScoreMethod::given:
            return "as given";
    }
    return {};
}

std::string curve(const SearchReport& r) {
    LineChart chart{.title = "Predicted and measured loss against effective bits",
                    .x_label = "effective bits per weight",
                    .y_label = "log10 of score and KL",
                    .x_low = INFINITY,
                    .x_high = -INFINITY,
                    .y_low = INFINITY,
                    .y_high = -INFINITY};
    Series predicted{.name = "predicted score", .style = 0, .points = {}};
    Series measured{.name = "measured KL", .style = 1, .points = {}};
    const auto add = [&](Series& series, double bits, double value, std::string_view unit) {
        if (!(value > 0)) return;
        const double y = std::log10(value);
        series.points.push_back({bits, y, y, y, fmt::format("{:.3f} bits: {} {:.4g}", bits, unit, value)});
        chart.x_low = std::min(chart.x_low, bits);
        chart.x_high = std::max(chart.x_high, bits);
        chart.y_low = std::min(chart.y_low, std::floor(y));
        chart.y_high = std::max(chart.y_high, std::ceil(y));
    };
    for (const SearchPoint& point : r.sweep) {
        add(predicted, point.bits, point.score, "score");
        if (point.kl) add(measured, point.bits, *point.kl, "KL");
    }
    if (predicted.points.empty() && measured.points.empty()) return {};
    if (chart.x_low == chart.x_high) chart.x_low -= 0.5, chart.x_high += 0.5;
    if (chart.y_low == chart.y_high) chart.y_high += 1;
    std::string legend = fmt::format("<span>{}predicted score</span>", marker_icon(0));
    if (!measured.points.empty()) legend += fmt::format("<span>{}measured KL</span>", marker_icon(1));
    chart.series.push_back(std::move(predicted));
    if (!measured.points.empty()) chart.series.push_back(std::move(measured));
    return fmt::format("<div class=\"legend\">{}</div>\n<div class=\"chart\">{}</div>\n", legend, draw(chart));
}

std::string sweep_rows(const SearchReport& r) {
    std::string rows;
    for (const SearchPoint& point : r.sweep) {
        rows += "<tr>" + number_cell(fmt::format("{:.3f}", point.target), point.target) +
                number_cell(fmt::format("{:.4f}", point.bits), point.bits) +
                number_cell(fmt::format("{:.4g}", point.score), point.score);
        rows += point.kl ? number_cell(fmt::format("{:.5f}", *point.kl), *point.kl) : cell("–");
        rows += cell(shares(r.space, point), "l wrap") + "</tr>\n";
    }
    return rows;
}

std::string group_rows(const SearchReport& r) {
    std::string rows;
    for (size_t g = 0; g < r.space.groups.size(); ++g) {
        const SearchGroup& group = r.space.groups[g];
        std::string weighed;
        for (size_t i = 0; i < group.candidates.size(); ++i)
            weighed += fmt::format("{}{} {:.3g}", i ? ", " : "", r.space.formats[group.candidates[i]].name,
                                   r.scores.values[g][i]);
        rows += "<tr>" + name_cell(group.name) + number_cell(human_large(group.elements), double(group.elements)) +
                cell(r.space.formats[r.chosen.choice[g]].name, "l") +
                number_cell(fmt::format("{:.3g}", r.scores.values[g][0]), r.scores.values[g][0]) +
                cell(group.fixed.empty() ? weighed : group.fixed, "l wrap") + "</tr>\n";
    }
    return rows;
}

}  // namespace

Json to_json(const SearchReport& r) {
    Json json{{"source", r.source},
              {"command", r.command},
              {"method", method_name(r.scores.method)},
              {"text", r.scores.origin},
              {"tokens", r.scores.tokens},
              {"measured_on", r.measured_on},
              {"measured_tokens", r.measured_tokens},
              {"reachable_bits", {r.space.least_bits(), r.space.most_bits()}},
              {"seconds", r.seconds}};
    Json formats = Json::array();
    for (const SearchFormat& f : r.space.formats) formats.push_back({{"name", f.name}, {"bits", f.bits()}});
    json["formats"] = std::move(formats);
    Json groups = Json::object();
    for (size_t g = 0; g < r.space.groups.size(); ++g) {
        const SearchGroup& group = r.space.groups[g];
        Json scores = Json::object();
        for (size_t i = 0; i < group.candidates.size(); ++i)
            scores[r.space.formats[group.candidates[i]].name] = r.scores.values[g][i];
        groups[group.name] = {{"elements", group.elements},
                              {"cost_weight", double(group.weight) / double(r.space.weight_unit)},
                              {"scores", std::move(scores)}};
        if (!group.fixed.empty()) groups[group.name]["fixed"] = group.fixed;
    }
    json["groups"] = std::move(groups);
    json["chosen"] = point_json(r.space, r.chosen);
    json["sweep"] = Json::array();
    for (const SearchPoint& point : r.sweep) json["sweep"].push_back(point_json(r.space, point));
    return json;
}

Result<SearchScores> scores_from_json(const Json& report, const SearchSpace& space, std::string_view origin) {
    SearchScores scores{.method = ScoreMethod::given, .origin = std::string(origin)};
    if (!report.is_object() || !report.contains("groups") || !report["groups"].is_object())
        return fail("{}: no object 'groups'", origin);
    if (report.contains("tokens") && report["tokens"].is_number_integer())
        scores.tokens = report["tokens"].get<int64_t>();
    for (const SearchGroup& group : space.groups) {
        scores.values.emplace_back();
        for (const size_t f : group.candidates) {
            const std::string& format = space.formats[f].name;
            double value = 0;
            if (group.candidates.size() > 1 && f != space.none()) {
                const Json::json_pointer at = Json::json_pointer() / "groups" / group.name / "scores" / format;
                if (!report.contains(at) || !report[at].is_number())
                    return fail("{}: no score of {} in {}", origin, group.name, format);
                value = report[at].get<double>();
                if (!(value >= 0) || !std::isfinite(value))
                    return fail("{}: {} in {} scores {}", origin, group.name, format, value);
            }
            scores.values.back().push_back(value);
        }
    }
    scores.make_monotone();
    return scores;
}

std::string report_text(const SearchReport& r) {
    std::string text = fmt::format("scores: {} ({}), {} tokens of {}\n", method_name(r.scores.method),
                                   what_scores_are(r.scores), r.scores.tokens, r.scores.origin);
    if (!r.measured_on.empty())
        text += fmt::format("KL: mean over {} tokens of {}\n", r.measured_tokens, r.measured_on);
    text += fmt::format("\n{:>7} {:>8} {:>12} {:>9}  {}\n", "target", "bits", "score", "KL", "weights in");
    for (const SearchPoint& point : r.sweep)
        text += fmt::format("{:>7.3f} {:>8.4f} {:>12.5g} {:>9}  {}\n", point.target, point.bits, point.score,
                            kl_text(point), shares(r.space, point));
    text += fmt::format("\nchosen: {:.4f} effective bits of at most {}, score {:.5g}{}: {}\n", r.chosen.bits,
                        r.chosen.target, r.chosen.score, r.chosen.kl ? ", KL " + kl_text(r.chosen) : "",
                        shares(r.space, r.chosen));
    return text;
}

std::string report_page(const SearchReport& r) {
    std::string main = fmt::format(
        "<header><div class=\"kicker\">nibble · search</div>\n<h1>{:.3f} effective bits</h1>\n<div "
        "class=\"meta\"><span>{}</span><span>target {:.3f}</span><span>{}</span></div></header>\n",
        r.chosen.bits, escape_html(r.source), r.chosen.target, escape_html(shares(r.space, r.chosen)));
    main += fmt::format(
        "<section><h2>Loss against bits per weight</h2>\n<p class=\"note\">Score: {}; over {} tokens of "
        "{}.{}</p>\n{}{}</section>\n",
        escape_html(what_scores_are(r.scores)), human_count(r.scores.tokens), escape_html(r.scores.origin),
        r.measured_on.empty() ? ""
                              : fmt::format(" KL: measured on {} tokens of {}.", human_count(r.measured_tokens),
                                            escape_html(r.measured_on)),
        curve(r), table("sortable", {"target", "bits", "score", "KL", "<weights in"}, sweep_rows(r)));
    main += fmt::format("<section><h2>Groups</h2>\n{}</section>\n",
                        table("sortable filterable",
                              {"<group", "weights", "<chosen", "score at its fewest bits", "<weighed"}, group_rows(r)));
    main += fmt::format(
        "<section><h2>How it was made</h2>\n<dl><dt>command</dt><dd>{}</dd>\n<dt>time</dt><dd>{}</dd></dl>"
        "</section>\n",
        escape_html(r.command), human_seconds(r.seconds));
    return document("nibble search", main);
}

}  // namespace nibble
