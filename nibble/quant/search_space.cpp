#include "quant/search_space.h"

#include "checkpoint/fnmatch.h"
#include "checkpoint/modules.h"
#include "checkpoint/text_config.h"
#include "quant/recipe.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace nibble {
namespace {

struct Spelling {
    std::string_view name, weights, inputs;
};
constexpr Spelling spellings[] = {
    {"nvfp4", "nvfp4", "nvfp4"}, {"w4a16_nvfp4", "nvfp4", ""},
    {"mxfp4", "mxfp4", "mxfp4"}, {"w4a16_mxfp4", "mxfp4", ""},
    {"fp8", "fp8", "fp8"},       {"w8a16_fp8", "fp8", ""},
    {"mxfp8", "mxfp8", "mxfp8"}, {"none", "", ""},
};

// base_disabled_layers and base_cost_excluded_layers of auto_quantize.
constexpr std::string_view disabled[] = {
    "*block_sparse_moe.gate*",
    "*linear_attn.conv1d*",
    "*linear_attn.in_proj_a*",
    "*linear_attn.in_proj_b*",
    "*mixer.conv1d*",
    "*mlp.gate.*",
    "*mlp.shared_expert_gate.*",
    "*output_layer*",
    "*proj_out.*",
    "*router*",
    "output.*",
    "*embed_vision*",
    "*vision_tower*",
    "*visual*",
    "*shared_expert_gate*",
};
constexpr std::string_view cost_excluded[] = {"*visual*", "*mtp*", "*vision_tower*"};

bool matches_any(std::span<const std::string_view> patterns, std::string_view name) {
    return std::ranges::any_of(patterns, [&](std::string_view p) { return NamePattern(p).matches(name); });
}

int64_t millibits_of(const QuantizerConfig& c) {
    const double bits = c.effective_bits         ? *c.effective_bits
                        : c.num_bits.integer > 0 ? c.num_bits.integer
                                                 : 1 + c.num_bits.exponent + c.num_bits.mantissa;
    return std::llround(bits * 1000);
}

// Returns "P.experts" for "P.experts.7.up_proj", "P.shared_experts" for "P.shared_experts.up_proj", else an empty name.
std::string experts_of(std::string_view module) {
    for (const std::string_view mark : {".experts.", ".shared_experts.", ".shared_expert."})
        if (const size_t at = module.find(mark); at != module.npos)
            return std::string(module.substr(0, at + mark.size() - 1));
    return {};
}

class Space {
public:
    Space(std::span<const CheckpointTensor> tensors, const Json& config, const SearchSpaceOptions& options)
        : tensors_(tensors), options_(options), config_(config), model_(find_modules(tensors, config)) {}

    Result<SearchSpace> run() {
        NIBBLE_CHECK(list_formats());
        for (size_t i = 0; i < tensors_.size(); ++i)
            if (model_.modules[i].kind == ModuleKind::linear) add(i);
        if (space_.groups.empty()) return fail("the checkpoint has no linear layer to choose a format for");
        NIBBLE_CHECK(set_weights());
        for (SearchGroup& group : space_.groups) NIBBLE_CHECK(set_candidates(group));
        NIBBLE_CHECK(apply_keep());
        return std::move(space_);
    }

private:
    Status list_formats() {
        std::vector<std::string> names = options_.formats;
        for (const Keep& keep : options_.keep) names.push_back(keep.format);
        searched_ = options_.formats;
        searched_.push_back("none");
        std::erase(names, "none");
        for (const std::string& name : names) {
            NIBBLE_TRY(auto format, search_format(name));
            if (std::ranges::find(space_.formats, name, &SearchFormat::name) == space_.formats.end())
                space_.formats.push_back(std::move(format));
        }
        std::ranges::stable_sort(space_.formats, {}, &SearchFormat::millibits);
        NIBBLE_TRY(auto none, search_format("none"));
        space_.formats.push_back(std::move(none));
        return Ok{};
    }

    void add(size_t i) {
        const Module& m = model_.modules[i];
        std::string key = experts_of(m.name);
        const bool experts = !key.empty();
        if (!experts) key = groups_of(m).fused;
        if (key.empty()) key = m.name;
        const auto [at, fresh] = index_.try_emplace(key, space_.groups.size());
        if (fresh) {
            space_.groups.push_back({.name = key});
            if (experts) space_.groups.back().patterns = {key + ".*"};
        }
        SearchGroup& group = space_.groups[at->second];
        group.tensors.push_back(i);
        group.elements += tensors_[i].rows() * tensors_[i].cols();
        if (!experts) group.patterns.push_back(m.name + ".");
    }

    bool routed(const SearchGroup& group) const { return model_.modules[group.tensors[0]].routed_expert; }

    Status set_weights() {
        int64_t visited = 1, all = 1;
        if (options_.cost_model == CostModel::active_moe) {
            const auto number = [&](std::initializer_list<const char*> keys) -> int64_t {
                for (const char* key : keys)
                    if (const Json* v = text_value(config_, key); v && v->is_number_integer()) return v->get<int64_t>();
                return 0;
            };
            visited = number({"num_experts_per_tok", "moe_topk", "top_k"});
            all = number({"num_experts", "num_local_experts", "n_routed_experts"});
            if (visited < 1 || all < visited)
                return fail(
                    "--cost-model active_moe: config.json does not give the number of experts and of experts per "
                    "token");
            const int64_t common = std::gcd(visited, all);
            visited /= common, all /= common;
        }
        space_.weight_unit = all;
        for (SearchGroup& group : space_.groups) {
            group.weight = routed(group) ? visited : all;
            for (const size_t i : group.tensors)
                if (matches_any(cost_excluded, model_.modules[i].name)) group.weight = 0;
        }
        if (space_.units() == 0) return fail("the search counts no linear layer's cost: all are excluded");
        return Ok{};
    }

