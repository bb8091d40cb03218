#include "quant/resolve.h"

#include "checkpoint/fnmatch.h"
#include "checkpoint/modules.h"
#include "checkpoint/text_config.h"
#include "quant/left_alone.h"
#include "quant/named_modules.h"
#include "quant/numerics.h"
#include "quant/panels.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <unordered_map>

namespace nibble {
namespace {

// The effect of the rules on one quantizer.
struct QuantizerState {
    bool enabled = true;               // Model Optimizer's default: enabled, INT8
    const Rule* configured = nullptr;  // the last matching rule with a cfg
    const Rule* decided = nullptr;     // the last matching rule

    void follow(const Rule& rule) {
        enabled = rule.enable;
        decided = &rule;
        if (!rule.cfg.empty()) configured = &rule;
    }
};

// One quantizer of the model after all rules.
struct Quantizer : QuantizerState {
    std::string name;  // "model.layers.0.mlp.up_proj.weight_quantizer"
    std::string_view parent_class;
    QuantizerState own;  // state without the imported lists of exceptions
};

// Returns true if the rule is from an imported list of exceptions. Such lists are written for all architectures.
bool is_general(const Rule& rule) {
    return rule.imported && !rule.enable && rule.cfg.empty() && (rule.pattern != "*" || !rule.parent_class.empty());
}

Quantizer make_quantizer(std::string name, std::string_view parent_class, bool enabled) {
    Quantizer q;
    q.name = std::move(name);
    q.parent_class = parent_class;
    q.enabled = q.own.enabled = enabled;
    return q;
}

constexpr size_t per_module = 3, per_attention = 5;
constexpr std::string_view module_quantizers[per_module] = {".weight_quantizer", ".input_quantizer",
                                                            ".output_quantizer"};
constexpr std::string_view attention_quantizers[per_attention] = {
    ".k_bmm_quantizer", ".v_bmm_quantizer", ".q_bmm_quantizer", ".p_bmm_quantizer", ".softmax_quantizer"};
// Returns true if a quantizer is enabled unless a rule changes it.
bool on_by_default(size_t kind) { return kind < 2; }

// Returns true if the pattern matches a name that Model Optimizer gives the quantizer of an expert in a fused tensor:
// for "P.experts.7.up_proj.weight_quantizer" these are "P.experts.gate_up_proj_weight_quantizers.7",
// "...weight_quantizer" and "P.experts.7.up_proj_weight_quantizer"; for the stack "P.experts.up_proj.weight_quantizer"
// it is "P.experts.up_proj_weight_quantizer".
bool matches_fused_name(const NamePattern& pattern, std::string_view name) {
    const size_t at = name.find(".experts.");
    const size_t dot = name.rfind('.');
    if (at == std::string_view::npos) return false;
    const std::string_view experts = name.substr(0, at + 8), quantizer = name.substr(dot + 1);
    const std::string_view module = name.substr(at + 9, dot - at - 9);  // "7.up_proj"
    const size_t inner = module.find('.');
    if (quantizer == "output_quantizer") return false;
    if (inner == std::string_view::npos) return pattern.matches(fmt::format("{}.{}_{}", experts, module, quantizer));
    const std::string_view expert = module.substr(0, inner), leaf = module.substr(inner + 1);
    if (pattern.matches(fmt::format("{}.{}_{}", experts, module, quantizer))) return true;
    const bool up = leaf == "gate_proj" || leaf == "up_proj" || leaf == "w1" || leaf == "w3";
    for (std::string_view fused : {up ? std::string_view("gate_up_proj") : leaf == "w2" ? "down_proj" : leaf, leaf})
        if (pattern.matches(fmt::format("{}.{}_{}s.{}", experts, fused, quantizer, expert)) ||
            pattern.matches(fmt::format("{}.{}_{}", experts, fused, quantizer)))
            return true;
    return false;
}

class Resolver {
public:
    Resolver(const Recipe& recipe, std::span<const CheckpointTensor> tensors, const Json& config,
             const ResolveOptions& options)
        : recipe_(recipe),
          tensors_(tensors),
          config_(config),
          options_(options),
          prediction_(config),
          model_(find_modules(tensors, config)),
          rules_(recipe.rules) {}

