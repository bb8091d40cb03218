#include "checkpoint/hf_layout.h"

#include "architecture/config_json.h"
#include "checkpoint/modelopt_config.h"
#include "checkpoint/modules.h"
#include "checkpoint/side_files.h"
#include "io/json_events.h"

#include <algorithm>
#include <set>

namespace nibble {
namespace {

bool is_kv_scale(const ExportTensor& t) { return is_kv_scale_name(t.name); }

Status check_quantized(const ExportSpec& spec, const ExportTensor& t) {
    if (spec.dialect == Dialect::plain)
        return fail("{}: is {}; a plain checkpoint holds no quantized tensors", show_name(t.name),
                    format_name(t.format));
    if (!t.experts && module_of_weight(t.name).empty())
        return fail("{}: only tensors named '….weight' can be quantized", show_name(t.name));
    if (t.shape.size() != 2 || t.shape[0] < 1 || !format_fits(t.format, t.shape[1]))
        return fail("{}: shape does not hold whole blocks of {}", show_name(t.name), format_name(t.format));
    if (t.experts && format_layout(t.format).float_scales)
        return fail("{}: a stack of experts has one scale, {} has one per {}", show_name(t.name), format_name(t.format),
                    t.format == Format::fp8_row ? "row" : "tile");
    if (t.input_scale != stores_input_scale(t.activation))
        return fail("{}: {} inputs {} an input_scale", show_name(t.name), activation_name(t.activation),
                    t.input_scale ? "do not store" : "need");
    return Ok{};
}

// Error: stored scales for a KV format that is not calibrated, or missing scales for one that is.
Status check_kv(const ExportSpec& spec) {
    const auto scale = std::ranges::find_if(spec.tensors, is_kv_scale);
    const bool any = scale != spec.tensors.end();
    const bool calibrated = spec.kv == KvFormat::fp8 || spec.kv == KvFormat::nvfp4;
    if (any && !calibrated)
        return fail("{}: a KV cache scale, but the KV cache format is {}", show_name(scale->name), kv_name(spec.kv));
    if (!any && calibrated)
        return fail("the KV cache format {} needs k_scale and v_scale tensors; {}_cast needs none", kv_name(spec.kv),
                    kv_name(spec.kv));
    if (spec.dialect == Dialect::plain && spec.kv != KvFormat::none)
        return fail("a plain checkpoint has no KV cache format, but {} was requested", kv_name(spec.kv));
    return Ok{};
}

Status check_side_files(const ExportSpec& spec) {
    std::set<std::string_view> names{"config.json", "hf_quant_config.json", "nibble.json"};
    for (const Checkpoint::SideFile& file : spec.side_files) {
        if (!is_inside_name(file.name)) return fail("side file {}: its path leaves the folder", show_name(file.name));
        if (!names.insert(file.name).second || file.name.ends_with(".safetensors") ||
            file.name.ends_with(".safetensors.index.json"))
            return fail("side file {}: has the name of a file that the export writes", show_name(file.name));
    }
    return Ok{};
}

// compressed-tensors stores KV scales in the attention module: "P.k_proj.k_scale" becomes "P.k_scale" of shape [1]. The
// value stays FP32; the library itself stores BF16, which would lose bits, and engines widen whatever they read.
TensorSpec plain_spec(Dialect dialect, const ExportTensor& t) {
    TensorSpec spec{t.name, t.dtype, t.experts ? stack_shape(t.shape, t.experts) : t.shape};
    if (dialect != Dialect::compressed_tensors || !is_kv_scale(t)) return spec;
    const std::string_view projection = parent_name(t.name), last = last_name(t.name);
    if (last_name(projection) == fmt::format("{}_proj", last.front()))
        spec.name = fmt::format("{}.{}", parent_name(projection), last);
    if (spec.shape.empty()) spec.shape = {1};
    return spec;
}

Status add_documents(const ExportSpec& spec, HfLayout& layout) {
    if (!spec.config.is_object()) return fail("config.json: must be an object");
    if (spec.config.contains("quantization_config")) return fail("config.json: already holds a quantization_config");
    Json config = spec.config;
    if (spec.dialect == Dialect::modelopt) {
        NIBBLE_TRY(auto documents, modelopt_documents(spec));
        append_member(config, "quantization_config", std::move(documents.section));
        NIBBLE_TRY(auto text, config_text(documents.hf_quant_config, 4));
        layout.documents.emplace_back("hf_quant_config.json", std::move(text));
    } else if (spec.dialect == Dialect::compressed_tensors) {
        NIBBLE_TRY(auto section, compressed_tensors_section(spec));
        append_member(config, "quantization_config", std::move(section));
    }
    NIBBLE_TRY(auto text, config_text(config, 2));
    layout.documents.emplace_back("config.json", std::move(text));
    return Ok{};
}

}  // namespace

bool HfLayout::has_scalars(size_t i) const {
    return std::any_of(tensors.begin() + std::ptrdiff_t(first_of[i]), tensors.begin() + std::ptrdiff_t(first_of[i + 1]),
                       [](const StoredTensor& t) {
                           return t.part == Part::tensor_scale || t.part == Part::input_scale || t.part == Part::shape;
                       });
}

std::vector<std::string> unquantized_modules(const ExportSpec& spec) {
    std::vector<CheckpointTensor> tensors;
    for (const ExportTensor& t : spec.tensors)
        tensors.push_back({.name = t.name, .shape = t.shape, .dtype = t.dtype, .experts = t.experts});
    const ModelModules model = find_modules(tensors, spec.config);
    std::vector<std::string> names;
    std::string embeddings;
    bool head = false;
    for (size_t i = 0; i < spec.tensors.size(); ++i) {
        const ExportTensor& t = spec.tensors[i];
        const std::string module(module_of_weight(t.name).empty() ? "" : model.modules[i].name);
        if ((t.listed_module || model.modules[i].listed) && t.format == Format::none) {
            // A stack of experts is a parameter of the module whose name engines look up.
            const std::string listed(module.empty() ? parent_name(t.name) : module);
            if (names.empty() || names.back() != listed) names.push_back(listed);
        }
        head |= last_name(module) == "lm_head";
        if (embeddings.empty() && last_name(module).starts_with("embed")) embeddings = module;
    }
    // Without the key the model is tied, which is transformers' default.
    const bool untied = spec.config.is_object() && spec.config.value("tie_word_embeddings", Json()) == false;
    if (!head && !untied && !embeddings.empty())
        names.emplace_back(embeddings.starts_with("language_model.") ? "language_model.lm_head" : "lm_head");
    return names;
}

int64_t rows_of(const ExportTensor& t) { return t.shape.empty() ? 1 : t.shape[0]; }

int64_t cols_of(const ExportTensor& t) {
    int64_t n = 1;  // no overflow: make_hf_layout() has checked the product
    for (size_t i = 1; i < t.shape.size(); ++i) n *= t.shape[i];
    return n;
}

namespace {

// Error: a quantized embedding that is also the head. No loader of these folders supports this.
Status check_tied_head(const ExportSpec& spec) {
    if (spec.config.is_object() && spec.config.value("tie_word_embeddings", Json()) == false) return Ok{};
    const ExportTensor* embeddings = nullptr;
    for (const ExportTensor& t : spec.tensors) {
        const std::string module(module_of_weight(t.name));
        if (last_name(module) == "lm_head") return Ok{};
        if (!embeddings && t.format != Format::none && last_name(module).starts_with("embed")) embeddings = &t;
    }
    if (!embeddings) return Ok{};
    return fail(
        "'{}' is also the output head: only a GGUF file can store it in {} (use --format gguf, or omit --embeddings)",
        embeddings->name, format_name(embeddings->format));
}

}  // namespace

Result<HfLayout> make_hf_layout(const ExportSpec& spec) {
    if (spec.dialect != Dialect::plain && spec.dialect != Dialect::modelopt &&
        spec.dialect != Dialect::compressed_tensors)
        return fail("the dialect {} is not one that a Hugging Face folder is written in", dialect_name(spec.dialect));
    NIBBLE_CHECK(check_kv(spec));
    NIBBLE_CHECK(check_side_files(spec));
    NIBBLE_CHECK(check_tied_head(spec));
    HfLayout layout;
    const auto add = [&](TensorSpec tensor, Part part, bool divides) -> Status {
        const auto elements = checked_elements(tensor.shape);
        const auto bytes = elements ? checked_mul<int64_t>(*elements, dtype_bytes(tensor.dtype)) : std::nullopt;
        if (!bytes) return fail("{}: its size overflows", show_name(tensor.name));
        layout.tensors.push_back({std::move(tensor), *bytes, part, divides});
        return Ok{};
    };
    for (const ExportTensor& t : spec.tensors) {
        layout.first_of.push_back(layout.tensors.size());
        if (!t.shape.empty() && !checked_elements(std::span(t.shape).subspan(1)))
            return fail("{}: its size overflows", show_name(t.name));
        if (t.format == Format::none) {
            if (looks_quantized(t.name, t.dtype) && !is_kv_scale(t))
                return fail("{}: {} looks like part of a quantized matrix, but is declared plain", show_name(t.name),
                            dtype_name(t.dtype));
            NIBBLE_CHECK(add(plain_spec(spec.dialect, t), Part::codes, false));
            continue;
        }
        NIBBLE_CHECK(check_quantized(spec, t));
        const Scheme scheme{t.format, t.activation};
        for (StoredPart& part : stored_parts(spec.dialect, scheme, t.input_scale, t.shape[0], t.shape[1])) {
            std::string name =
                t.experts ? stack_part_name(t.name, part) : fmt::format("{}.{}", module_of_weight(t.name), part.suffix);
            if (t.experts && part.shape.size() == 2) part.shape = stack_shape(part.shape, t.experts);
            NIBBLE_CHECK(add({std::move(name), part.dtype, std::move(part.shape)}, part.part, part.divides));
        }
    }
    layout.first_of.push_back(layout.tensors.size());
    NIBBLE_CHECK(add_documents(spec, layout));
    return layout;
}

}  // namespace nibble
