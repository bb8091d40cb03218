#include "eval/report.h"

#include "page/numbers.h"

#include <fmt/format.h>

#include <cmath>

namespace nibble {
namespace {

std::string number(double value) {
    const double size = std::abs(value);
    if ((size > 0 && size < 1e-3) || size >= 1e6) return fmt::format("{:.3e}", value);
    return fmt::format("{:.{}f}", value, size < 1 ? 5 : size < 100 ? 3 : 2);
}

std::string left(std::string text, size_t width) {
    size_t characters = 0;
    for (const char c : text) characters += (c & 0xC0) != 0x80;
    if (characters < width) text.append(width - characters, ' ');
    return text;
}

}  // namespace

std::optional<Estimate> relative_score(const EvalReport& report, size_t subject, size_t task, size_t metric) {
    if (report.reference < 0 || static_cast<size_t>(report.reference) == subject) return std::nullopt;
    const SubjectResult& reference = report.subjects[static_cast<size_t>(report.reference)];
    if (task >= reference.tasks.size() || metric >= reference.tasks[task].metrics.size()) return std::nullopt;
    const Metric& mine = report.subjects[subject].tasks[task].metrics[metric];
    const Metric& theirs = reference.tasks[task].metrics[metric];
    if (!mine.compares || mine.name != theirs.name) return std::nullopt;
    const Estimate &a = mine.estimate, &b = theirs.estimate;
    if (!(b.value > 0)) return std::nullopt;
    const double ratio = a.value / b.value;
    return Estimate{ratio, std::hypot(a.error / b.value, ratio * b.error / b.value)};
}

std::string metric_text(const Metric& m) {
    const bool percent = m.kind == Metric::Kind::share;
    const double value = m.estimate.value, error = m.estimate.error;
    if (percent)
        return error > 0 ? fmt::format("{:.2f} ± {:.2f} %", 100 * value, 100 * error)
                         : fmt::format("{:.2f} %", 100 * value);
    return error > 0 ? fmt::format("{} ± {}", number(value), number(error)) : number(value);
}

std::string relative_text(const Metric& metric, const Estimate& relative) {
    if (metric.kind == Metric::Kind::perplexity) return fmt::format("{:.4f} times the reference's", relative.value);
    return fmt::format("{:.1f} % of the reference", 100 * relative.value);
}

Json to_json(const EvalReport& report) {
    Json subjects = Json::array();
    for (size_t s = 0; s < report.subjects.size(); ++s) {
        const SubjectResult& subject = report.subjects[s];
        Json tasks = Json::array();
        for (size_t t = 0; t < subject.tasks.size(); ++t) {
            const TaskResult& task = subject.tasks[t];
            Json metrics = Json::object();
            for (size_t m = 0; m < task.metrics.size(); ++m) {
                const Estimate& e = task.metrics[m].estimate;
                Json& metric = metrics[task.metrics[m].name] = {{"value", e.value}, {"standard_error", e.error}};
                const char* key = task.metrics[m].kind == Metric::Kind::perplexity ? "ratio" : "recovery";
                if (const auto r = relative_score(report, s, t, m)) metric[key] = r->value;
            }
            Json details = task.details;
            details.erase("samples");
            tasks.push_back({{"task", task.task}, {"items", task.items}, {"metrics", metrics}, {"details", details}});
        }
        subjects.push_back({{"name", subject.name},
                            {"path", subject.path},
                            {"stored_bytes", subject.stored_bytes},
                            {"bits_per_element", subject.bits_per_element},
                            {"settings", subject.settings},
                            {"seconds", subject.seconds},
                            {"tasks", tasks}});
    }
    Json json{{"nibble_eval", 1}, {"checkpoints", subjects}};
    if (report.reference >= 0) json["reference"] = report.subjects[static_cast<size_t>(report.reference)].name;
    return json;
}

std::string report_text(const EvalReport& report) {
    std::string out;
    for (size_t s = 0; s < report.subjects.size(); ++s) {
        const SubjectResult& subject = report.subjects[s];
        out += fmt::format("{}{}{}: {}, {:.2f} bits per weight\n", s > 0 ? "\n" : "", subject.name,
                           report.reference == int(s) ? " (reference)" : "", human_bytes(subject.stored_bytes),
                           subject.bits_per_element);
        for (size_t t = 0; t < subject.tasks.size(); ++t) {
            const TaskResult& task = subject.tasks[t];
            for (size_t m = 0; m < task.metrics.size(); ++m) {
                const Metric& metric = task.metrics[m];
                out += fmt::format("  {}{}{}", left(m == 0 ? task.task : "", 18), left(metric.name, 32),
                                   left(metric_text(metric), 24));
                if (const auto r = relative_score(report, s, t, m)) out += relative_text(metric, *r);
                while (out.ends_with(' ')) out.pop_back();
                out += '\n';
            }
        }
    }
    return out;
}

}  // namespace nibble