    Result<Plan> run() {
        plan_.recipe =
            recipe_.description.empty() ? recipe_.name : fmt::format("{}: {}", recipe_.name, recipe_.description);
        plan_.weights_only = options_.weights_only;
        plan_.tied_heads = model_.tied_heads;
        if (!options_.kv.empty()) {
            NIBBLE_TRY(auto kv, load_kv_rules(options_.kv));
            for (Rule& rule : kv) rule.builtin = false;  // the user requested these rules
            rules_.insert(rules_.end(), kv.begin(), kv.end());
        }
        NIBBLE_TRY(search_, plan_search(recipe_.algorithms));
        NIBBLE_TRY(std::string named, take_named_linears(options_.linear, model_.modules));
        if (!named.empty()) note(std::move(named));
        list_quantizers();
        NIBBLE_CHECK(apply_rules());
        keep_partners_together();
        warn_unknown_layers();
        for (size_t i = 0; i < tensors_.size(); ++i) NIBBLE_CHECK(add_entry(i));
        NIBBLE_CHECK(left_.refused());
        NIBBLE_CHECK(check_partners());
        NIBBLE_CHECK(prune_groups());
        NIBBLE_CHECK(resolve_kv());
        list_needs();
        note_casts();
        for (std::string& line : left_.notes()) note(std::move(line));
        if (options_.strict && !plan_.warnings.empty()) return fail("{} (--strict)", plan_.warnings.front());
        plan_.warnings.insert(plan_.warnings.end(), notes_.begin(), notes_.end());
        return std::move(plan_);
    }

private:
    void list_quantizers() {
        first_.resize(tensors_.size(), SIZE_MAX);
        for (size_t i = 0; i < tensors_.size(); ++i) {
            const Module& m = model_.modules[i];
            if (!m.has_quantizers()) continue;
            first_[i] = quantizers_.size();
            for (size_t k = 0; k < per_module; ++k)
                quantizers_.push_back(
                    make_quantizer(m.name + std::string(module_quantizers[k]), m.parent_class, on_by_default(k)));
        }
        first_attention_ = quantizers_.size();
        for (const std::string& name : model_.attention)
            for (std::string_view suffix : attention_quantizers)
                quantizers_.push_back(make_quantizer(name + std::string(suffix), {}, false));
    }

    // Adds a line unless it exists already.
    void note(std::string line) {
        if (std::ranges::find(notes_, line) == notes_.end()) notes_.push_back(std::move(line));
    }

    // Warns about layers beyond config.json's number of layers; they are copied unchanged, like those for multi-token
    // prediction.
    void warn_unknown_layers() {
        const CheckpointTensor* first = nullptr;
        size_t tensors = 0;
        for (const CheckpointTensor& tensor : tensors_) {
            if (!prediction_.contains(tensor.name) || prediction_.announces(tensor.name)) continue;
            if (tensors++ == 0) first = &tensor;
        }
        if (tensors > 0)
            plan_.warnings.push_back(
                fmt::format("{} tensors (first: {}) belong to layers beyond num_hidden_layers, and config.json does "
                            "not declare them (num_nextn_predict_layers): they stay unquantized",
                            tensors, first->name));
    }

    template <class Matches>
    bool apply(const Rule& rule, Matches matches) {
        bool matched = false;
        for (Quantizer& q : quantizers_) {
            if (!rule.parent_class.empty() && rule.parent_class != q.parent_class) continue;
            if (!matches(q)) continue;
            matched = true;
            q.follow(rule);
            if (!is_general(rule)) q.own.follow(rule);
        }
        return matched;
    }