    // Returns the first member for which the format is not possible; null: there is none.
    const CheckpointTensor* unfit(const SearchGroup& group, const SearchFormat& format) const {
        const auto spec = format_from_name(format.weights);
        for (const size_t i : group.tensors)
            if (spec && !format_fits(*spec, tensors_[i].cols())) return &tensors_[i];
        return nullptr;
    }

    Status set_candidates(SearchGroup& group) {
        for (const size_t i : group.tensors)
            if (matches_any(disabled, model_.modules[i].name) || matches_any(disabled, model_.modules[i].name + "."))
                group.fixed = fmt::format("'{}' is never quantized", model_.modules[i].name);
        for (size_t f = 0; f < space_.formats.size(); ++f) {
            const bool wanted = std::ranges::find(searched_, space_.formats[f].name) != searched_.end();
            if (!wanted || (!group.fixed.empty() && f != space_.none())) continue;
            if (!unfit(group, space_.formats[f])) group.candidates.push_back(f);
        }
        if (group.candidates.size() == 1 && group.fixed.empty()) group.fixed = "no format fits its inputs";
        return Ok{};
    }

    Status apply_keep() {
        for (const Keep& keep : options_.keep) {
            const NamePattern pattern(keep.pattern);
            const auto format = std::ranges::find(space_.formats, keep.format, &SearchFormat::name);
            bool matched = false;
            for (SearchGroup& group : space_.groups) {
                if (!std::ranges::any_of(group.tensors,
                                         [&](size_t i) { return pattern.matches(model_.modules[i].name); }))
                    continue;
                matched = true;
                if (const CheckpointTensor* tensor = unfit(group, *format))
                    return fail("--keep {}={}: '{}' has {} inputs, which do not divide into blocks", keep.pattern,
                                keep.format, tensor->name, tensor->cols());
                group.candidates = {static_cast<size_t>(format - space_.formats.begin())};
                group.fixed = fmt::format("--keep {}={}", keep.pattern, keep.format);
            }
            if (!matched) return fail("--keep {}={} matches no linear of this checkpoint", keep.pattern, keep.format);
        }
        return Ok{};
    }

    std::span<const CheckpointTensor> tensors_;
    const SearchSpaceOptions& options_;
    const Json& config_;
    ModelModules model_;
    SearchSpace space_;
    std::vector<std::string> searched_;
    std::map<std::string, size_t> index_;
};

}  // namespace

Result<SearchSpace> search_space(std::span<const CheckpointTensor> tensors, const Json& config,
                                 const SearchSpaceOptions& options) {
    return Space(tensors, config, options).run();
}

std::vector<std::string> search_format_names() {
    std::vector<std::string> names;
    for (const Spelling& s : spellings) names.emplace_back(s.name);
    return names;
}

Result<SearchFormat> search_format(std::string_view name) {
    const auto* found = std::ranges::find(spellings, name, &Spelling::name);
    if (found == std::end(spellings))
        return fail("unknown format '{}' for a search; choices: {}", name, fmt::join(search_format_names(), ", "));
    SearchFormat format{std::string(found->name), std::string(found->weights), std::string(found->inputs)};
    if (format.weights.empty()) return format;
    // The cost is read from the numerics; of the two quantizers the cheaper one counts, as in auto_quantize.
    for (const std::string& numerics : {format.weights, format.inputs}) {
        if (numerics.empty()) continue;
        NIBBLE_TRY(const Recipe probe, parse_recipe(fmt::format("imports: {{n: configs/numerics/{}}}\nquant_cfg:\n  - "
                                                                "quantizer_name: '*'\n    cfg: {{$import: n}}\n",
                                                                numerics),
                                                    "cost"));
        format.millibits = std::min(format.millibits, millibits_of(probe.rules.at(0).cfg.at(0)));
    }
    return format;
}

int64_t SearchSpace::units(size_t group) const {
    int64_t common = 0;
    for (const SearchGroup& g : groups) common = std::gcd(common, g.elements * g.weight);
    return common ? groups[group].elements * groups[group].weight / common : 0;
}

int64_t SearchSpace::units() const {
    int64_t common = 0, sum = 0;
    for (const SearchGroup& g : groups) common = std::gcd(common, g.elements * g.weight), sum += g.elements * g.weight;
    return common ? sum / common : 0;
}

double SearchSpace::bits(std::span<const size_t> choice) const {
    double sum = 0, all = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
        const double elements = double(groups[g].elements) * double(groups[g].weight);
        sum += elements * formats[choice[g]].bits();
        all += elements;
    }
    return sum / all;
}

double SearchSpace::least_bits() const {
    std::vector<size_t> choice;
    for (const SearchGroup& g : groups) choice.push_back(g.candidates.front());
    return bits(choice);
}

double SearchSpace::most_bits() const {
    std::vector<size_t> choice;
    for (const SearchGroup& g : groups) choice.push_back(g.candidates.back());
    return bits(choice);
}

Result<Keep> parse_keep(std::string_view text) {
    const size_t at = text.rfind('=');
    if (at == text.npos || at == 0 || at + 1 == text.size())
        return fail("--keep '{}': give PATTERN=FORMAT, e.g. '*lm_head*=none'", text);
    Keep keep{std::string(text.substr(0, at)), std::string(text.substr(at + 1))};
    NIBBLE_CHECK(search_format(keep.format));
    return keep;
}

}  // namespace nibble
