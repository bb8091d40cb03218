#include "quant/report_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <unordered_map>

namespace nibble {
namespace {

std::vector<std::string_view> split(std::string_view name) {
    std::vector<std::string_view> parts;
    for (size_t dot; (dot = name.find('.')) != std::string_view::npos; name.remove_prefix(dot + 1))
        parts.push_back(name.substr(0, dot));
    parts.push_back(name);
    return parts;
}

bool is_number(std::string_view part) {
    return !part.empty() && part.size() <= 6 && part.find_first_not_of("0123456789") == std::string_view::npos;
}

int to_number(std::string_view part) {
    int value = 0;
    for (char c : part) value = value * 10 + (c - '0');
    return value;
}

bool is_experts(std::string_view part) { return part.ends_with("experts"); }

std::string join(const std::vector<std::string_view>& parts, size_t begin, size_t end) {
    std::string text;
    for (size_t i = begin; i < end; ++i) {
        if (i > begin) text += '.';
        text += parts[i];
    }
    return text;
}

// Returns the common short name of a linear in a transformer block; empty: there is none.
std::string_view short_role(std::string_view part) {
    static constexpr std::array<std::pair<std::string_view, std::string_view>, 11> names{{{"q_proj", "q"},
                                                                                          {"k_proj", "k"},
                                                                                          {"v_proj", "v"},
                                                                                          {"o_proj", "o"},
                                                                                          {"gate_proj", "gate"},
                                                                                          {"up_proj", "up"},
                                                                                          {"down_proj", "down"},
                                                                                          {"gate_up_proj", "gate_up"},
                                                                                          {"w1", "gate"},
                                                                                          {"w3", "up"},
                                                                                          {"w2", "down"}}};
    for (const auto& [name, role] : names)
        if (part == name) return role;
    return {};
}

int role_rank(std::string_view role) {
    static constexpr std::array<std::string_view, 7> first{"q", "k", "v", "o", "gate", "up", "down"};
    const auto found = std::ranges::find(first, role);
    return found == first.end() ? int(first.size()) : int(found - first.begin());
}

}  // namespace

TensorPlace place_of(std::string_view name) {
    if (name.ends_with(".weight")) name.remove_suffix(7);
    const std::vector<std::string_view> parts = split(name);
    size_t layer = 0;
    while (layer < parts.size() && !is_number(parts[layer])) ++layer;
    if (layer == parts.size() || layer == 0 || is_experts(parts[layer - 1])) return {.role = std::string(name)};

    TensorPlace place{.layer = to_number(parts[layer])};
    const std::string tower = join(parts, 0, layer);
    const bool main_tower = tower == "model.layers" || tower == "layers" || tower == "backbone.layers" ||
                            tower.ends_with("language_model.layers") || tower.ends_with("language_model.model.layers");
    if (!main_tower) place.role = std::string(parts[tower.starts_with("model.") && layer > 2 ? 1 : 0]) + " ";

    bool shared = false;
    std::string rest;
    for (size_t i = layer + 1; i < parts.size(); ++i) {
        if (is_experts(parts[i]) && i + 1 < parts.size() && is_number(parts[i + 1]))
            place.expert = to_number(parts[++i]);
        else if (!rest.empty())
            rest += '.', rest += parts[i];
        else
            rest = parts[i];
        shared |= parts[i].starts_with("shared_expert");
    }
    const std::string_view known = short_role(parts.back());
    if (place.expert >= 0)
        place.role += "expert ";
    else if (shared && !known.empty())
        place.role += "shared ";
    place.role += known.empty() ? std::string_view(rest) : known;
    return place;
}

std::string name_pattern(std::string_view name, Wildcards which) {
    std::string out;
    std::string_view previous;
    for (std::string_view part : split(name)) {
        if (previous.data()) out += '.';
        if (is_number(part) && (which == Wildcards::all || is_experts(previous)))
            out += '*';
        else
            out += part;
        previous = part;
    }
    return out;
}

SqnrRange sqnr_range(std::vector<double> decibels) {
    SqnrRange range{.tensors = int64_t(decibels.size())};
    range.lossless = std::erase_if(decibels, [](double d) { return !std::isfinite(d); });
    if (decibels.empty()) return range;
    std::ranges::sort(decibels);
    const size_t n = decibels.size();
    range.low = decibels.front();
    range.high = decibels.back();
    range.median = n % 2 ? decibels[n / 2] : (decibels[n / 2 - 1] + decibels[n / 2]) / 2;
    for (double d : decibels) range.mean += d / double(n);
    return range;
}

double ratio_db(double squared_weight, double squared_error) {
    if (squared_error <= 0) return std::numeric_limits<double>::infinity();
    return 10 * std::log10(squared_weight / squared_error);
}

double RoleSummary::pooled_db() const { return ratio_db(squared_weight, squared_error); }
double FormatSummary::pooled_db() const { return ratio_db(squared_weight, squared_error); }
double FormatSummary::bits_per_element() const { return elements ? 8.0 * double(stored_bytes) / double(elements) : 0; }

std::vector<RoleSummary> summarize_roles(const QuantReport& report) {
    struct Collected {
        RoleSummary summary;
        std::vector<double> all;
        std::map<int, std::vector<double>> layers;
    };
    std::vector<Collected> roles;
    std::unordered_map<std::string, size_t> index;
    for (const TensorReport& t : report.tensors) {
        if (!t.quantized()) continue;
        const TensorPlace place = place_of(t.name);
        const auto [slot, added] =
            index.try_emplace(fmt::format("{}\n{}", format_name(t.format), place.role), roles.size());
        if (added) roles.push_back({.summary = {.role = place.role, .format = t.format}});
        Collected& c = roles[slot->second];
        ++c.summary.tensors;
        c.summary.elements += t.elements;
        c.summary.squared_error += t.squared_error;
        c.summary.squared_weight += t.squared_weight;
        c.all.push_back(t.sqnr_db());
        if (place.layer >= 0) c.layers[place.layer].push_back(c.all.back());
    }
    const std::vector<FormatSummary> formats = summarize_formats(report);
    const auto rank = [&](const Collected& c) {
        const auto is_its = [&](const FormatSummary& f) { return f.quantized && f.format == c.summary.format; };
        return std::pair(std::ranges::find_if(formats, is_its) - formats.begin(), role_rank(c.summary.role));
    };
    std::ranges::stable_sort(roles, {}, rank);
    std::vector<RoleSummary> summaries;
    for (Collected& c : roles) {
        c.summary.sqnr = sqnr_range(std::move(c.all));
        for (auto& [layer, decibels] : c.layers) c.summary.layers.push_back({layer, sqnr_range(std::move(decibels))});
        summaries.push_back(std::move(c.summary));
    }
    return summaries;
}

std::vector<FormatSummary> summarize_formats(const QuantReport& report) {
    std::vector<FormatSummary> formats;
    for (const TensorReport& t : report.tensors) {
        std::string label(t.format == Format::none ? dtype_name(t.dtype) : format_name(t.format));
        if (t.format != Format::none && !t.quantized()) label += " (as it was)";
        auto f = std::ranges::find(formats, label, &FormatSummary::label);
        if (f == formats.end())
            f = formats.insert(f, {.label = label,
                                   .format = t.format,
                                   .quantized = t.quantized(),
                                   .codes = std::vector<int64_t>(256),
                                   .scales = std::vector<int64_t>(256)});
        ++f->tensors;
        f->elements += t.elements;
        f->source_bytes += t.source_bytes;
        f->stored_bytes += t.stored_bytes;
        f->zeros += t.zeros;
        f->saturated += t.saturated;
        f->sign_flips += t.sign_flips;
        f->squared_error += t.squared_error;
        f->squared_weight += t.squared_weight;
        for (int i = 0; i < 256; ++i) {
            f->codes[size_t(i)] += t.codes.at(i);
            f->scales[size_t(i)] += t.scales.at(i);
        }
    }
    std::ranges::stable_sort(formats, [](const FormatSummary& a, const FormatSummary& b) {
        return a.quantized != b.quantized ? a.quantized : a.stored_bytes > b.stored_bytes;
    });
    return formats;
}

std::vector<RaisedSummary> summarize_raised(const QuantReport& report) {
    std::vector<std::string_view> methods;
    for (const TensorReport& t : report.tensors)
        if (t.raised_blocks > 0 && std::ranges::find(methods, t.method) == methods.end()) methods.push_back(t.method);
    std::map<int, RaisedSummary> layers;
    for (const TensorReport& t : report.tensors) {
        if (t.blocks == 0 || std::ranges::find(methods, t.method) == methods.end()) continue;
        const int layer = place_of(t.name).layer;
        RaisedSummary& r = layers.try_emplace(layer, RaisedSummary{.layer = layer}).first->second;
        r.raised += t.raised_blocks;
        r.blocks += t.blocks;
    }
    std::vector<RaisedSummary> raised;
    for (const auto& [layer, r] : layers) raised.push_back(r);
    return raised;
}

bool raised_is_four_over_six(const QuantReport& report) {
    return std::ranges::all_of(report.tensors, [](const TensorReport& t) {
        return t.raised_blocks == 0 || t.method.find("static/256") != std::string::npos;
    });
}

std::vector<CarriedReason> summarize_carried(const QuantReport& report) {
    std::vector<CarriedReason> reasons;
    std::unordered_map<std::string, std::pair<size_t, size_t>> index;  // (reason, pattern and dtype) -> positions
    std::unordered_map<std::string, size_t> reason_index;
    for (const TensorReport& t : report.tensors) {
        if (t.quantized()) continue;
        const auto [r, new_reason] = reason_index.try_emplace(t.reason, reasons.size());
        if (new_reason) reasons.push_back({.reason = t.reason});
        CarriedReason& reason = reasons[r->second];
        const std::string dtype(t.format == Format::none ? dtype_name(t.dtype) : format_name(t.format));
        std::string pattern = name_pattern(t.name, Wildcards::all);
        const auto [p, new_pattern] =
            index.try_emplace(fmt::format("{}\n{}\n{}", r->second, dtype, pattern), r->second, reason.patterns.size());
        if (new_pattern) reason.patterns.push_back({.pattern = std::move(pattern), .dtype = dtype});
        CarriedPattern& entry = reason.patterns[p->second.second];
        for (auto add : {std::tie(reason.tensors, reason.elements, reason.bytes),
                         std::tie(entry.tensors, entry.elements, entry.bytes)}) {
            std::get<0>(add) += 1;
            std::get<1>(add) += t.elements;
            std::get<2>(add) += t.stored_bytes;
        }
    }
    return reasons;
}

std::vector<size_t> worst_tensors(const QuantReport& report, size_t count) {
    std::vector<std::pair<double, size_t>> order;
    for (size_t i = 0; i < report.tensors.size(); ++i) {
        const TensorReport& t = report.tensors[i];
        if (t.quantized() && std::isfinite(t.sqnr_db())) order.emplace_back(t.sqnr_db(), i);
    }
    std::ranges::sort(order);
    std::vector<size_t> worst;
    for (const auto& [db, i] : order)
        if (worst.size() < count) worst.push_back(i);
    return worst;
}

// The energy of each linear is normalized to one, so that a large linear does not hide the others.
OutputSummary summarize_outputs(const QuantReport& report) {
    OutputSummary s;
    double before = 0, after = 0;
    for (const LayerOutputError& e : report.output_errors) {
        if (!(e.energy > 0)) continue;
        ++s.linears;
        before += e.before / e.energy;
        after += e.after / e.energy;
    }
    s.before_db = ratio_db(static_cast<double>(s.linears), before);
    s.after_db = ratio_db(static_cast<double>(s.linears), after);
    return s;
}

bool chose_by_outputs(const QuantReport& report) {
    if (report.settings.contains("awq_lite")) return true;
    return std::ranges::any_of(report.tensors, [](const TensorReport& t) {
        return t.method.find("gptq") != t.method.npos || t.method.find("local_hessian") != t.method.npos ||
               t.method.find("nibble_best") != t.method.npos;
    });
}

std::string report_name(const QuantReport& report) {
    std::string_view path = report.timing.output.empty() ? report.source : report.timing.output;
    while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
    const size_t slash = path.rfind('/');
    if (slash != std::string_view::npos && slash + 1 < path.size()) path.remove_prefix(slash + 1);
    return path.empty() ? "unnamed model" : std::string(path);
}

}  // namespace nibble