    Status apply_rules() {
        for (size_t r = 0; r < rules_.size(); ++r) {
            const Rule& rule = rules_[r];
            const NamePattern pattern(rule.pattern);
            bool matched = false;
            if (is_regex_pattern(rule.pattern)) {  // matches modules
                NIBBLE_TRY(const auto named, modules_named(rule.pattern, model_.modules).within(rule_name(rule)));
                matched = apply(rule, [&](const Quantizer& q) {
                    return named.contains(std::string_view(q.name).substr(0, q.name.rfind('.')));
                });
            } else {
                matched = apply(rule, [&](const Quantizer& q) { return pattern.matches(q.name); });
            }
            // The rule may be written for models with fused experts, whose quantizers have other names.
            if (!matched && rule.pattern.find("expert") != std::string::npos)
                matched = apply(rule, [&](const Quantizer& q) { return matches_fused_name(pattern, q.name); });
            // Built-in files and lists of exceptions cover every architecture, so only patterns of the user's own
            // recipe must match.
            const bool general = rule.builtin || (rule.imported && !rule.enable && rule.cfg.empty());
            if (!matched && !general)
                plan_.warnings.push_back(fmt::format("{} matches nothing in this checkpoint", rule_name(rule)));
        }
        return Ok{};
    }

    // A list for all architectures may match one member of an engine's fused matrix by accident
    // ('*block_sparse_moe.gate*' is meant for routers but matches gate_proj). The rule is then ignored for that member.
    void keep_partners_together() {
        for (const std::vector<size_t>& members : fused_groups(model_.modules)) {
            const auto weight = [&](size_t i) -> Quantizer& { return quantizers_[first_[i]]; };
            const auto left = [&](size_t i) {
                const Quantizer& q = weight(i);
                return !q.enabled && q.own.enabled && q.decided && is_general(*q.decided);
            };
            if (std::ranges::none_of(members, [&](size_t i) { return weight(i).enabled; })) continue;
            for (const size_t i : members) {
                if (!left(i)) continue;
                note(fmt::format("{} does not apply to '{}': engines run it and other, quantized matrices as one",
                                 rule_name(*weight(i).decided), module_kind_name(model_.modules[i].name)));
                for (size_t k = 0; k < per_module; ++k) {
                    Quantizer& q = quantizers_[first_[i] + k];
                    static_cast<QuantizerState&>(q) = q.own;
                }
            }
        }
    }

    std::string rule_name(const Rule& rule) const {
        const std::string parent = rule.parent_class.empty() ? "" : fmt::format(" in {}", rule.parent_class);
        return fmt::format("rule {} '{}'{} ({})", &rule - rules_.data() + 1, rule.pattern, parent, rule.where);
    }

    // Returns the attributes of an enabled quantizer. Error: the reason why there are none.
    Result<const std::vector<QuantizerConfig>*> attributes(const Quantizer& q) const {
        if (!q.decided)
            return fail(
                "no rule matches '{}', which Model Optimizer would quantize to INT8: begin the recipe with "
                "{{quantizer_name: '*', enable: false}}",
                q.name);
        if (!q.configured)
            return fail("{} enables '{}' without a cfg: the default, INT8, is not supported", rule_name(*q.decided),
                        q.name);
        return &q.configured->cfg;
    }

    template <class T>
    Result<T> meaning(const Quantizer& q, Result<T> (*of)(const std::vector<QuantizerConfig>&)) const {
        NIBBLE_TRY(const auto* cfg, attributes(q));
        return of(*cfg).within(fmt::format("{}, '{}'", rule_name(*q.configured), q.name));
    }

    Status add_entry(size_t i) {
        const CheckpointTensor& tensor = tensors_[i];
        const Module& m = model_.modules[i];
        PlanEntry e{tensor.name, m.name, tensor.shape, tensor.dtype};
        e.listed_module = m.listed;
        e.reason = m.why;
        e.least_scale = options_.least_scale;
        if (m.has_quantizers()) NIBBLE_CHECK(decide(m, first_[i], e));
        if (m.kind == ModuleKind::embedding && options_.embeddings != Format::none) NIBBLE_CHECK(quantize_embedding(e));
        if (e.spec.format != Format::none) NIBBLE_CHECK(check_fit(m, e));
        plan_.entries.push_back(std::move(e));
        return Ok{};
    }

