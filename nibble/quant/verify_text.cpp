#include "base/utf8.h"
#include "quant/report_summary.h"
#include "quant/verify.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

constexpr size_t most_findings = 50, worst_tensors = 5;

std::string decibels(const TensorReport& t) {
    return std::isfinite(t.sqnr_db()) ? fmt::format("{:.2f}", t.sqnr_db()) : "lossless";
}

std::string formats_table(const QuantReport& tensors, bool compared) {
    std::string text = fmt::format("  {:<14}{:>10}{:>18}{:>12}{:>13}{:>10}\n", "format", "tensors", "weights", "size",
                                   "bits/weight", compared ? "SQNR dB" : "");
    for (const FormatSummary& f : summarize_formats(tensors))
        text += fmt::format(
            "  {:<14}{:>10}{:>18}{:>12}{:>13.3f}{:>10}\n", f.label, human_count(f.tensors), human_count(f.elements),
            human_bytes(f.stored_bytes), f.bits_per_element(),
            compared && f.quantized && std::isfinite(f.pooled_db()) ? fmt::format("{:.2f}", f.pooled_db()) : "");
    return text;
}

std::string worst_table(const std::vector<TensorReport>& tensors) {
    std::vector<const TensorReport*> measured;
    for (const TensorReport& t : tensors)
        if (t.quantized()) measured.push_back(&t);
    if (measured.empty()) return {};
    std::stable_sort(measured.begin(), measured.end(), [](auto* a, auto* b) { return a->sqnr_db() < b->sqnr_db(); });
    std::string text = fmt::format("\n  {:>9}{:>14}  {:<14}largest losses\n", "SQNR dB", "max error", "format");
    for (size_t i = 0; i < std::min(worst_tensors, measured.size()); ++i)
        text += fmt::format("  {:>9}{:>14.6g}  {:<14}{}\n", decibels(*measured[i]), measured[i]->max_error,
                            format_name(measured[i]->format), printable(measured[i]->name));
    return text;
}

}  // namespace

Json to_json(const VerifyReport& report) {
    Json findings = Json::array(), tensors = Json::array();
    for (const Finding& f : report.findings) findings.push_back({{"tensor", f.tensor}, {"finding", f.text}});
    for (const TensorReport& t : report.tensors) tensors.push_back(to_json(t));
    if (!report.error.empty()) return Json{{"path", report.path}, {"passed", false}, {"error", report.error}};
    return Json{{"path", report.path},
                {"against", report.against.empty() ? Json(nullptr) : Json(report.against)},
                {"dialect", dialect_name(report.dialect)},
                {"passed", report.passed()},
                {"findings", std::move(findings)},
                {"tensors", std::move(tensors)}};
}

std::string to_text(const VerifyReport& report) {
    std::string text;
    for (size_t i = 0; i < std::min(most_findings, report.findings.size()); ++i) {
        const auto& [tensor, what] = report.findings[i];
        text += printable(tensor.empty() ? what : fmt::format("{}: {}", tensor, what)) + '\n';
    }
    if (report.findings.size() > most_findings)
        text +=
            fmt::format("... and {} more findings (all of them with --json)\n", report.findings.size() - most_findings);
    if (!text.empty()) text += '\n';

    QuantReport tensors;
    tensors.tensors = report.tensors;
    // An empty method means that the tensor is unchanged; without a source, quantized tensors have none yet.
    for (TensorReport& t : tensors.tensors)
        if (t.format != Format::none && t.method.empty()) t.method = format_name(t.format);
    const bool compared = !report.against.empty();
    text += fmt::format(
        "{} ({}): {} tensors, {}{}\n\n", printable(report.path), dialect_name(report.dialect),
        human_count(static_cast<int64_t>(report.tensors.size())),
        report.passed() ? "nothing wrong"
                        : fmt::format("{} finding{}", report.findings.size(), report.findings.size() == 1 ? "" : "s"),
        compared ? printable(fmt::format(", compared with {}", report.against)) : "");
    text += formats_table(tensors, compared);
    if (compared) text += worst_table(report.tensors);
    return text;
}

}  // namespace nibble
