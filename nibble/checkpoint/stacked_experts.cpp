#include "checkpoint/stacked_experts.h"

#include "checkpoint/stored_parts.h"
#include "checkpoint/text_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

namespace nibble {
namespace {

// A limit: names cost bytes in the file but experts of a stack do not, so a small file could otherwise declare any
// number.
constexpr int64_t max_experts = 1 << 16;

enum Projection : size_t { gate_up, gate, up, down, projections };
constexpr std::array<std::string_view, projections> projection_names{"gate_up_proj", "gate_proj", "up_proj",
                                                                     "down_proj"};

struct Layer {
    std::array<const StackTensor*, projections> tensors{};
    bool biased = false;
};

std::span<const int64_t> shape_of(const StackTensor& t) { return t.shape; }

// `holder`: the last part of the name of the module that holds the stacks. Returns `projections` if it is not a stack.
Projection projection_of(std::string_view holder, std::string_view name) {
    if (holder == "block_sparse_moe")
        return name == "input_linear" ? gate_up : name == "output_linear" ? down : projections;
    if (holder != "experts" && holder != "moe") return projections;
    return static_cast<Projection>(std::ranges::find(projection_names, name) - projection_names.begin());
}

// By the name of their module; ordered, so that messages do not depend on hashing.
std::map<std::string, Layer, std::less<>> find_layers(std::span<const StackTensor> candidates, const ModelFiles& files,
                                                      const PredictionLayers& prediction) {
    std::map<std::string, Layer, std::less<>> layers;
    for (const StackTensor& t : candidates) {
        const std::string_view module = module_of_tensor(t.name), parent = parent_name(module);
        const Projection projection = projection_of(last_name(parent), last_name(module));
        if (projection == projections || shape_of(t).size() != 3 || prediction.contains(t.name)) continue;
        layers[std::string(parent)].tensors[projection] = &t;
    }
    for (auto& [experts, layer] : layers)
        for (std::string_view projection : projection_names)
            for (std::string_view bias : {"_bias", ".bias"})
                layer.biased |= files.find(fmt::format("{}.{}{}", experts, projection, bias)) != nullptr;
    return layers;
}

// Returns true if every projection of the layer has the required shape: [out, in] relative to the hidden width, or
// transposed.
bool fits(const Layer& layer, bool transposed) {
    const auto outputs = [&](const StackTensor& t) { return shape_of(t)[transposed ? 2 : 1]; };
    const auto inputs = [&](const StackTensor& t) { return shape_of(t)[transposed ? 1 : 2]; };
    const int64_t hidden = outputs(*layer.tensors[down]), inner = inputs(*layer.tensors[down]);
    for (const Projection p : {gate_up, gate, up}) {
        const StackTensor* t = layer.tensors[p];
        if (!t) continue;
        const bool halves = p != gate_up || (outputs(*t) % 2 == 0 && outputs(*t) / 2 == inner);
        if (inputs(*t) != hidden || !halves || (p != gate_up && outputs(*t) != inner)) return false;
    }
    return true;
}

// Sets `transposed` and `matrix`. Returns why the layer can be neither split nor kept as matrices; empty: it can.
std::string decide(const Layer& layer, const Json& config, StackReading reading, ExpertStack& stack) {
    bool& transposed = stack.transposed;
    const Json* type = text_value(config, "model_type");
    const std::string architecture =
        type && type->is_string() ? fmt::format("{}: ", type->get_ref<const std::string&>()) : "";
    const bool gated = layer.tensors[gate_up] != nullptr;
    const bool interleaved = architecture.starts_with("gpt_oss");
    if (layer.biased && !interleaved) return fmt::format("{}experts with biases are not supported", architecture);
    if (!layer.tensors[down] || gated == (layer.tensors[up] != nullptr) || (gated && layer.tensors[gate]))
        return fmt::format(
            "{}a layer's experts are gate_up_proj and down_proj, or up_proj, down_proj and maybe gate_proj",
            architecture);
    const int64_t experts = shape_of(*layer.tensors[down])[0];
    for (const StackTensor* t : layer.tensors) {
        if (!t) continue;
        if (shape_of(*t)[0] != experts)
            return fmt::format("{}{} experts in one tensor of the layer, {} in another", architecture, shape_of(*t)[0],
                               experts);
        if (t->tensor->record->data.empty()) return fmt::format("{}experts without elements", architecture);
    }
    if (experts > max_experts)
        return fmt::format("{}{} experts, at most {} are supported", architecture, experts, max_experts);
    const auto any = [&](bool StackTensor::*flag) {
        return std::ranges::any_of(layer.tensors, [&](const StackTensor* t) { return t && t->*flag; });
    };
    const bool straight = !interleaved && fits(layer, false) && !any(&StackTensor::turned);
    transposed = fits(layer, true);
    if (!straight && !transposed)
        return fmt::format("{}the shapes of the layer's expert tensors do not match", architecture);
    if (straight && transposed) {  // without gate_up_proj both orientations fit
        const auto down_shape = shape_of(*layer.tensors[down]);
        const int64_t hidden = text_integer(config, "hidden_size");
        transposed = down_shape[2] == hidden;
        if ((down_shape[1] == hidden) == transposed)
            return fmt::format("{}hidden_size {} does not show which dimension is the inputs", architecture, hidden);
    }
    const bool kept = reading == StackReading::whole && architecture.starts_with("llama4");
    stack.matrix = interleaved || (transposed && (kept || any(&StackTensor::quantized)));
    return {};
}

template <class T>
void transpose(const std::byte* from, int64_t stride, int64_t rows, int64_t cols, std::byte* out) {
    constexpr int64_t columns = 32;  // rows of the panel that are written together: 32 lines of the L1 cache
    for (int64_t begin = 0; begin < cols; begin += columns) {
        const int64_t end = std::min(begin + columns, cols);
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = begin; c < end; ++c)
                std::memcpy(out + (r * cols + c) * int64_t{sizeof(T)}, from + (c * stride + r) * int64_t{sizeof(T)},
                            sizeof(T));
    }
}

}  // namespace

