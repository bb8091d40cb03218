#include "train/phase_weights.h"

#include "model/cpu/widen.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace nibble {

// `head`: the weight's tensor if its name is not the linear's name with ".weight".
Status PhaseWeights::add(std::span<const Linear> parts, const std::string& head, const UnitRules& rules) {
    ForwardWeight w{.cols = parts[0].cols, .rules = rules};
    int64_t row = 0;
    for (const Linear& part : parts) {
        NIBBLE_TRY(const size_t id, parameters_->id(head.empty() ? part.name + ".weight" : head));
        w.parts.push_back({.name = part.name, .id = id, .first_row = row});
        row += part.rows;
    }
    units_.push_back(std::move(w));
    return Ok{};
}

Result<PhaseWeights> PhaseWeights::make(std::span<const Block> blocks, const Head& head, const ModelConfig& config,
                                        std::shared_ptr<const Parameters> parameters, const TrainPrecision& precision,
                                        bool late, std::span<const float> input_scales) {
    PhaseWeights all;
    std::unordered_map<std::string, float> scales;  // by input_group()
    size_t given = 0;
    all.parameters_ = std::move(parameters);
    int64_t layers = 0;
    for (const Block& block : blocks) layers = std::max<int64_t>(layers, block.config().layer + 1);
    std::unordered_set<std::string> seen;
    for (const Block& block : blocks) {
        const MixerConfig& mixer = block.config().mixer;
        const bool mlp = std::holds_alternative<MlpConfig>(mixer) || std::holds_alternative<MoeConfig>(mixer);
        const UnitRules rules =
            unit_rules(precision, {.layer = block.config().layer, .layers = layers, .mlp = mlp}, late);
        for (const std::span<const Linear> unit : block.mixer().units()) {
            NIBBLE_CHECK(all.add(unit, {}, rules));
            if (rules.x.stored) {
                const auto [at, first] = scales.try_emplace(input_group(unit[0].name));
                if (first && given == input_scales.size()) return fail("{} scales of inputs are too few", given);
                if (first) at->second = input_scales[given++];
                all.units_.back().input_scale = at->second;
            }
            for (const Linear& part : unit) seen.insert(part.name);
        }
    }
    for (const Block& block : blocks)
        for (const Linear* linear : block.linears())  // routers
            if (!seen.contains(linear->name)) NIBBLE_CHECK(all.add({linear, 1}, {}, {}));
    NIBBLE_CHECK(all.add({&head.linear(), 1}, config.head, {}));
    return all;
}

CastOperand PhaseWeights::forward_operand(size_t unit, ThreadPool& pool) const {
    const ForwardWeight& w = units_[unit];
    std::vector<float> values;
    int64_t rows = 0;
    for (const ForwardWeight::Part& part : w.parts) {
        const MatrixView published = parameters_->published(part.id);
        values.resize(static_cast<size_t>((rows + published.rows) * w.cols));
        widen(published, values.data() + rows * w.cols);
        rows += published.rows;
    }
    return cast_rows(values.data(), rows, w.cols, w.cols, w.rules.w, {}, {}, pool);
}

}  // namespace nibble
