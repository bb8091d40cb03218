#include "page/svg.h"
#include "quant/report_page.h"
#include "quant/report_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

namespace nibble {
namespace {

constexpr size_t worst_listed = 20;

// A row of the plan table: one tensor, or the experts of one layer and role with the same plan.
struct PlanRow {
    std::string name;
    const TensorReport* first;
    int64_t tensors = 0, elements = 0, stored_bytes = 0;
    std::vector<double> decibels;
};

std::vector<PlanRow> plan_rows(const QuantReport& report) {
    std::vector<PlanRow> rows;
    std::unordered_map<std::string, size_t> index;
    for (const TensorReport& t : report.tensors) {
        const std::string pattern = name_pattern(t.name, Wildcards::experts);
        const std::string key =
            fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}", pattern, human_shape(t.shape), dtype_name(t.dtype),
                        format_name(t.format), t.method, activation_name(t.activation), t.reason);
        const auto [slot, added] = index.try_emplace(key, rows.size());
        if (added) rows.push_back({.name = t.name, .first = &t});
        PlanRow& row = rows[slot->second];
        if (!added) row.name = pattern;
        ++row.tensors;
        row.elements += t.elements;
        row.stored_bytes += t.stored_bytes;
        if (t.quantized()) row.decibels.push_back(t.sqnr_db());
    }
    return rows;
}

std::string plan_sqnr(const PlanRow& row) {
    if (row.decibels.empty()) return cell("");
    const SqnrRange q = sqnr_range(row.decibels);
    if (!q.measured()) return number_cell("∞", 1e9);
    if (row.tensors == 1) return number_cell(human_db(q.low), q.low);
    return number_cell(fmt::format("{} – {}", human_db(q.low), human_db(q.high)), q.low);
}

std::string entry(std::string_view what, std::string_view value) {
    return fmt::format("<dt>{}</dt><dd>{}</dd>\n", escape_html(what), escape_html(value));
}

std::string entries(const Json& object) {
    std::string out;
    for (const auto& [key, value] : object.items())
        out += entry(key, value.is_string() ? value.get<std::string>()
                                            : value.dump(-1, ' ', false, Json::error_handler_t::replace));
    return out;
}

std::string kv_table(const QuantReport& report) {
    if (report.kv_scales.empty()) return {};
    std::string rows;
    for (const auto& [name, scale] : report.kv_scales)
        rows += "<tr>" + name_cell(name) + number_cell(human_value(scale), scale) + "</tr>\n";
    return fmt::format("<details><summary>{} scales of the KV cache</summary>{}</details>", report.kv_scales.size(),
                       table("sortable", {"<name", "scale"}, rows));
}

}  // namespace

std::string worst_section(const QuantReport& report) {
    const std::vector<size_t> worst = worst_tensors(report, worst_listed);
    if (worst.empty()) return {};
    std::string rows;
    for (size_t i : worst) {
        const TensorReport& t = report.tensors[i];
        rows +=
            "<tr>" + name_cell(t.name) + cell(format_name(t.format), "l") +
            number_cell(human_db(t.sqnr_db()), t.sqnr_db()) + number_cell(human_value(t.max_error), t.max_error) +
            number_cell(human_value(t.amax), t.amax) +
            number_cell(human_share(t.zeros, t.elements), double(t.zeros) / double(std::max<int64_t>(t.elements, 1))) +
            number_cell(human_count(t.saturated), double(t.saturated)) +
            number_cell(human_count(t.sign_flips), double(t.sign_flips)) + "</tr>\n";
    }
    return fmt::format(
        "<section class=\"long\"><h2>Tensors with the largest errors</h2>\n<p class=\"note\">The {} of lowest SQNR. "
        "Became zero: weights that were not zero and now are. Saturated: weights above the largest value that their "
        "scale can represent.</p>\n{}</section>\n",
        worst.size(),
        table("sortable",
              {"<tensor", "<format", "SQNR, dB", "largest error", "largest weight", "became zero", "saturated",
               "sign flips"},
              rows));
}

std::string carried_section(const QuantReport& report) {
    const std::vector<CarriedReason> reasons = summarize_carried(report);
    if (reasons.empty()) return {};
    std::string rows;
    for (const CarriedReason& r : reasons) {
        rows += fmt::format("<tr class=\"group\"><td class=\"l\"><b>{}</b></td><td></td>", escape_html(r.reason));
        for (const std::string& text : {human_count(r.tensors), human_large(r.elements), human_bytes(r.bytes)})
            rows += cell(text);
        rows += "</tr>\n";
        for (const CarriedPattern& p : r.patterns)
            rows += "<tr class=\"in\">" + name_cell(p.pattern) + cell(p.dtype, "l") + cell(human_count(p.tensors)) +
                    cell(human_large(p.elements)) + cell(human_bytes(p.bytes)) + "</tr>\n";
    }
    return fmt::format(
        "<section class=\"long\"><h2>What stayed unquantized, and why</h2>\n{}</section>\n",
        table({}, {"<reason, and the tensors it decided (* is any number)", "<type", "tensors", "weights", "size"},
              rows));
}

