#include "jobs/kernel_table.h"

#include "base/utf8.h"
#include "formats/format.h"
#include "http/message.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <tuple>

namespace nibble {
namespace {

using KernelCells = std::array<std::string, 6>;  // modules, shape, weights, inputs, kernel, why

KernelCells cells_of(const KernelUse& use) {
    return {printable(fmt::format("{}", fmt::join(use.modules, ", "))),
            use.out_width ? fmt::format("[{}, {}]", use.out_width, use.in_width) : "",
            use.weights,
            use.inputs,
            use.choice.kernel,
            use.choice.why};
}

struct LayerSection {
    std::string prefix;  // "model.layers.*.mlp"
    std::vector<int> layers;
    std::vector<KernelCells> rows;
};

std::string without_number(const LayerKernels& layer) {
    std::string prefix = layer.prefix;
    const std::string number = fmt::format(".{}.", layer.layer);
    if (const size_t at = prefix.find(number); layer.layer >= 0 && at != prefix.npos)
        prefix.replace(at, number.size(), ".*.");
    return prefix;
}

std::vector<LayerSection> fold(const KernelTable& table) {
    std::vector<LayerSection> sections;
    for (const LayerKernels& layer : table.layers) {
        LayerSection one{.prefix = without_number(layer)};
        for (const KernelUse& use : layer.uses) one.rows.push_back(cells_of(use));
        auto at = std::ranges::find_if(
            sections, [&](const LayerSection& s) { return s.prefix == one.prefix && s.rows == one.rows; });
        if (at == sections.end()) at = sections.insert(sections.end(), std::move(one));
        if (layer.layer >= 0) at->layers.push_back(layer.layer);
    }
    // Tensors may be sorted by name, with layer 10 before layer 2.
    for (LayerSection& section : sections) std::ranges::sort(section.layers);
    return sections;
}

// Returns "0-3, 5".
std::string ranges_text(const std::vector<int>& numbers) {
    std::string text;
    for (size_t i = 0; i < numbers.size();) {
        size_t last = i;
        while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
        text += fmt::format("{}{}", text.empty() ? "" : ", ", numbers[i]);
        if (last > i) text += fmt::format("-{}", numbers[last]);
        i = last + 1;
    }
    return text;
}

}  // namespace

std::string kernels_text(const KernelTable& table) {
    const std::vector<LayerSection> sections = fold(table);
    KernelCells heads{"module", "shape", "weights", "inputs", "kernel", "why"};
    std::array<size_t, 5> widths{};
    for (size_t c = 0; c < widths.size(); ++c) {
        widths[c] = heads[c].size();
        for (const LayerSection& s : sections)
            for (const KernelCells& row : s.rows) widths[c] = std::max(widths[c], row[c].size());
    }
    const auto line = [&](const KernelCells& row) {
        std::string text = " ";
        for (size_t c = 0; c < widths.size(); ++c) text += fmt::format(" {:<{}} ", row[c], widths[c]);
        return text + " " + row.back() + "\n";
    };
    std::string text = fmt::format("{}: kernels of a step of {} token{}\n\n{}", table.device, table.tokens,
                                   table.tokens == 1 ? "" : "s", line(heads));
    for (const LayerSection& s : sections) {
        text += "\n";
        if (!s.layers.empty())
            text += fmt::format("layer{} {}  ", s.layers.size() == 1 ? "" : "s", ranges_text(s.layers));
        text += printable(s.prefix) + "\n";
        for (const KernelCells& row : s.rows) text += line(row);
    }
    return text;
}

Json kernels_json(const KernelTable& table) {
    Json layers = Json::array();
    for (const LayerKernels& layer : table.layers) {
        Json uses = Json::array();
        for (const KernelUse& use : layer.uses) {
            Json one{{"modules", use.modules},
                     {"inputs", use.inputs},
                     {"kernel", use.choice.kernel},
                     {"why", use.choice.why}};
            if (use.out_width > 0) one["shape"] = {use.out_width, use.in_width}, one["weights"] = use.weights;
            uses.push_back(std::move(one));
        }
        Json one{{"prefix", layer.prefix}, {"kernels", std::move(uses)}};
        if (layer.layer >= 0) one["layer"] = layer.layer;
        layers.push_back(std::move(one));
    }
    return Json{{"device", table.device}, {"tokens", table.tokens}, {"layers", std::move(layers)}};
}

KernelTable cpu_kernel_table(const Checkpoint& checkpoint, const std::string& kernels, const std::string& inputs,
                             bool weights_only) {
    KernelTable table{.device = kernels};
    for (const CheckpointTensor& t : checkpoint.tensors()) {
        if (t.shape.size() < 2) continue;
        std::string_view name = t.name;
        if (name.ends_with(".weight")) name.remove_suffix(7);
        LayerKernels place;
        std::string module;
        for (size_t at = 0; at <= name.size();) {  // the first number is that of the layer, others are those of experts
            std::string part(name.substr(at, name.find('.', at) - at));
            at += part.size() + 1;
            const bool number = !part.empty() && part.size() < 9 &&
                                std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
            if (number && place.layer < 0)
                place.layer = std::stoi(part);
            else if (number)
                part = "*";
            if (at <= name.size())
                place.prefix += (place.prefix.empty() ? "" : ".") + part;
            else
                module = part;
        }
        if (place.prefix.empty()) place.prefix = module;
        auto layer = std::ranges::find_if(
            table.layers, [&](const LayerKernels& l) { return l.layer == place.layer && l.prefix == place.prefix; });
        if (layer == table.layers.end()) layer = table.layers.insert(table.layers.end(), std::move(place));
        const std::string weights = t.quantized() ? std::string(format_name(t.format)) : lower_case(t.stored_type);
        const bool quantized_inputs = t.activation != ActivationFormat::none && !weights_only;
        const std::string its_inputs = quantized_inputs ? std::string(activation_name(t.activation)) : inputs;
        auto use = std::ranges::find_if(
            layer->uses, [&](const KernelUse& u) { return u.weights == weights && u.inputs == its_inputs; });
        if (use == layer->uses.end())
            use = layer->uses.insert(
                layer->uses.end(), {.modules = {}, .weights = weights, .inputs = its_inputs, .choice = {kernels, ""}});
        if (std::ranges::find(use->modules, module) == use->modules.end()) use->modules.push_back(module);
    }
    return table;
}

Json folded_kernels_json(const KernelTable& table) {
    Json rows = Json::array();
    for (const LayerSection& section : fold(table)) {
        std::string place = section.prefix;
        if (const size_t star = place.find(".*."); star != place.npos && !section.layers.empty())
            place.erase(0, star + 3);
        for (const KernelCells& row : section.rows)
            rows.push_back({{"layers", ranges_text(section.layers)},
                            {"module", place == row[0] ? place : place + " " + row[0]},
                            {"weights", row[2]},
                            {"inputs", row[3]},
                            {"kernel", row[4]}});
    }
    return rows;
}

std::vector<std::string> folded_kernels_lines(const Json& folded) {
    std::vector<std::pair<std::string, std::string>> lines;  // pairs of (description, modules)
    for (const Json& row : folded) {
        const auto text = [&](const char* name) { return row[name].get<std::string>(); };
        std::string what = text("layers").empty() ? ""
                           : text("layers").find_first_of("-,") == std::string::npos
                               ? "layer " + text("layers") + ": "
                               : "layers " + text("layers") + ": ";
        const std::string how =
            fmt::format("{}{} inputs, {}", text("weights").empty() ? "" : text("weights") + " weights, ",
                        text("inputs"), text("kernel"));
        const auto key = what + "\n" + how;
        const auto at = std::ranges::find(lines, key, &std::pair<std::string, std::string>::first);
        if (at == lines.end())
            lines.emplace_back(key, text("module"));
        else
            at->second += "; " + text("module");
    }
    std::vector<std::string> out;
    for (const auto& [key, modules] : lines) {
        const size_t cut = key.find('\n');
        out.push_back(printable(key.substr(0, cut) + modules + " -> " + key.substr(cut + 1)));
    }
    return out;
}

}  // namespace nibble
