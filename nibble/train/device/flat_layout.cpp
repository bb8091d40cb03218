#include "train/device/flat_layout.h"

#include "base/checked.h"
#include "model/cpu/moe.h"

#include <algorithm>

namespace nibble {
namespace {

class FlatMaker {
public:
    FlatMaker(const Parameters& parameters, FlatLayout& layout) : parameters_(parameters), layout_(layout) {
        layout_.at.assign(parameters.count(), -1);
    }

    // Places tensors of equal width, stacked by rows.
    Result<FlatMatrix> matrix(std::span<const std::string> tensors) {
        FlatMatrix m{.name = tensors[0], .at = layout_.elements};
        for (const std::string& tensor : tensors) {
            NIBBLE_TRY(const size_t id, parameters_.id(tensor));
            const CheckpointTensor& t = parameters_.tensors()[id];
            if (t.shape.size() != 2 || (m.cols > 0 && t.cols() != m.cols) || t.dtype != DType::bf16)
                return fail("'{}' is {} of {} x {} and cannot be stacked with the matrices of {}", tensor,
                            dtype_name(t.dtype), t.rows(), t.cols(), m.name);
            if (t.cols() % 8) return fail("'{}' has {} columns: a GPU needs a multiple of 8", tensor, t.cols());
            layout_.at[id] = m.at + m.elements();
            m.rows += t.rows(), m.cols = t.cols();
        }
        layout_.elements = round_up(m.at + m.elements(), flat_alignment);
        return m;
    }
    // Places the vectors of one dtype: norms, then biases (contiguous if named in `together`), then those that mixers
    // read by name.
    Status vectors(DType dtype, std::span<const std::vector<std::string>> together) {
        const int64_t begin = layout_.elements;
        for (size_t id = 0; id < parameters_.count(); ++id)
            if (is(id, dtype) && is_norm(parameters_.tensors()[id].name)) place(id);
        layout_.norms.push_back({begin, layout_.elements - begin});
        for (const std::vector<std::string>& names : together) {
            NIBBLE_TRY(const size_t first, parameters_.id(names[0]));
            if (!is(first, dtype)) continue;
            for (const std::string& name : names) {
                NIBBLE_TRY(const size_t id, parameters_.id(name));
                if (!is(id, dtype)) return fail("'{}' and '{}' have different dtypes", names[0], name);
                layout_.at[id] = layout_.elements;
                layout_.elements += size_of(id);
            }
            layout_.elements = round_up(layout_.elements, flat_alignment);
        }
        for (size_t id = 0; id < parameters_.count(); ++id)
            if (is(id, dtype) && is_known(parameters_.tensors()[id].name)) place(id);
        return Ok{};
    }

private:
    // Returns true for a vector of this dtype without a place.
    bool is(size_t id, DType dtype) const {
        const CheckpointTensor& t = parameters_.tensors()[id];
        return layout_.at[id] < 0 && t.dtype == dtype && t.shape.size() != 2;
    }
    static bool is_norm(const std::string& name) {
        return name.ends_with("norm.weight") || name.ends_with("norm_f.weight");
    }
    static bool is_known(const std::string& name) {
        for (const char* end :
             {".e_score_correction_bias", ".A_log", ".D", ".dt_bias", ".conv1d.weight", ".conv1d.bias"})
            if (name.ends_with(end)) return true;
        return false;
    }
    int64_t size_of(size_t id) const { return parameters_.tensors()[id].rows() * parameters_.tensors()[id].cols(); }
    void place(size_t id) {
        layout_.at[id] = layout_.elements;
        layout_.elements = round_up(layout_.elements + size_of(id), flat_alignment);
    }

