#include "checkpoint/text_config.h"

#include "architecture/canonical_config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <utility>
#include <vector>

namespace nibble {

namespace {

const Json* value_in(const Json& object, std::span<const char* const> keys) {
    for (const char* key : keys)
        if (const auto found = object.find(key); found != object.end()) return &*found;
    return nullptr;
}

}  // namespace

const Json* text_value(const Json& config, const char* key) {
    if (!config.is_object()) return nullptr;
    const std::vector<const char*> keys = spellings_of(key);
    if (const Json* value = value_in(config, keys)) return value;
    for (const char* part : {"text_config", "llm_config", "language_config"})
        if (const auto inner = config.find(part); inner != config.end() && inner->is_object())
            if (const Json* value = value_in(*inner, keys)) return value;
    return nullptr;
}

Json* text_value(Json& config, const char* key) {
    return const_cast<Json*>(text_value(std::as_const(config), key));  // `config` is not const here
}

int64_t text_integer(const Json& config, const char* key) {
    const Json* value = text_value(config, key);
    return value && value->is_number_integer() ? value->get<int64_t>() : 0;
}

int64_t text_layers(const Json& config) {
    if (const int64_t said = text_integer(config, "num_hidden_layers")) return said;
    const Json* kinds = text_value(config, "layers_block_type");
    if (!kinds) return 0;
    return static_cast<int64_t>(kinds->is_string() ? kinds->get_ref<const std::string&>().size() : kinds->size());
}

std::optional<DType> declared_dtype(const Json& config) {
    const Json* value = text_value(config, "dtype");
    if (!value || !value->is_string()) return std::nullopt;
    const auto dtype = dtype_from_torch_name(value->get_ref<const std::string&>());
    if (dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f32) return dtype;
    return std::nullopt;
}

bool PredictionLayers::contains(std::string_view tensor, bool any_later) const {
    // The other towers number their layers too, so "layers.N" counts only under these names.
    constexpr std::array<std::string_view, 4> text_model{"model", "language_model", "backbone", "transformer"};
    while (!tensor.empty()) {
        const size_t dot = tensor.find('.');
        if (dot == std::string_view::npos) return false;
        const std::string_view part = tensor.substr(0, dot);
        tensor.remove_prefix(dot + 1);
        if (part == "mtp" || part.starts_with("mtp_")) return true;
        if (part == "layers" && layers_ > 0) {
            int64_t n = -1;
            std::from_chars(tensor.data(), tensor.data() + tensor.size(), n);
            return n >= layers_ && (any_later || n < layers_ + announced_);
        }
        if (std::ranges::find(text_model, part) == text_model.end()) return false;
    }
    return false;
}

}  // namespace nibble