    Status decide(const Module& m, size_t first, PlanEntry& e) {
        const Quantizer& weight = quantizers_[first];
        const Quantizer& input = quantizers_[first + 1];
        const Quantizer& output = quantizers_[first + 2];
        if (m.kind == ModuleKind::router) {
            e.reason = "router";
            return Ok{};
        }
        if (m.kind == ModuleKind::conv || m.kind == ModuleKind::matrix) {
            const bool wanted = weight.enabled && weight.decided;
            if (wanted) left_.keep(m, e.dtype);
            // Model Optimizer lists a convolution as excluded only if its quantizer is disabled.
            if (m.kind == ModuleKind::conv) e.listed_module = !wanted;
            if (m.kind == ModuleKind::conv)
                e.reason = weight.decided && !wanted ? rule_name(*weight.decided) : "convolution: stays unquantized";
            return Ok{};
        }
        if (output.enabled)
            return fail("{} enables '{}': quantized outputs are not supported", rule_name(*output.decided),
                        output.name);
        if (!weight.enabled) {
            e.reason = rule_name(*weight.decided);
            if (input.enabled && m.kind == ModuleKind::linear)
                plan_.warnings.push_back(
                    fmt::format("'{}' is enabled while its weights are not quantized: no effect", input.name));
            return Ok{};
        }
        NIBBLE_TRY(e.spec, meaning(weight, weight_spec));
        e.reason = rule_name(*weight.decided);
        if (m.kind == ModuleKind::fused_experts) {
            e.spec = {};
            left_.refuse(m, whole_stack(m), e.reason);
            return Ok{};
        }
        if (m.kind == ModuleKind::embedding && !model_.tied_heads.empty())
            return fail("{} quantizes '{}', which the output head shares: not supported", e.reason, e.tensor);
        NIBBLE_CHECK(apply_search(search_, e.spec).within(e.reason));
        e.spec.search.maximum_when_blind = !options_.compat && e.spec.search.kind != Search::Kind::max;
        if (e.spec.normalization != 448.0f && e.spec.search.kind == Search::Kind::max) warn_idle_headroom(e.reason);
        if (m.kind == ModuleKind::linear) {
            NIBBLE_TRY(e.solver, solver_for(search_, e.spec).within(e.reason));
        }
        e.spec.arithmetic = options_.arithmetic;
        e.spec.weights = dtype_of(e);
        // The scale of a stack has dimensions in Model Optimizer, so quotients are not rounded to the weights' dtype.
        if (tensors_[plan_.entries.size()].experts && e.spec.format == Format::fp8) e.spec.weights = DType::f32;
        NIBBLE_CHECK(check(e.spec).within(fmt::format("'{}', {}", e.tensor, e.reason)));
        if (input.enabled && m.kind == ModuleKind::linear && !options_.weights_only)
            NIBBLE_CHECK(decide_input(input, e));
        return Ok{};
    }

    // Returns the dtype from which codes are computed, and counts weights that are stored in another dtype.
    DType dtype_of(const PlanEntry& e) {
        const CheckpointTensor& tensor = tensors_[plan_.entries.size()];
        const DType dtype = weight_dtype(tensor, config_);
        if (!tensor.quantized() && dtype != e.dtype) ++cast_[{e.dtype, dtype}];
        return dtype;
    }

    void note_casts() {
        for (const auto& [dtypes, count] : cast_)
            note(
                fmt::format("{} quantized {} stored in {}, config.json declares {}: their codes are computed from {} "
                            "values, because loaders convert to that type",
                            count, count == 1 ? "matrix is" : "matrices are", dtype_name(dtypes.first),
                            dtype_torch_name(dtypes.second), dtype_name(dtypes.second)));
    }

