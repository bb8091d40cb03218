#include "cli/inspect_kernels.h"

#include "base/utf8.h"

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
    return sections;
}

// "0-3, 5"
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

}  // namespace nibble
