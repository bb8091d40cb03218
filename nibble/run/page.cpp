#include "page/html.h"
#include "run/curves.h"
#include "run/history.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace nibble {
namespace {

constexpr size_t last_steps = 20;

Json curve_of(const RunHistory& run, double (*value)(const LoggedStep&)) {
    std::vector<CurveSample> samples;
    for (const LoggedStep& s : run.steps) samples.push_back({s.step, value(s)});
    return curve_json(samples);
}

Json validation_curve(const RunHistory& run) {
    std::vector<CurveSample> samples;
    for (const LoggedStep& s : run.steps)
        if (s.validation) samples.push_back({s.step, *s.validation});
    return curve_json(samples);
}

Json run_json(const RunHistory& run) {
    double seconds = 0;
    int64_t tokens = 0, skipped = 0;
    for (const LoggedStep& s : run.steps) {
        seconds += s.seconds;
        tokens += s.tokens;
        skipped += s.skipped;
    }
    Json quality = Json::array();
    for (const UnitQuality& unit : run.quality) quality.push_back(to_json(unit));
    return {{"name", run.name},
            {"group", run.group},
            {"steps", run.steps.back().step + 1},
            {"tokens", tokens},
            {"seconds", seconds},
            {"skipped", skipped},
            {"loss", mean_loss(run, last_steps)},
            {"validation", run.last_validation().value_or(std::numeric_limits<double>::quiet_NaN())},
            {"warnings", run.warnings},
            {"curves",
             {{"loss", curve_of(run, [](const LoggedStep& s) { return s.loss; })},
              {"validation", validation_curve(run)},
              {"gradient_norm", curve_of(run, [](const LoggedStep& s) { return s.gradient_norm; })},
              {"learning_rate", curve_of(run, [](const LoggedStep& s) { return s.learning_rate; })},
              {"tokens_per_second", curve_of(run, [](const LoggedStep& s) { return s.tokens_per_second(); })}}},
            {"quality", std::move(quality)},
            {"quality_step", run.quality_step}};
}

}  // namespace

std::string run_page(const std::vector<RunHistory>& runs, int reload_seconds) {
    Json list = Json::array();
    for (const RunHistory& run : runs) list.push_back(run_json(run));
    const std::string title = runs.size() == 1 ? runs[0].name : fmt::format("{} runs", runs.size());
    return document("nibble · " + title, "training", {{"last_steps", last_steps}, {"runs", std::move(list)}},
                    reload_seconds);
}

}  // namespace nibble