    const Parameters& parameters_;
    FlatLayout& layout_;
};

FlatUnit unit_of(std::span<const Linear> parts) {
    FlatUnit unit;
    for (const Linear& part : parts) unit.linears.push_back(&part);
    return unit;
}

// Order of units: the router; the first products of all experts; their second products; the shared expert's; the
// projections around the experts.
std::vector<FlatUnit> flat_units_of(const Moe& moe) {
    std::vector<FlatUnit> all{unit_of({&moe.gate(), 1}), {}, {}};
    for (const auto& expert : moe.experts()) {
        for (const Linear& part : expert->in().parts) all[1].linears.push_back(&part);
        all[2].linears.push_back(&expert->out());
    }
    for (const size_t unit : {1, 2}) all[unit].of_mixture = true, all[unit].experts = std::ssize(moe.experts());
    if (moe.shared())
        for (const std::span<const Linear> unit : moe.shared()->units()) all.push_back(unit_of(unit));
    if (moe.to_latent()) {
        all.push_back(unit_of({&*moe.to_latent(), 1}));
        all.push_back(unit_of({&*moe.from_latent(), 1}));
    }
    return all;
}

}  // namespace

std::vector<std::string> FlatUnit::weights() const {
    std::vector<std::string> names;
    for (const Linear* linear : linears) names.push_back(linear->name + ".weight");
    return names;
}

std::vector<std::string> FlatUnit::biases() const {
    std::vector<std::string> names;
    for (const Linear* linear : linears)
        if (!linear->bias.empty()) names.push_back(linear->name + ".bias");
    return names;
}

std::vector<FlatUnit> flat_units(const Block& block) {
    if (const auto* moe = dynamic_cast<const Moe*>(&block.mixer())) return flat_units_of(*moe);
    std::vector<FlatUnit> all;
    for (const std::span<const Linear> unit : block.mixer().units()) all.push_back(unit_of(unit));
    return all;
}

Result<FlatLayout> FlatLayout::make(const Parameters& parameters, const ModelConfig& config, const ModelParts& parts) {
    FlatLayout layout;
    FlatMaker maker(parameters, layout);
    NIBBLE_TRY(layout.embedding, maker.matrix({{config.embedding}}));
    std::vector<std::vector<std::string>> biases;
    for (const Block& block : parts.blocks) {
        std::vector<FlatMatrix>& units = layout.units.emplace_back();
        for (const FlatUnit& unit : flat_units(block)) {
            NIBBLE_TRY(units.emplace_back(), maker.matrix(unit.weights()));
            std::vector<std::string> of_unit = unit.biases();
            if (of_unit.empty()) continue;
            if (of_unit.size() != unit.linears.size())
                return fail("--device cuda does not train {}: only some of its parts have biases", units.back().name);
            biases.push_back(std::move(of_unit));
        }
    }
    layout.tied = config.head == config.embedding;
    if (layout.tied) {
        layout.head = layout.embedding;
    } else {
        NIBBLE_TRY(layout.head, maker.matrix({{config.head}}));
    }
    layout.matrix_elements = layout.elements;
    NIBBLE_CHECK(maker.vectors(DType::bf16, biases));
    layout.rounded_vectors = layout.elements - layout.matrix_elements;
    NIBBLE_CHECK(maker.vectors(DType::f32, biases));
    for (size_t id = 0; id < parameters.count(); ++id)
        if (layout.at[id] < 0)
            return fail("parameter '{}' cannot be trained on --device cuda: no layer reads it",
                        parameters.tensors()[id].name);
    for (size_t b = 0; b < parts.blocks.size(); ++b) {
        const std::vector<FlatUnit> units = flat_units(parts.blocks[b]);
        for (size_t u = 0; u < units.size(); ++u) {
            const std::vector<std::string> of_unit = units[u].biases();
            if (of_unit.empty()) continue;
            NIBBLE_TRY(const size_t id, parameters.id(of_unit[0]));
            layout.units[b][u].bias = layout.at[id];
        }
    }
    return layout;
}

Result<FlatLayout> FlatLayout::make_adapters(const Parameters& adapters, const ModelConfig& config,
                                             const ModelParts& parts) {
    FlatLayout layout;
    FlatMaker maker(adapters, layout);
    for (const Block& block : parts.blocks) {
        std::vector<FlatMatrix>& units = layout.units.emplace_back();
        for (const FlatUnit& unit : flat_units(block)) {
            FlatMatrix& frozen = units.emplace_back(FlatMatrix{.name = unit.linears[0]->name + ".weight", .at = -1});
            frozen.cols = unit.linears[0]->cols;
            std::vector<std::string> a, b;
            for (const Linear* part : unit.linears) {
                frozen.rows += part->rows;
                if (!adapters.id(part->name + ".lora_A.weight").ok()) continue;
                a.push_back(part->name + ".lora_A.weight");
                b.push_back(part->name + ".lora_B.weight");
            }
            if (a.empty()) continue;
            NIBBLE_CHECK(maker.matrix(a));
            NIBBLE_CHECK(maker.matrix(b));
        }
    }
    const Linear& head = parts.head.linear();
    layout.embedding = {.name = config.embedding, .at = -1, .rows = config.vocab, .cols = config.hidden};
    layout.head = {.name = config.head, .at = -1, .rows = head.rows, .cols = head.cols};
    layout.matrix_elements = layout.elements;
    return layout;
}

}  // namespace nibble
