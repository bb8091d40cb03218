#include "quant/quantized_card.h"

#include "quant/report_summary.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

std::string decibels_or_lossless(double db) { return std::isfinite(db) ? fmt::format("{:.2f} dB", db) : "lossless"; }

std::string format_table(const QuantReport& report) {
    std::string rows;
    for (const FormatSummary& f : summarize_formats(report))
        rows += fmt::format("| {} | {} | {} | {:.3f} | {} |\n", f.label, f.tensors, human_bytes(f.stored_bytes),
                            f.bits_per_element(), f.quantized ? decibels_or_lossless(f.pooled_db()) : "");
    return "| format | tensors | size | bits per weight | SQNR |\n|---|---|---|---|---|\n" + rows;
}

std::string loss_text(const QuantReport& report) {
    std::string text =
        "SQNR is the energy of the weights divided by the energy of their rounding errors. Every tensor was read back "
        "and compared with the computed one.\n";
    if (const OutputSummary o = summarize_outputs(report); o.linears > 0)
        text += fmt::format("\nOutputs of {} layers on the calibration text: {} with nearest codes, {} as solved.\n",
                            o.linears, decibels_or_lossless(o.before_db), decibels_or_lossless(o.after_db));
    if (!report.gaps.empty()) text += "\nTensors without usable calibration data:\n\n";
    for (const CalibrationGap& g : report.gaps) text += fmt::format("- {}\n", g.text);
    return text;
}

}  // namespace

ModelCard quantized_card(const QuantReport& report, Dialect dialect, std::string title, std::string base_model,
                         std::string command) {
    const ReportTotals t = report.totals();
    ModelCard card{.title = std::move(title),
                   .base_model = std::move(base_model),
                   .relation = "quantized",
                   .library = std::string(card_library(dialect)),
                   .tags = {"nibble", "quantized", std::string(dialect_name(dialect))},
                   .command = std::move(command)};
    for (const FormatSummary& f : summarize_formats(report))
        if (f.quantized && std::ranges::find(card.tags, f.label) == card.tags.end()) card.tags.push_back(f.label);
    card.facts = {{"made from", card.base_model},
                  {"recipe", report.recipe},
                  {"quantized", fmt::format("{} of {} tensors, {:.3f} bits per quantized weight", t.quantized_tensors,
                                            t.tensors, t.quantized_bits_per_element)},
                  {"size", fmt::format("{}, from {}", human_bytes(t.stored_bytes), human_bytes(t.source_bytes))},
                  {"loss", fmt::format("SQNR {} over all quantized weights", decibels_or_lossless(t.sqnr_db))}};
    if (report.kv != KvFormat::none) card.facts.emplace_back("KV cache", std::string(kv_name(report.kv)));
    card.text = format_table(report) + "\n" + loss_text(report);
    return card;
}

}  // namespace nibble
