#include "model/missing_weights.h"

#include "architecture/tensor_list.h"
#include "io/json_events.h"
#include "model/cpu/model.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

namespace nibble {
namespace {

constexpr size_t named_weights = 3;  // in MissingWeights::text()

class StoredNames {
public:
    explicit StoredNames(const Checkpoint& checkpoint) {
        for (const CheckpointTensor& t : checkpoint.tensors()) {
            names_.insert(t.name);
            if (!t.whole.empty()) stacks_.push_back(t.name.substr(0, t.name.rfind('.') + 1));
        }
    }

    bool has(const std::string& name) const {
        return names_.contains(name) ||
               std::ranges::any_of(stacks_, [&](const std::string& stack) { return name.starts_with(stack); });
    }

private:
    std::unordered_set<std::string_view> names_;
    std::vector<std::string> stacks_;  // "model.layers.0.mlp.experts."
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