std::unordered_map<const ModelTensor*, ExpertStack> find_expert_stacks(std::span<const StackTensor> candidates,
                                                                       const ModelFiles& files, const Json& config,
                                                                       StackReading reading) {
    std::unordered_map<const ModelTensor*, ExpertStack> stacks;
    for (const auto& [experts, layer] : find_layers(candidates, files, PredictionLayers(config))) {
        // Step calls the module that holds the stacks "moe", Granite "block_sparse_moe"; other names of one matrix per
        // expert have "experts".
        ExpertStack stack{.experts = last_name(experts) != "experts" ? experts + ".experts" : experts};
        stack.whole = decide(layer, config, reading, stack);
        for (size_t p = 0; p < projections; ++p) {
            if (!layer.tensors[p]) continue;
            stack.projections = {projection_names[p]};
            if (p == gate_up) stack.projections = {projection_names[gate], projection_names[up]};
            stacks.emplace(layer.tensors[p]->tensor, stack);
        }
    }
    return stacks;
}

std::vector<ExpertMatrix> expert_matrices(const ExpertStack& stack, std::span<const int64_t> shape) {
    const auto parts = static_cast<int64_t>(stack.projections.size());
    const int64_t outputs = shape[stack.transposed ? 2 : 1], inputs = shape[stack.transposed ? 1 : 2];
    const int64_t rows = outputs / parts;
    std::vector<ExpertMatrix> matrices;
    matrices.reserve(static_cast<size_t>(shape[0] * parts));
    for (int64_t e = 0; e < shape[0]; ++e)
        for (int64_t p = 0; p < parts; ++p)
            matrices.push_back(
                {.name = fmt::format("{}.{}.{}.weight", stack.experts, e, stack.projections[static_cast<size_t>(p)]),
                 .rows = rows,
                 .cols = inputs,
                 .first = e * outputs * inputs + p * rows * (stack.transposed ? 1 : inputs),
                 .stride = stack.transposed ? outputs : 0,
                 .expert = e,
                 .row = p * rows});
    return matrices;
}

void read_transposed(const TransposedMatrix& m, int64_t begin, int64_t rows, std::byte* out) {
    const std::byte* from = m.stored.data() + (m.first + begin) * m.element_bytes;
    if (m.element_bytes == 1) return transpose<uint8_t>(from, m.stride, rows, m.cols, out);
    if (m.element_bytes == 2) return transpose<uint16_t>(from, m.stride, rows, m.cols, out);
    if (m.element_bytes == 4) return transpose<uint32_t>(from, m.stride, rows, m.cols, out);
    return transpose<uint64_t>(from, m.stride, rows, m.cols, out);
}

void read_stack(Bytes stored, int element_bytes, int64_t outputs, int64_t cols, int64_t begin, int64_t rows,
                std::byte* out) {
    for_each_expert(outputs, begin, rows, [&](int64_t expert, int64_t first, int64_t count, int64_t done) {
        read_transposed({stored, element_bytes, expert * outputs * cols, outputs, cols}, first, count,
                        out + done * cols * element_bytes);
    });
}

}  // namespace nibble
