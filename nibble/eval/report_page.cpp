#include "eval/report.h"
#include "page/html.h"

namespace nibble {
namespace {

std::string_view kind_name(Metric::Kind kind) {
    switch (kind) {
        case Metric::Kind::perplexity:
            return "perplexity";
        case Metric::Kind::share:
            return "share";
        case Metric::Kind::plain:
            return "plain";
    }
    __builtin_unreachable();
}

}  // namespace

std::string render_html(const EvalReport& report) {
    // All subjects ran the same tasks. The reference may have fewer metrics, because it is not compared with itself.
    Json kinds = Json::array();
    for (const SubjectResult& subject : report.subjects)
        for (size_t t = 0; t < subject.tasks.size(); ++t) {
            Json& task = t < kinds.size() ? kinds[t] : kinds.emplace_back(Json::object());
            for (const Metric& metric : subject.tasks[t].metrics) task[metric.name] = kind_name(metric.kind);
        }
    return document("nibble evaluation", "evaluation",
                    {{"report", to_json(report)}, {"reference", report.reference}, {"kinds", std::move(kinds)}});
}

}  // namespace nibble