    // Error: linears that engines fuse have different formats. Model Optimizer rejects such exports as well.
    Status check_partners() const {
        for (const std::vector<size_t>& members : fused_groups(model_.modules)) {
            const auto scheme = [&](size_t i) {
                const PlanEntry& e = plan_.entries[i];
                const bool kept = e.spec.format == Format::none;  // unchanged from the source
                return std::pair(kept ? tensors_[i].format : e.spec.format,
                                 kept ? tensors_[i].activation : e.activation);
            };
            const auto text = [&](size_t i) {
                const auto [format, activation] = scheme(i);
                const std::string name(format == Format::none ? dtype_name(plan_.entries[i].dtype)
                                                              : format_name(format));
                const bool inputs = activation != ActivationFormat::none;
                return fmt::format("'{}' ({}{}; {})", plan_.entries[i].tensor, name,
                                   inputs ? fmt::format(", inputs {}", activation_name(activation)) : "",
                                   plan_.entries[i].reason);
            };
            for (const size_t i : members)
                if (scheme(i) != scheme(members[0]))
                    return fail(
                        "{} and {} run as one matrix and need one format: a rule or --ignore that names one of them "
                        "must name all",
                        text(members[0]), text(i));
        }
        return Ok{};
    }

    static std::string whole_stack(const Module& m) {
        return m.why.empty() ? "experts in one tensor" : fmt::format("experts in one tensor ({})", m.why);
    }

    Status decide_input(const Quantizer& input, PlanEntry& e) {
        NIBBLE_TRY(e.activation, meaning(input, activation_format));
        if (!runs_together(e.spec.format, e.activation))
            return fail("'{}': weights in {} with inputs in {} ({}) is not supported", e.tensor,
                        format_name(e.spec.format), activation_name(e.activation), rule_name(*input.configured));
        if (const auto& cfg = input.configured->cfg[0]; cfg.constant_amax) {
            if (!stores_input_scale(e.activation))
                return fail("{}: constant_amax has no effect on inputs in {}", rule_name(*input.configured),
                            activation_name(e.activation));
            e.constant_input_amax = cfg.constant_amax;
        } else if (options_.input_scale && stores_input_scale(e.activation)) {
            // the maximum from which this scale is made
            e.constant_input_amax =
                *options_.input_scale * (e.activation == ActivationFormat::nvfp4 ? 2688.0f : 448.0f);
        }
        return Ok{};
    }

    void warn_idle_headroom(const std::string& rule) {
        const std::string text =
            fmt::format("{}: four_over_six without a search over 1.0 and 1.5 only lowers precision", rule);
        if (std::find(plan_.warnings.begin(), plan_.warnings.end(), text) == plan_.warnings.end())
            plan_.warnings.push_back(text);
    }

    Status quantize_embedding(PlanEntry& e) {
        if (!model_.tied_heads.empty())
            plan_.warnings.push_back(fmt::format(
                "--embeddings: '{}' is the output head as well, which is quantized with it (GGUF files only)",
                e.tensor));
        e.spec = {options_.embeddings};
        e.spec.arithmetic = options_.arithmetic;
        e.spec.weights = dtype_of(e);
        e.activation = ActivationFormat::none;
        e.reason = fmt::format("--embeddings {}", format_name(options_.embeddings));
        return Ok{};
    }

    Status check_fit(const Module& m, PlanEntry& e) {
        e.listed_module = false;
        if (!format_fits(e.spec.format, e.cols())) {
            left_.refuse(m,
                         fmt::format("{} inputs do not divide into blocks of {} ({})", e.cols(),
                                     format_layout(e.spec.format).whole_inputs(), format_name(e.spec.format)),
                         e.reason);
            return Ok{};
        }
        const ModuleGroups groups = groups_of(m);
        const bool nvfp4 = e.spec.format == Format::nvfp4 || e.spec.format == Format::nvfp4_bs32;
        // compat: Model Optimizer treats gate and up of one expert (MiniMax M3: of every MLP) as one matrix, so they
        // share everything that a matrix has once.
        const bool one_matrix = options_.compat && m.in_joint_mlp && !groups.search.empty();
        if (nvfp4) e.scale_group = groups.scale;
        if (e.spec.static_scales || (nvfp4 && one_matrix)) e.search_group = groups.search;
        if (e.spec.format == Format::fp8 && one_matrix) e.scale_group = e.search_group = groups.search;
        // compat: the scale of a matrix with one tile has no dimensions. Model Optimizer therefore unifies it like a
        // tensor scale if the first member of the group is such a matrix (prune_groups).
        const bool one_tile =
            options_.compat && e.spec.format == Format::fp8_block128 && e.rows() <= 128 && e.cols() <= 128;
        if (one_tile) e.scale_group = groups.scale;
        if (e.spec.format == Format::fp8_block128 && !groups.scale.empty()) {
            const int order = order_in_group(m);
            const auto [at, fresh] = tile_leaders_.try_emplace(groups.scale, order, one_tile);
            if (!fresh && order < at->second.first) at->second = {order, one_tile};
        }
        if (e.spec.format == Format::fp8_block128 && one_matrix && e.rows() % 128 != 0 && !one_tile && !warned_tiles_) {
            warned_tiles_ = true;
            note(
                fmt::format("'{}': {} rows do not divide into tiles of 128; Model Optimizer then tiles an expert's "
                            "gate and up as one matrix, nibble tiles each alone",
                            e.tensor, e.rows()));
        }
        if (stores_input_scale(e.activation)) e.input_group = options_.compat ? groups.input : groups.scale;
        return Ok{};
    }

