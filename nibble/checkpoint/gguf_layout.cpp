#include "checkpoint/gguf_layout.h"

#include "checkpoint/hf_layout.h"
#include "checkpoint/modules.h"
#include "checkpoint/stored_parts.h"
#include "checkpoint/text_config.h"
#include "io/json_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

namespace nibble {
namespace {

using enum GgufTransform;

// Weights for which llama.cpp creates X.scale (its generic pass in llama-model.cpp), limited to the names of
// gguf_names.h.
constexpr std::array<std::string_view, 18> scalable{
    "attn_q",         "attn_k",        "attn_v",      "attn_output",   "ffn_gate",       "ffn_up",
    "ffn_down",       "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_shexp", "ffn_up_shexp",
    "ffn_down_shexp", "ssm_in",        "ssm_out",     "output",        "attn_qkv",       "attn_gate"};

constexpr std::string_view weight_ending = ".weight";

// Returns "ffn_up" for "blk.3.ffn_up.weight".
std::string_view kind_of(std::string_view gguf_name) {
    if (gguf_name.ends_with(weight_ending)) gguf_name.remove_suffix(weight_ending.size());
    return gguf_name.substr(gguf_name.rfind('.') + 1);
}

// Returns true if llama.cpp's loader requires FP32 for the tensor.
bool always_f32(const std::string& name, size_t dims) {
    const std::string_view kind = kind_of(name);
    return dims < 2 || !name.ends_with(weight_ending) || kind.ends_with("_norm") || kind == "ffn_gate_inp" ||
           kind == "ffn_gate_inp_shexp" || kind == "ssm_conv1d";
}

Result<GgmlType> plain_type(const ExportTensor& t, const std::string& name) {
    if (t.dtype != DType::bf16 && t.dtype != DType::f16 && t.dtype != DType::f32)
        return fail("{}: GGUF weights are F32, F16 or BF16, this one is {}", show_name(t.name), dtype_name(t.dtype));
    if (always_f32(name, t.shape.size()) || t.dtype == DType::f32) return GgmlType::f32;
    return t.dtype == DType::f16 ? GgmlType::f16 : GgmlType::bf16;
}

// Returns advice for matrices that GGUF cannot store quantized.
std::string leave_out(std::span<const std::string_view> modules) {
    std::string rules;
    for (const std::string_view module : modules)
        rules += fmt::format("{}{{quantizer_name: '*{}*', enable: false}}", rules.empty() ? "" : ", ", module);
    return fmt::format("leave {} out: end the recipe's quant_cfg with {}", modules.size() > 1 ? "them" : "it", rules);
}
std::string leave_out(const ExportTensor& t) {
    const std::string_view module = last_name(module_of_weight(t.name));
    return leave_out(std::span(&module, 1));
}

// Returns why a matrix cannot be quantized in GGUF, where leaving it out of the recipe helps.
std::optional<std::string> why_unquantized(const ExportTensor& t, const std::string& name,
                                           const GgufArchitecture& architecture) {
    if (t.shape.size() != 2 || always_f32(name, 2)) return "must stay unquantized in GGUF";
    const GgmlType type = t.format == Format::nvfp4 ? GgmlType::nvfp4 : GgmlType::mxfp4;
    if (const int64_t block = ggml_type_info(type).block; t.shape[1] % block != 0)
        return fmt::format("rows of {} are not whole blocks of {}, which {} in GGUF needs", t.shape[1], block,
                           ggml_type_name(type));
    const std::string_view kind = kind_of(name);
    if (type == GgmlType::nvfp4 &&
        (!std::ranges::count(scalable, kind) || std::ranges::count(architecture.unscaled, kind)))
        return fmt::format("llama.cpp reads no tensor scale for {} of {}, so it cannot be NVFP4", kind,
                           architecture.name);
    return {};
}

Result<GgmlType> quantized_type(const ExportTensor& t) {
    const GgmlType type = t.format == Format::nvfp4 ? GgmlType::nvfp4 : GgmlType::mxfp4;
    if (t.input_scale && type != GgmlType::nvfp4)
        return fail("{}: GGUF cannot store an input_scale for {} weights", show_name(t.name), format_name(t.format));
    if (t.activation != ActivationFormat::none && !t.input_scale)
        return fail(
            "{}: GGUF cannot declare inputs in {}: quantize with --weights-only or convert with --drop activation",
            show_name(t.name), activation_name(t.activation));
    return type;
}

class LayoutBuilder {
public:
    LayoutBuilder(const ExportSpec& spec, const ModelConfig& model, const GgufArchitecture& architecture)
        : spec_(spec), architecture_(architecture), prediction_(spec.config) {
        for (GgufPart& part : gguf_parts(model, architecture)) parts_.emplace(part.hf, std::move(part));
    }

