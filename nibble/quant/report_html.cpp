#include "quant/report_html.h"

#include "page/html.h"
#include "page/svg.h"
#include "quant/report_page.h"
#include "quant/report_summary.h"

#include <fmt/format.h>

#include <cmath>

namespace nibble {

namespace {

std::string headline(const QuantReport& r) {
    const auto dialect = r.settings.find("dialect");
    std::string meta = fmt::format("<span>{}</span>", escape_html(r.recipe));
    if (dialect != r.settings.end() && dialect->is_string())
        meta += fmt::format("<span>{} checkpoint</span>", escape_html(dialect->get<std::string>()));
    if (r.kv != KvFormat::none) meta += fmt::format("<span>KV cache {}</span>", kv_name(r.kv));
    if (r.weights_only) meta += "<span>weights only</span>";
    meta += r.timing.verified.empty() ? "<span class=\"badge warn\">Not verified</span>"
                                      : fmt::format("<span class=\"badge good\" title=\"{}\">✓ Verified</span>",
                                                    escape_html(r.timing.verified));
    if (!r.warnings.empty())
        meta += fmt::format("<a class=\"badge warn\" href=\"#warnings\">{} warning{}</a>", r.warnings.size(),
                            r.warnings.size() == 1 ? "" : "s");
    return fmt::format(
        "<header><div class=\"kicker\">nibble · quantization report</div>\n<h1>{}</h1>\n<div "
        "class=\"meta\">{}</div></header>\n",
        escape_html(report_name(r)), meta);
}

std::string cards(const QuantReport& r) {
    const ReportTotals t = r.totals();
    const ReportTiming& timing = r.timing;
    std::vector<double> decibels;
    for (const TensorReport& tensor : r.tensors)
        if (tensor.quantized()) decibels.push_back(tensor.sqnr_db());
    const SqnrRange range = sqnr_range(std::move(decibels));

    std::string out = "<div class=\"cards\">\n";
    const double smaller = t.stored_bytes ? double(t.source_bytes) / double(t.stored_bytes) : 0;
    out +=
        card("Size of the weights",
             fmt::format("{} → {}", with_units(human_bytes(t.source_bytes)), with_units(human_bytes(t.stored_bytes))),
             fmt::format("{:.2f}× smaller · {} weights in {} tensors", smaller, human_large(t.elements),
                         human_count(t.tensors)),
             true);
    out += card("Bits per weight", fmt::format("{:.2f}", t.quantized_bits_per_element),
                fmt::format("of the {} quantized tensors; {:.2f} over all", human_count(t.quantized_tensors),
                            t.bits_per_element));
    if (range.measured()) {
        out += card("SQNR of all weights", with_units(fmt::format("{} dB", human_db(t.sqnr_db))),
                    fmt::format("mean of tensors {} dB, median {} dB", human_db(range.mean), human_db(range.median)));
        const TensorReport& worst = r.tensors[worst_tensors(r, 1).front()];
        const TensorPlace place = place_of(worst.name);
        std::string where = escape_html(place.role);
        if (place.expert >= 0) where = fmt::format("{} {}", where, place.expert);
        if (place.layer >= 0) where = fmt::format("layer {}, {}", place.layer, where);
        out += card("Lowest SQNR of a tensor", with_units(fmt::format("{} dB", human_db(range.low))), where);
    } else {
        out += card("SQNR of all weights", t.quantized_tensors ? "∞" : "–",
                    t.quantized_tensors ? "no weight changed" : "nothing was quantized");
    }
    if (timing.seconds > 0) {
        const bool whole = timing.whole_seconds > 0;
        std::string parts = fmt::format("{} threads, {} kernels", timing.threads, escape_html(timing.kernels));
        if (whole) parts = fmt::format("quantizing {}; {}", human_seconds(timing.seconds), parts);
        if (timing.calibration_seconds > 0)
            parts = fmt::format("calibration {}, {}", human_seconds(timing.calibration_seconds), parts);
        out += card(whole ? "Time of the whole job" : "Time",
                    with_units(human_seconds(whole ? timing.whole_seconds : timing.seconds)), parts);
        out += card("Throughput", with_units(fmt::format("{:.2f} GB/s", timing.gigabytes_per_second)),
                    "of source weights");
        out += card("Peak memory", with_units(human_bytes(timing.peak_anonymous_bytes)),
                    fmt::format("{} with the page cache", human_bytes(timing.peak_resident_bytes)));
    }
    return out + "</div>\n";
}

std::string composition(const QuantReport& r) {
    const std::vector<FormatSummary> formats = summarize_formats(r);
    const ReportTotals t = r.totals();
    if (formats.empty()) return "<section><h2>What is in the export</h2><p class=\"note\">No tensors.</p></section>\n";
    std::string bar, rows;
    for (const FormatSummary& f : formats) {
        const std::string share = human_share(f.stored_bytes, t.stored_bytes);
        bar += fmt::format(
            "<div class=\"{}\" style=\"flex:{} 1 0\" title=\"{}: {}, {} of the export\"><span>{}</span></div>",
            f.quantized ? format_style(f.format) : "plain", f.stored_bytes, escape_html(f.label),
            human_bytes(f.stored_bytes), escape_html(share),
            double(f.stored_bytes) >= 0.12 * double(t.stored_bytes)
                ? fmt::format("{} {}", escape_html(f.label), escape_html(share))
                : "");
        rows += fmt::format("<tr><td class=\"l\"><span class=\"swatch {}\"></span>{}</td>",
                            f.quantized ? format_style(f.format) : "plain", escape_html(f.label));
        for (const std::string& text :
             {human_count(f.tensors), human_large(f.elements), human_bytes(f.source_bytes), human_bytes(f.stored_bytes),
              share, fmt::format("{:.3f}", f.bits_per_element()), f.quantized ? human_db(f.pooled_db()) : "",
              f.quantized ? human_share(f.zeros, f.elements) : "", f.quantized ? human_count(f.saturated) : "",
              f.quantized ? human_count(f.sign_flips) : ""})
            rows += cell(text);
        rows += "</tr>\n";
    }
    rows += "<tr class=\"total\"><td class=\"l\">total</td>";
    for (const std::string& text :
         {human_count(t.tensors), human_large(t.elements), human_bytes(t.source_bytes), human_bytes(t.stored_bytes),
          std::string("100%"), fmt::format("{:.3f}", t.bits_per_element),
          t.quantized_tensors ? human_db(t.sqnr_db) : "", human_share(t.zeros, t.quantized_elements),
          human_count(t.saturated), human_count(t.sign_flips)})
        rows += cell(text);
    rows += "</tr>\n";
    return fmt::format("<section><h2>What is in the export</h2>\n<div class=\"composition\">{}</div>\n{}</section>\n",
                       bar,
                       table({},
                             {"<format", "tensors", "weights", "before", "after", "share", "bits per weight",
                              "SQNR, dB", "became zero", "saturated", "sign flips"},
                             rows));
}

}  // namespace

std::string render_html(const QuantReport& r) {
    std::string page = headline(r);
    page += cards(r);
    page += composition(r);
    page += sqnr_section(r);
    page += outputs_section(r);
    page += distribution_section(r);
    page += raised_section(r);
    page += worst_section(r);
    page += carried_section(r);
    page += plan_section(r);
    page += warnings_section(r);
    page += gaps_section(r);
    page += run_section(r);
    return document(fmt::format("{} – nibble report", report_name(r)), page);
}

}  // namespace nibble