    // If linears with the same inputs have different formats, each fused matrix of an engine gets its own scale.
    void split_mixed_groups(std::string PlanEntry::*key, auto kind) {
        std::unordered_map<std::string, std::set<int>> kinds;
        for (const PlanEntry& e : plan_.entries)
            if (!(e.*key).empty()) kinds[e.*key].insert(static_cast<int>(kind(e)));
        for (size_t i = 0; i < plan_.entries.size(); ++i) {
            PlanEntry& e = plan_.entries[i];
            if (!(e.*key).empty() && kinds[e.*key].size() > 1) e.*key = groups_of(model_.modules[i]).fused;
        }
    }

    // Removes groups with one member, and groups of tiles whose first member has several tiles.
    Status prune_groups() {
        split_mixed_groups(&PlanEntry::scale_group, [](const PlanEntry& e) { return e.spec.format; });
        split_mixed_groups(&PlanEntry::input_group, [](const PlanEntry& e) { return e.activation; });
        for (PlanEntry& e : plan_.entries)
            if (e.spec.format == Format::fp8_block128)
                if (const auto leader = tile_leaders_.find(e.scale_group);
                    leader != tile_leaders_.end() && !leader->second.second)
                    e.scale_group.clear();
        for (auto key : {&PlanEntry::scale_group, &PlanEntry::search_group, &PlanEntry::input_group}) {
            std::unordered_map<std::string_view, int> members;
            for (const PlanEntry& e : plan_.entries) ++members[e.*key];
            std::vector<PlanEntry*> alone;
            for (PlanEntry& e : plan_.entries)
                if (!(e.*key).empty() && members[e.*key] == 1) alone.push_back(&e);
            for (PlanEntry* e : alone) (e->*key).clear();
        }
        return Ok{};
    }

    Status resolve_kv() {
        const Quantizer* first = nullptr;
        for (size_t a = 0; a < model_.attention.size(); ++a) {
            const Quantizer* q = &quantizers_[first_attention_ + a * per_attention];
            for (size_t k = 2; k < per_attention; ++k)
                if (q[k].enabled)
                    return fail("{} enables '{}': only keys and values of attention can be quantized",
                                rule_name(*q[k].decided), q[k].name);
            if (q[0].enabled != q[1].enabled)
                return fail("'{}' and '{}' must be both on or both off", q[0].name, q[1].name);
            if (!q[0].enabled) continue;
            NIBBLE_TRY(const KvFormat keys, meaning(q[0], kv_format));
            NIBBLE_TRY(const KvFormat values, meaning(q[1], kv_format));
            if (!first) plan_.kv = keys;
            if (keys != values || keys != plan_.kv)
                return fail("the KV cache has one format: '{}' and '{}' differ", (first ? first : q)->name,
                            q[keys == plan_.kv ? 1 : 0].name);
            if (!first) first = q;
            plan_.kv_layers.push_back(model_.attention[a]);
        }
        // Scales for only some layers: readers would treat the missing ones as a damaged file.
        if (first && stores_scales(plan_.kv) && !options_.weights_only)
            for (const std::string& layer : model_.attention)
                if (std::ranges::find(plan_.kv_layers, layer) == plan_.kv_layers.end())
                    return fail(
                        "the KV cache of '{}' is {} ({}), that of '{}' is not quantized: all layers need the same "
                        "format",
                        plan_.kv_layers.front(), kv_name(plan_.kv), rule_name(*first->decided), layer);
        if (options_.weights_only && stores_scales(plan_.kv)) {
            note(fmt::format("weights only: the KV cache stays BF16 instead of {} (--kv fp8_cast needs no calibration)",
                             kv_name(plan_.kv)));
            plan_.kv = KvFormat::none;
            plan_.kv_layers.clear();
        }
        return Ok{};
    }