    Result<GgufExportLayout> build() {
        if (spec_.kv != KvFormat::none)
            return fail(
                "GGUF does not name a KV cache format ({}): convert with --drop kv_scale, or quantize without it",
                kv_name(spec_.kv));
        NIBBLE_CHECK(check_formats());
        for (const ExportTensor& t : spec_.tensors) NIBBLE_CHECK(add(t));
        for (const auto& [name, stack] : stacks_)
            if (stack.have != stack.experts)
                return fail("{}: {} of {} experts are present", name, stack.have, stack.experts);
        return std::move(out_);
    }

private:
    struct Stack {
        size_t place = 0;  // place of the first expert that was found
        int64_t experts = 0, have = 0;
        std::vector<bool> seen{};
    };

    // Error: quantized matrices that must not be quantized. The message has them all, by the name of their modules.
    Status check_formats() const {
        struct Group {
            std::string reason, first;
            int64_t others = 0;
            std::vector<std::string_view> modules{};
        };
        std::vector<Group> groups;
        for (const ExportTensor& t : spec_.tensors) {
            const auto part = parts_.find(t.name);
            if (t.format == Format::none || part == parts_.end()) continue;
            if (!gguf_holds(t.format))
                return fail("{}: {} has no type in GGUF (nvfp4 and mxfp4 have): choose another recipe",
                            show_name(t.name), format_name(t.format));
            auto reason = why_unquantized(t, part->second.gguf, architecture_);
            if (!reason) continue;
            auto group = std::ranges::find(groups, *reason, &Group::reason);
            if (group == groups.end())
                group = groups.insert(groups.end(), Group{std::move(*reason), show_name(t.name), -1});
            ++group->others;
            const std::string_view module = last_name(module_of_weight(t.name));
            if (!std::ranges::count(group->modules, module)) group->modules.push_back(module);
        }
        if (groups.empty()) return Ok{};
        std::string message;
        std::vector<std::string_view> modules;
        for (const Group& group : groups) {
            message += (message.empty() ? "" : "; ") + group.first;
            if (group.others > 0)
                message += fmt::format(" and {} more ({})", group.others, fmt::join(group.modules, ", "));
            message += ": " + group.reason;
            for (const std::string_view module : group.modules)
                if (!std::ranges::count(modules, module)) modules.push_back(module);
        }
        return fail("{}; {}", message, leave_out(modules));
    }

    Status add(const ExportTensor& t) {
        if (prediction_.contains(t.name))
            return fail(
                "{}: nibble's GGUF files hold no layers for multi-token prediction; remove them with `nibble convert "
                "--drop mtp`",
                show_name(t.name));
        const auto found = parts_.find(t.name);
        if (found == parts_.end() && is_outside_text_model(t.name))
            return fail("{}: a GGUF file holds the text model alone; `nibble convert --drop vision` leaves towers out",
                        show_name(t.name));
        if (found == parts_.end())
            return fail("{}: has no name in a GGUF file of architecture {}", show_name(t.name), architecture_.name);
        if (std::ranges::any_of(t.shape, [](int64_t d) { return d < 1; }) || t.shape.empty())
            return fail("{}: GGUF holds no scalars and no empty tensors", show_name(t.name));
        const GgufPart& part = found->second;
        const std::string& name = part.gguf;
        NIBBLE_TRY(const GgmlType type, t.format == Format::none ? plain_type(t, name) : quantized_type(t));
        GgufPlace place{.type = type, .transform = part.transform};
        const GgmlTypeInfo& info = ggml_type_info(type);
        place.row_bytes = cols_of(t) / info.block * info.bytes;
        if (place.transform == rope) {
            if (t.shape[0] != part.count * part.head_dim || part.head_dim % 2 != 0)
                return fail("{}: {} rows are not {} heads of {}", show_name(t.name), t.shape[0], part.count,
                            part.head_dim);
            place.head_dim = part.head_dim;
        }
        NIBBLE_CHECK(move_value_heads(t, part, info, place));
        if (place.transform == experts) return add_expert(t, part, place);
        NIBBLE_TRY(auto shape, gguf_shape(t, part));
        place.tensor = out_.tensors.size();
        out_.tensors.push_back({name, type, std::move(shape)});
        add_scales(t, name, 1, place);
        out_.places.push_back(place);
        return Ok{};
    }

    Status move_value_heads(const ExportTensor& t, const GgufPart& part, const GgmlTypeInfo& info, GgufPlace& place) {
        place.value_rows = part.value_rows, place.value_columns = part.value_columns;
        const GgufValueHeads &rows = part.value_rows, &columns = part.value_columns;
        if (rows.size > 0 && t.shape[0] != rows.first + rows.heads() * rows.size)
            return fail("{}: {} rows are not {} heads of {} after {} others", show_name(t.name), t.shape[0],
                        rows.heads(), rows.size, rows.first);
        if (columns.size == 0) return Ok{};
        if (cols_of(t) != columns.heads() * columns.size)
            return fail("{}: {} columns are not {} heads of {}", show_name(t.name), cols_of(t), columns.heads(),
                        columns.size);
        if (columns.size % info.block != 0)
            return fail("{}: heads of {} columns, which llama.cpp has in another order, are not whole blocks of {}; {}",
                        show_name(t.name), columns.size, info.block, leave_out(t));
        return Ok{};
    }

