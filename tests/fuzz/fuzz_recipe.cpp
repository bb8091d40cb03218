// Input: a recipe. It must be refused with one line when parsed or when resolved against a small model, or give a plan
// whose entries are the tensors in their order and can be quantized accordingly.
#include "message.h"
#include "quant/resolve.h"

using namespace nibble;

namespace {

void require_one_line(const std::string& text) {
    require(!text.empty() && text.size() < 20'000 && text.find('\n') == text.npos);
}

std::vector<CheckpointTensor> make_tensors() {
    std::vector<CheckpointTensor> tensors;
    const auto add = [&](const char* name, std::vector<int64_t> shape) {
        CheckpointTensor t;
        t.name = name;
        t.shape = std::move(shape);
        tensors.push_back(std::move(t));
    };
    add("model.embed_tokens.weight", {64, 128});
    for (const char* p : {"q", "k", "v", "o"})
        add(fmt::format("model.layers.0.self_attn.{}_proj.weight", p).c_str(), {128, 128});
    for (const char* p : {"gate", "up"})
        add(fmt::format("model.layers.0.mlp.experts.0.{}_proj.weight", p).c_str(), {64, 128});
    add("model.layers.0.mlp.experts.0.down_proj.weight", {128, 64});
    add("model.layers.0.mlp.gate.weight", {1, 128});
    add("model.layers.1.mixer.conv1d.weight", {64, 1, 4});
    add("model.layers.1.mixer.in_proj.weight", {100, 24});
    add("model.norm.weight", {128});
    add("lm_head.weight", {64, 128});
    return tensors;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const std::vector<CheckpointTensor> tensors = make_tensors();
    static const Json config = {{"num_hidden_layers", 2}, {"tie_word_embeddings", false}};
    const auto recipe = parse_recipe({reinterpret_cast<const char*>(data), size}, "r.yaml");
    if (!recipe.ok()) {
        require_message(recipe.error());
        return 0;
    }
    ResolveOptions options;
    options.weights_only = size % 2 == 1;
    const auto plan = resolve(*recipe, tensors, config, options);
    if (!plan.ok()) {
        require_message(plan.error());
        return 0;
    }
    require(plan->entries.size() == tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
        const PlanEntry& e = plan->entries[i];
        require(e.tensor == tensors[i].name && e.shape == tensors[i].shape && !e.reason.empty());
        if (e.spec.format == Format::none) continue;
        require(check(e.spec).ok() && format_fits(e.spec.format, e.cols()) && !e.listed_module);
        require(!options.weights_only || e.activation == ActivationFormat::none);
    }
    for (const std::string& line : plan->warnings) require_one_line(line);
    for (const std::string& line : plan->needs_activations) require_one_line(line);
    require(to_text(*plan).size() > 100);
    return 0;
}