    static bool stores_scales(KvFormat kv) { return kv == KvFormat::fp8 || kv == KvFormat::nvfp4; }
    bool known(const std::string& name) const { return options_.scales && options_.scales->contains(name); }

    void list_needs() {
        constexpr std::string_view how =
            "calibrate (--calib FILE), give known scales (--input-scales FILE.json or another export)";
        if (search_.awq && !options_.folded)
            plan_.needs_activations.push_back("scales of inputs for awq_lite: calibrate (--calib FILE)");
        plan_.awq = search_.awq;
        for (const std::string& a : search_.needs_activations)
            plan_.needs_activations.push_back(
                fmt::format("{}: needs activations, which this version does not compute", a));
        std::vector<std::string_view> solved, inputs, caches;
        for (const PlanEntry& e : plan_.entries)
            if (e.solver && !options_.statistics) solved.push_back(e.module);
        for (const PlanEntry& e : plan_.entries)
            if (stores_input_scale(e.activation) && !e.constant_input_amax && !known(e.module + ".input_scale") &&
                !known(e.module + ".input_amax"))
                inputs.push_back(e.module);
        if (stores_scales(plan_.kv))
            for (const std::string& layer : plan_.kv_layers)
                if (!known(layer + ".k_proj.k_scale") || !known(layer + ".v_proj.v_scale")) caches.push_back(layer);
        if (!solved.empty())
            plan_.needs_activations.push_back(
                fmt::format("statistics for {} of {} linears (first: {}): calibrate (--calib FILE)",
                            solver_name(search_.solver.kind), solved.size(), solved.front()));
        if (!inputs.empty())
            plan_.needs_activations.push_back(
                fmt::format("input_scale of {} linears (first: {}): {} or a constant one "
                            "(--input-scales 1), or --weights-only",
                            inputs.size(), inputs.front(), how));
        if (!caches.empty())
            plan_.needs_activations.push_back(
                fmt::format("k_scale and v_scale of {} layers (first: {}): {}, or --kv fp8_cast or none", caches.size(),
                            caches.front(), how));
    }

    const Recipe& recipe_;
    std::span<const CheckpointTensor> tensors_;
    const Json& config_;
    const ResolveOptions& options_;
    const PredictionLayers prediction_;
    ModelModules model_;
    std::vector<Rule> rules_;
    SearchPlan search_;
    std::vector<Quantizer> quantizers_;
    std::vector<size_t> first_;  // per tensor: index of its first quantizer of three
    size_t first_attention_ = 0;
    std::unordered_map<std::string, std::pair<int, bool>>
        tile_leaders_;  // fused group -> (order of its first member, whether that has one tile)
    bool warned_tiles_ = false;
    std::map<std::pair<DType, DType>, int64_t> cast_;  // (stored dtype, declared dtype) -> number of matrices
    LeftAlone left_;
    std::vector<std::string> notes_;  // warnings about deliberate choices and about facts that are not the recipe's
                                      // fault
    Plan plan_;
};

}  // namespace

Result<Plan> resolve(const Recipe& recipe, std::span<const CheckpointTensor> tensors, const Json& config,
                     const ResolveOptions& options) {
    return Resolver(recipe, tensors, config, options).run();
}

}  // namespace nibble