std::string plan_section(const QuantReport& report) {
    const std::vector<PlanRow> plan = plan_rows(report);
    if (plan.empty()) return {};
    std::string rows;
    for (const PlanRow& row : plan) {
        const TensorReport& t = *row.first;
        const double bits = row.elements ? 8.0 * double(row.stored_bytes) / double(row.elements) : 0;
        rows += fmt::format("<tr><td class=\"name\">{}{}</td>", breakable_name(row.name),
                            row.tensors > 1 ? fmt::format(" <span class=\"times\">×{}</span>", row.tensors) : "");
        rows += cell(fmt::format("{} {}", dtype_name(t.dtype), human_shape(t.shape)), "l") +
                cell(t.quantized() ? std::string_view(t.method) : "as it was", "method") +
                cell(t.activation == ActivationFormat::none ? "" : activation_name(t.activation), "l") +
                number_cell(fmt::format("{:.2f}", bits), bits) +
                number_cell(human_bytes(row.stored_bytes), double(row.stored_bytes)) + plan_sqnr(row) +
                cell(t.reason, "wrap") + "</tr>\n";
    }
    const bool grouped = plan.size() < report.tensors.size();
    std::string count = fmt::format("{} tensors", human_count(int64_t(report.tensors.size())));
    std::string note;
    if (grouped) {
        count += fmt::format(" in {} rows", human_count(int64_t(plan.size())));
        note =
            "<p class=\"note\">Experts of one layer that were planned alike share a row; the JSON report has every "
            "tensor.</p>\n";
    }
    return fmt::format(
        "<section class=\"long\"><details><summary><h2>The whole plan</h2> <span "
        "class=\"soft\">{}</span></summary>\n{}{}</details></section>\n",
        count, note,
        table("sortable filterable plan",
              {"<tensor", "<source", "<method", "<inputs", "bits", "size", "SQNR, dB", "<decided by"}, rows));
}

std::string outputs_section(const QuantReport& report) {
    const OutputSummary all = summarize_outputs(report);
    if (all.linears == 0) return {};
    std::string rows;
    for (const LayerOutputError& e : report.output_errors) {
        const double before = ratio_db(e.energy, e.before), after = ratio_db(e.energy, e.after);
        rows += fmt::format("<tr>{}{}{}{}</tr>\n", name_cell(e.module), number_cell(human_db(before), before),
                            number_cell(human_db(after), after), number_cell(human_db(after - before), after - before));
    }
    return fmt::format(
        "<section class=\"long\"><h2>What calibration did to the layers' outputs</h2>\n<p class=\"note\">Energy of a "
        "layer's outputs over the energy of their error on the calibration text, as its solver weighs it: {} dB with "
        "the "
        "nearest codes, {} dB as solved, over {} layers.</p>\n{}</section>\n",
        human_db(all.before_db), human_db(all.after_db), human_count(all.linears),
        table("sortable filterable", {"<layer", "nearest codes, dB", "as solved, dB", "gain, dB"}, rows));
}

std::string warnings_section(const QuantReport& report) {
    if (report.warnings.empty()) return {};
    std::string items;
    for (const std::string& w : report.warnings) items += fmt::format("<li>{}</li>\n", escape_html(w));
    return fmt::format("<section id=\"warnings\"><h2>Warnings</h2>\n<ul class=\"warnings\">{}</ul></section>\n", items);
}

std::string gaps_section(const QuantReport& report) {
    if (report.gaps.empty()) return {};
    std::string items;
    for (const CalibrationGap& g : report.gaps) items += fmt::format("<li>{}</li>\n", escape_html(g.text));
    return fmt::format(
        "<section id=\"gaps\"><h2>Tensors without usable calibration data</h2>\n<ul "
        "class=\"warnings\">{}</ul></section>\n",
        items);
}

std::string run_section(const QuantReport& r) {
    const ReportTiming& t = r.timing;
    std::string list = entry("source", r.source) + entry("recipe", r.recipe);
    if (!t.command.empty()) list += fmt::format("<dt>command</dt><dd><code>{}</code></dd>\n", escape_html(t.command));
    list += entry("verified", t.verified.empty() ? "no" : t.verified);
    list += entry("KV cache", kv_name(r.kv)) + entries(r.settings) + entries(r.versions);
    if (t.whole_seconds > 0) list += entry("time of the whole job", human_seconds(t.whole_seconds));
    if (t.calibration_seconds > 0) list += entry("calibration", human_seconds(t.calibration_seconds));
    list += entry("time of quantizing",
                  fmt::format("{} on {} threads, kernels {}", human_seconds(t.seconds), t.threads, t.kernels));
    list += entry("read, written", fmt::format("{}, {}", human_bytes(t.bytes_read), human_bytes(t.bytes_written)));
    if (t.resumed_tensors > 0)
        list += entry("resumed",
                      fmt::format("{} tensors were already finished and intact", human_count(t.resumed_tensors)));
    list += entry("finished", t.finished_at);
    return fmt::format("<section><h2>This run</h2>\n<dl>{}</dl>{}</section>\n", list, kv_table(r));
}

}  // namespace nibble
