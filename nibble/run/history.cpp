#include "run/history.h"

#include "base/fields.h"
#include "run/log.h"

#include <cmath>
#include <limits>
#include <system_error>

namespace nibble {
namespace {

namespace fs = std::filesystem;

// The log has null for NaN, which JSON lacks.
Status get_number(const Json& line, std::string_view key, double& out) {
    Fields fields(line);
    NIBBLE_TRY(const Json* field, fields.need(key));
    if (field->is_null()) {
        out = std::numeric_limits<double>::quiet_NaN();
        return Ok{};
    }
    return fields.need(key, out);
}

Status read_step(const Json& line, LoggedStep& s) {
    Fields fields(line);
    NIBBLE_CHECK(fields.need("step", s.step));
    NIBBLE_CHECK(get_number(line, "loss", s.loss));
    NIBBLE_CHECK(get_number(line, "gradient_norm", s.gradient_norm));
    NIBBLE_CHECK(get_number(line, "learning_rate", s.learning_rate));
    NIBBLE_CHECK(get_number(line, "seconds", s.seconds));
    NIBBLE_CHECK(fields.need("tokens", s.tokens));
    if (line.contains("skipped")) NIBBLE_CHECK(fields.need("skipped", s.skipped));
    if (line.contains("validation")) NIBBLE_CHECK(get_number(line, "validation", s.validation.emplace()));
    return Ok{};
}

Status read_line(const Json& line, RunHistory& run) {
    if (line.contains("loss")) {
        NIBBLE_CHECK(read_step(line, run.steps.emplace_back()));
        if (!line.contains("quality")) return Ok{};
        if (!line["quality"].is_array()) return fail("'quality' must be a list");
        run.quality.clear();
        run.quality_step = run.steps.back().step;
        for (const Json& unit : line["quality"]) NIBBLE_CHECK(read_quality(unit, run.quality.emplace_back()));
        return Ok{};
    }
    if (line.contains("warning")) return Fields(line).need("warning", run.warnings.emplace_back());
    return Ok{};
}

}  // namespace

Json to_json(const LoggedStep& s) {
    Json line{{"step", s.step},
              {"loss", s.loss},
              {"gradient_norm", s.gradient_norm},
              {"learning_rate", s.learning_rate},
              {"seconds", s.seconds},
              {"tokens", s.tokens}};
    if (s.skipped) line["skipped"] = true;
    if (s.validation) line["validation"] = *s.validation;
    return line;
}

Result<RunHistory> read_run_history(const fs::path& path) {
    std::error_code error;
    const bool folder = fs::is_directory(path, error);
    const fs::path file = folder ? path / run_log_name : path;
    if (!fs::exists(file, error)) return fail("{}: the log of a run does not exist", file.string());
    NIBBLE_TRY(const auto lines, read_run_log(file));
    RunHistory run;
    run.name = (folder ? fs::absolute(path).lexically_normal() : path.stem()).filename().string();
    if (run.name.empty()) run.name = path.parent_path().filename().string();
    if (lines.empty() || !lines[0].contains("run"))
        return fail("{}: line 1: is not the log of a training run", file.string());
    run.about = lines[0]["run"];
    if (run.about.is_object()) {
        for (auto [key, into] : {std::pair{"name", &run.name}, std::pair{"group", &run.group}})
            if (run.about.contains(key)) NIBBLE_CHECK(Fields(run.about).need(key, *into).within(file.string()));
    }
    if (run.group.empty()) run.group = run.name;
    for (size_t i = 1; i < lines.size(); ++i)
        NIBBLE_CHECK(read_line(lines[i], run).within(fmt::format("{}: line {}", file.string(), i + 1)));
    if (run.steps.empty()) return fail("{}: has no steps yet", file.string());
    return run;
}

std::optional<double> RunHistory::last_validation() const {
    for (size_t i = steps.size(); i-- > 0;)
        if (steps[i].validation) return steps[i].validation;
    return {};
}

double mean_loss(const RunHistory& run, size_t count) {
    const size_t from = run.steps.size() - std::min(count, run.steps.size());
    double sum = 0;
    for (size_t i = from; i < run.steps.size(); ++i) sum += run.steps[i].loss;
    return sum / double(run.steps.size() - from);
}

}  // namespace nibble
