#include "model/missing_weights.h"

#include "architecture/tensor_list.h"
#include "io/json_events.h"
#include "model/cpu/model.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_set>

namespace nibble {
namespace {

constexpr size_t named_weights = 3;  // in MissingWeights::text()

// Names of stored weights. Experts may be stored one by one where the model's description has a stack, and the other
// way round.
class StoredNames {
public:
    explicit StoredNames(const Checkpoint& checkpoint) {
        for (const CheckpointTensor& t : checkpoint.tensors()) {
            names_.insert(t.name);
            if (!t.whole.empty() || t.experts) stacks_.insert(folder_of(t.name));
            if (const std::string experts = experts_of(t.name); !experts.empty()) split_.insert(experts);
        }
    }

    bool has(const std::string& name) const {
        return names_.contains(name) || stacks_.contains(experts_of(name)) || split_.contains(folder_of(name));
    }

private:
    // "model.layers.0.mlp.experts." of "model.layers.0.mlp.experts.gate_up_proj".
    static std::string folder_of(const std::string& name) { return name.substr(0, name.rfind('.') + 1); }
    // "model.layers.0.mlp.experts." of "model.layers.0.mlp.experts.7.up_proj.weight"; empty: another tensor.
    static std::string experts_of(const std::string& name) {
        constexpr std::string_view word = ".experts.";
        const size_t end = name.rfind(word) + word.size();
        if (name.rfind(word) == name.npos || end >= name.size() || name[end] < '0' || name[end] > '9') return {};
        return name.substr(0, end);
    }

    std::unordered_set<std::string_view> names_;
    std::unordered_set<std::string> stacks_, split_;  // "model.layers.0.mlp.experts."
};

}  // namespace

std::string MissingWeights::text() const {
    if (names.empty()) return {};
    std::string list;
    for (size_t i = 0; i < std::min(names.size(), named_weights); ++i)
        list += (i ? ", " : "") + std::string(show_name(names[i]));
    if (names.size() > named_weights) list += fmt::format(" and {} more", names.size() - named_weights);
    return fmt::format("{} of {} weights that config.json requires {} missing: {}", names.size(), required,
                       names.size() == 1 ? "is" : "are", list);
}

MissingWeights find_missing_weights(const Checkpoint& checkpoint) {
    MissingWeights missing;
    const auto model = model_config(checkpoint);
    if (!model.ok()) return missing;
    const StoredNames stored(checkpoint);
    const auto add = [&](const std::vector<TensorEntry>& list) {
        missing.required += std::ssize(list);
        for (const TensorEntry& t : list)
            if (!stored.has(t.name)) missing.names.push_back(t.name);
    };
    add(tensor_list(*model));
    const std::vector<TensorEntry> prediction = prediction_tensor_list(*model);
    if (std::ranges::any_of(prediction, [&](const TensorEntry& t) { return stored.has(t.name); })) add(prediction);
    return missing;
}

}  // namespace nibble
