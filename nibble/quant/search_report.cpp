#include "page/html.h"
#include "page/numbers.h"
#include "quant/search.h"

#include <fmt/format.h>

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

std::string report_page(const SearchReport& r) { return document("nibble search", "search", to_json(r)); }

}  // namespace nibble
