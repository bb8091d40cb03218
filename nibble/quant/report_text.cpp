#include "quant/report_text.h"

#include "base/utf8.h"
#include "quant/report_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace nibble {
namespace {

constexpr size_t worst_printed = 5;

// Returns the terminal columns of a UTF-8 text, assuming no wide characters.
size_t columns(std::string_view text) {
    return size_t(std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

using Row = std::vector<std::string>;

// Returns a table with the first columns left-aligned, the others right-aligned, and two spaces between columns.
std::string table(const std::vector<Row>& rows, size_t left_columns = 1) {
    std::vector<size_t> width;
    for (const Row& row : rows) {
        width.resize(std::max(width.size(), row.size()));
        for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], columns(row[i]));
    }
    std::string out;
    for (const Row& row : rows) {
        std::string line = "  ";
        for (size_t i = 0; i < row.size(); ++i) {
            const std::string pad(width[i] - columns(row[i]), ' ');
            line += fmt::format("{}{}{}", i > 0 ? "  " : "", i < left_columns ? row[i] : pad,
                                i < left_columns ? pad : row[i]);
        }
        line.erase(line.find_last_not_of(' ') + 1);
        out += line + '\n';
    }
    return out;
}

std::string sizes(const QuantReport& r) {
    const ReportTotals t = r.totals();
    std::vector<Row> rows{
        {"format", "tensors", "weights", "before", "after", "bits/weight", "SQNR dB", "zeroed", "saturated", "flips"}};
    for (const FormatSummary& f : summarize_formats(r)) {
        Row row{f.label,
                human_count(f.tensors),
                human_large(f.elements),
                human_bytes(f.source_bytes),
                human_bytes(f.stored_bytes),
                fmt::format("{:.3f}", f.bits_per_element())};
        if (f.quantized)
            row.insert(row.end(), {human_db(f.pooled_db()), human_share(f.zeros, f.elements), human_count(f.saturated),
                                   human_count(f.sign_flips)});
        rows.push_back(std::move(row));
    }
    Row total{"total",
              human_count(t.tensors),
              human_large(t.elements),
              human_bytes(t.source_bytes),
              human_bytes(t.stored_bytes),
              fmt::format("{:.3f}", t.bits_per_element)};
    if (t.quantized_tensors > 0)
        total.insert(total.end(), {human_db(t.sqnr_db), human_share(t.zeros, t.quantized_elements),
                                   human_count(t.saturated), human_count(t.sign_flips)});
    rows.push_back(std::move(total));
    return table(rows);
}

std::string by_role(const QuantReport& r) {
    std::vector<Row> rows{{"role", "format", "tensors", "SQNR dB", "lowest", "median", "highest"}};
    for (const RoleSummary& role : summarize_roles(r)) {
        Row row{printable(role.role), std::string(format_name(role.format)), human_count(role.tensors),
                human_db(role.pooled_db())};
        if (role.sqnr.measured())
            row.insert(row.end(), {human_db(role.sqnr.low), human_db(role.sqnr.median), human_db(role.sqnr.high)});
        rows.push_back(std::move(row));
    }
    return rows.size() > 1 ? fmt::format("\n{}", table(rows, 2)) : "";
}

std::string worst(const QuantReport& r) {
    const std::vector<size_t> indices = worst_tensors(r, worst_printed);
    if (indices.empty()) return {};
    std::vector<Row> rows{{"worst", "SQNR dB", "zeroed", "saturated", "flips"}};
    for (size_t i : indices) {
        const TensorReport& t = r.tensors[i];
        rows.push_back({printable(t.name), human_db(t.sqnr_db()), human_share(t.zeros, t.elements),
                        human_count(t.saturated), human_count(t.sign_flips)});
    }
    return fmt::format("\n{}", table(rows));
}

// Returns "32 s in all, 31 s of it calibration; ".
std::string whole_time(const ReportTiming& t) {
    if (t.whole_seconds <= 0) return {};
    if (t.calibration_seconds <= 0) return fmt::format("{} in all; ", human_seconds(t.whole_seconds));
    return fmt::format("{} in all, {} of it calibration; ", human_seconds(t.whole_seconds),
                       human_seconds(t.calibration_seconds));
}

}  // namespace

std::string report_text(const QuantReport& r) {
    const ReportTotals t = r.totals();
    std::string out = fmt::format("{}: {} -> {}", printable(report_name(r)), human_bytes(t.source_bytes),
                                  human_bytes(t.stored_bytes));
    if (t.stored_bytes > 0)
        out += fmt::format(", {:.2f} times smaller", double(t.source_bytes) / double(t.stored_bytes));
    if (t.quantized_tensors > 0) out += fmt::format(", {:.3f} bits per quantized weight", t.quantized_bits_per_element);
    out += fmt::format("\n{}\n\n", printable(r.recipe));
    out += sizes(r) + by_role(r) + worst(r);

    int64_t raised = 0, blocks = 0;
    for (const RaisedSummary& l : summarize_raised(r)) raised += l.raised, blocks += l.blocks;
    out += "\n";
    if (raised > 0)
        out += fmt::format("  {} of {} blocks ({}) {}\n", human_count(raised), human_count(blocks),
                           human_share(raised, blocks),
                           raised_is_four_over_six(r) ? "chose four instead of six" : "chose a raised scale");
    if (r.timing.seconds > 0)
        out += fmt::format("  {}quantized in {} at {:.2f} GB/s, {} threads, {}; peak memory {}\n", whole_time(r.timing),
                           human_seconds(r.timing.seconds), r.timing.gigabytes_per_second, r.timing.threads,
                           printable(r.timing.kernels), human_bytes(r.timing.peak_anonymous_bytes));
    if (const OutputSummary o = summarize_outputs(r); o.linears > 0)
        out +=
            fmt::format("  outputs of {} layers on the calibration text: {} dB with nearest codes, {} dB as solved\n",
                        human_count(o.linears), human_db(o.before_db), human_db(o.after_db));
    if (chose_by_outputs(r)) out += fmt::format("  {}\n", sqnr_is_not_the_aim);
    out +=
        r.timing.verified.empty() ? "  not verified\n" : fmt::format("  verified: {}\n", printable(r.timing.verified));
    for (const std::string& w : r.warnings) out += fmt::format("  warning: {}\n", printable(w));
    for (const CalibrationGap& g : r.gaps) out += fmt::format("  calibration: {}\n", printable(g.text));
    return out;
}

}  // namespace nibble