    Status add_expert(const ExportTensor& t, const GgufPart& part, GgufPlace place) {
        const std::string& name = part.gguf;
        const int64_t expert = part.expert;
        if (t.shape.size() != 2) return fail("{}: an expert's weight is a matrix", show_name(t.name));
        auto found = stacks_.find(name);
        if (found == stacks_.end()) {
            const int64_t count = part.count;
            found = stacks_.emplace(name, Stack{out_.places.size(), count, 0, std::vector<bool>(size_t(count))}).first;
            place.tensor = out_.tensors.size();
            out_.tensors.push_back({name, place.type, {count, t.shape[0], t.shape[1]}});
            add_scales(t, name, count, place);
        } else {
            const size_t first = found->second.place;
            const ExportTensor& other = spec_.tensors[first];
            if (other.shape != t.shape || other.format != t.format || other.dtype != t.dtype ||
                other.input_scale != t.input_scale)
                return fail("{}: differs in shape or format from {}; GGUF stores the experts of a layer as one tensor",
                            show_name(t.name), show_name(other.name));
            place.tensor = out_.places[first].tensor;
            place.scale = out_.places[first].scale;
            place.input_scale = out_.places[first].input_scale;
        }
        Stack& stack = found->second;
        if (stack.seen[size_t(expert)]) return fail("{}: appears twice", show_name(t.name));
        stack.seen[size_t(expert)] = true;
        ++stack.have;
        place.offset = expert * t.shape[0] * place.row_bytes;
        place.element = expert;
        out_.places.push_back(place);
        return Ok{};
    }

    void add_scales(const ExportTensor& t, const std::string& name, int64_t count, GgufPlace& place) {
        if (place.type != GgmlType::nvfp4) return;
        const std::string base = name.substr(0, name.size() - weight_ending.size());
        place.scale = out_.tensors.size();
        out_.tensors.push_back({base + ".scale", GgmlType::f32, {count}});
        if (!t.input_scale) return;
        place.input_scale = out_.tensors.size();
        out_.tensors.push_back({base + ".input_scale", GgmlType::f32, {count}});
    }

    Result<std::vector<int64_t>> gguf_shape(const ExportTensor& t, const GgufPart& part) const {
        const auto& s = t.shape;
        const auto wrong = [&](std::string_view want) {
            return fail("{}: has {} dimensions, expected {}", show_name(t.name), s.size(), want);
        };
        switch (part.transform) {
            case a_log:
            case column:
                if (s.size() != 1) return wrong("a vector");
                return std::vector<int64_t>{s[0], 1};
            case conv1d:
                if (s.size() != 3 || s[1] != 1) return wrong("[channels, 1, kernel]");
                return std::vector<int64_t>{s[0], s[2]};
            case flatten: {
                const int64_t groups = part.count;
                if (s.size() != 1 || s[0] % groups != 0) return wrong("a vector of whole groups");
                return std::vector<int64_t>{groups, s[0] / groups};
            }
            default:
                if (s.size() > 2) return wrong("a vector or a matrix");
                return s;
        }
    }

    const ExportSpec& spec_;
    GgufArchitecture architecture_;
    PredictionLayers prediction_;
    std::unordered_map<std::string, GgufPart> parts_;  // by Hugging Face name
    std::map<std::string, Stack> stacks_;
    GgufExportLayout out_;
};

// Error: a feed-forward weight with X.scale and a bias. llama.cpp would multiply by X.scale after adding the bias, and
// rejects such files.
Status check_biases(const GgufExportLayout& layout) {
    std::map<std::string_view, GgmlType> types;
    for (const GgufTensorSpec& t : layout.tensors) types.emplace(t.name, t.type);
    for (const GgufTensorSpec& t : layout.tensors) {
        if (t.type != GgmlType::nvfp4 || !kind_of(t.name).starts_with("ffn_")) continue;
        const std::string bias = t.name.substr(0, t.name.size() - weight_ending.size()) + ".bias";
        if (types.contains(bias))
            return fail("{}: llama.cpp does not add a bias to this NVFP4 product; exclude the tensor in the recipe",
                        t.name);
    }
    return Ok{};
}

}  // namespace

Result<GgufExportLayout> make_gguf_export_layout(const ExportSpec& spec, const ModelConfig& model,
                                                 const GgufArchitecture& architecture) {
    NIBBLE_TRY(auto layout, LayoutBuilder(spec, model, architecture).build());
    NIBBLE_CHECK(check_biases(layout));
    return layout;
}

}  // namespace nibble
