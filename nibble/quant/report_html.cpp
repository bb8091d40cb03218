#include "quant/report_html.h"

#include "page/html.h"
#include "quant/report_summary.h"

#include <fmt/format.h>

#include <unordered_map>

namespace nibble {
namespace {

constexpr size_t worst_listed = 20;

// Returns null if no tensor has a finite SQNR.
Json range_json(const SqnrRange& range) {
    if (!range.measured()) return nullptr;
    return {{"low", rounded(range.low)},
            {"median", rounded(range.median)},
            {"mean", rounded(range.mean)},
            {"high", rounded(range.high)}};
}

Json all_sqnr(const QuantReport& report) {
    std::vector<double> decibels;
    for (const TensorReport& t : report.tensors)
        if (t.quantized()) decibels.push_back(t.sqnr_db());
    return range_json(sqnr_range(std::move(decibels)));
}

Json formats_json(const QuantReport& report) {
    Json list = Json::array();
    for (const FormatSummary& f : summarize_formats(report)) {
        Json& format = list.emplace_back(Json{{"label", f.label},
                                              {"format", format_name(f.format)},
                                              {"quantized", f.quantized},
                                              {"tensors", f.tensors},
                                              {"elements", f.elements},
                                              {"source_bytes", f.source_bytes},
                                              {"stored_bytes", f.stored_bytes}});
        if (!f.quantized) continue;
        const FormatLayout layout = format_layout(f.format);
        format.update(Json{{"zeros", f.zeros},
                           {"saturated", f.saturated},
                           {"sign_flips", f.sign_flips},
                           {"squared_weight", f.squared_weight},
                           {"squared_error", f.squared_error},
                           {"code_bits", layout.code_bits},
                           {"codes", f.codes},
                           {"scale_type", layout.block == 0    ? "none"
                                          : layout.e8m0_scales ? "e8m0"
                                                               : "e4m3"},
                           {"scales", f.scales}});
    }
    return list;
}

// A layer is [number, tensors, lossless tensors, lowest, median, highest SQNR].
Json roles_json(const QuantReport& report) {
    Json list = Json::array();
    for (const RoleSummary& r : summarize_roles(report)) {
        Json layers = Json::array();
        for (const auto& [layer, sqnr] : r.layers) {
            Json& entry = layers.emplace_back(Json{layer, sqnr.tensors, sqnr.lossless});
            if (!sqnr.measured()) continue;
            for (const double value : {sqnr.low, sqnr.median, sqnr.high}) entry.push_back(rounded(value));
        }
        list.push_back({{"role", r.role},
                        {"format", format_name(r.format)},
                        {"tensors", r.tensors},
                        {"elements", r.elements},
                        {"squared_weight", r.squared_weight},
                        {"squared_error", r.squared_error},
                        {"sqnr", range_json(r.sqnr)},
                        {"layers", std::move(layers)}});
    }
    return list;
}

Json worst_json(const QuantReport& report) {
    Json list = Json::array();
    for (const size_t i : worst_tensors(report, worst_listed)) {
        const TensorReport& t = report.tensors[i];
        const TensorPlace place = place_of(t.name);
        list.push_back({{"name", t.name},
                        {"layer", place.layer},
                        {"expert", place.expert},
                        {"role", place.role},
                        {"format", format_name(t.format)},
                        {"squared_weight", t.squared_weight},
                        {"squared_error", t.squared_error},
                        {"max_error", t.max_error},
                        {"amax", t.amax},
                        {"elements", t.elements},
                        {"zeros", t.zeros},
                        {"saturated", t.saturated},
                        {"sign_flips", t.sign_flips}});
    }
    return list;
}

Json raised_json(const QuantReport& report) {
    Json layers = Json::array();
    for (const RaisedSummary& l : summarize_raised(report))
        layers.push_back({{"layer", l.layer}, {"raised", l.raised}, {"blocks", l.blocks}});
    return {{"four_over_six", raised_is_four_over_six(report)}, {"layers", std::move(layers)}};
}

Json carried_json(const QuantReport& report) {
    Json list = Json::array();
    for (const CarriedReason& r : summarize_carried(report)) {
        Json patterns = Json::array();
        for (const CarriedPattern& p : r.patterns)
            patterns.push_back({{"pattern", p.pattern},
                                {"dtype", p.dtype},
                                {"tensors", p.tensors},
                                {"elements", p.elements},
                                {"bytes", p.bytes}});
        list.push_back({{"reason", r.reason},
                        {"tensors", r.tensors},
                        {"elements", r.elements},
                        {"bytes", r.bytes},
                        {"patterns", std::move(patterns)}});
    }
    return list;
}

// One tensor, or the experts of one layer and role with the same plan.
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

// "sqnr" is absent in rows of unchanged tensors, and empty if all tensors are lossless.
Json plan_rows_json(const QuantReport& report) {
    Json list = Json::array();
    for (const PlanRow& row : plan_rows(report)) {
        const TensorReport& t = *row.first;
        Json& entry = list.emplace_back(Json{{"name", row.name},
                                             {"tensors", row.tensors},
                                             {"dtype", dtype_name(t.dtype)},
                                             {"shape", t.shape},
                                             {"elements", row.elements},
                                             {"stored_bytes", row.stored_bytes},
                                             {"reason", t.reason}});
        if (t.activation != ActivationFormat::none) entry["activation"] = activation_name(t.activation);
        if (!t.quantized()) continue;
        entry["method"] = t.method;
        const SqnrRange range = sqnr_range(row.decibels);
        entry["sqnr"] = Json::array();
        if (range.measured()) entry["sqnr"] = {rounded(range.low), rounded(range.high)};
    }
    return list;
}

}  // namespace

std::string render_html(const QuantReport& report) {
    Json head = to_json_without_tensors(report);
    head.erase("plan");
    Json summary{{"name", report_name(report)},
                 {"sqnr_note", chose_by_outputs(report) ? sqnr_is_not_the_aim : std::string_view()},
                 {"sqnr", all_sqnr(report)},
                 {"formats", formats_json(report)},
                 {"roles", roles_json(report)},
                 {"worst", worst_json(report)},
                 {"raised", raised_json(report)},
                 {"carried", carried_json(report)},
                 {"plan", plan_rows_json(report)}};
    return document(fmt::format("{} – nibble report", report_name(report)), "quantization",
                    {{"report", std::move(head)}, {"summary", std::move(summary)}});
}

}  // namespace nibble
