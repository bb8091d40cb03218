#include "io/gguf_value.h"

#include "io/json_events.h"

#include <array>
#include <optional>
#include <utility>

namespace nibble {
namespace {

struct TypeRow {
    std::string_view name;
    int bytes;
};
constexpr std::array<TypeRow, 13> rows{{{"u8", 1},
                                        {"i8", 1},
                                        {"u16", 2},
                                        {"i16", 2},
                                        {"u32", 4},
                                        {"i32", 4},
                                        {"f32", 4},
                                        {"bool", 1},
                                        {"string", 0},
                                        {"array", 0},
                                        {"u64", 8},
                                        {"i64", 8},
                                        {"f64", 8}}};

Error missing(std::string_view key) { return fail("metadata has no key {}", gguf_shown(key)); }
Error wrong(std::string_view key, std::string_view wanted, const GgufValue& value) {
    return fail("metadata key {}: expected {}, found {}", gguf_shown(key), wanted, gguf_type_name(gguf_type(value)));
}

std::optional<int64_t> as_integer(const GgufValue& value) {
    return std::visit(
        [](const auto& v) -> std::optional<int64_t> {
            using T = std::decay_t<decltype(v)>;
            if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
                if (std::in_range<int64_t>(v)) return static_cast<int64_t>(v);
            }
            return std::nullopt;
        },
        value);
}

template <class T>
std::optional<std::vector<int64_t>> widen(const GgufArray& array) {
    std::vector<int64_t> out(array.count);
    for (uint64_t i = 0; i < array.count; ++i) {
        const T value = array.at<T>(i);
        if (!std::in_range<int64_t>(value)) return std::nullopt;
        out[i] = static_cast<int64_t>(value);
    }
    return out;
}

std::optional<std::vector<int64_t>> widen_any(const GgufArray& array) {
    switch (array.type) {
        case GgufValueType::u8:
            return widen<uint8_t>(array);
        case GgufValueType::i8:
            return widen<int8_t>(array);
        case GgufValueType::u16:
            return widen<uint16_t>(array);
        case GgufValueType::i16:
            return widen<int16_t>(array);
        case GgufValueType::u32:
            return widen<uint32_t>(array);
        case GgufValueType::i32:
            return widen<int32_t>(array);
        case GgufValueType::u64:
            return widen<uint64_t>(array);
        case GgufValueType::i64:
            return widen<int64_t>(array);
        default:
            return std::nullopt;
    }
}

}  // namespace

std::string_view gguf_type_name(GgufValueType type) {
    const auto i = static_cast<size_t>(type);
    return i < rows.size() ? rows[i].name : "unknown";
}

std::string gguf_shown(std::string_view text) {
    constexpr size_t limit = 100;
    return text.size() <= limit ? show_name(text) : show_name(text.substr(0, limit)) + "...";
}

int gguf_type_bytes(GgufValueType type) {
    const auto i = static_cast<size_t>(type);
    return i < rows.size() ? rows[i].bytes : 0;
}

bool GgufMetadata::add(std::string key, GgufValue value) {
    if (!index_.emplace(key, entries_.size()).second) return false;
    entries_.push_back({std::move(key), std::move(value)});
    return true;
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
    const auto it = index_.find(std::string(key));
    return it == index_.end() ? nullptr : &entries_[it->second].value;
}

Result<int64_t> GgufMetadata::integer(std::string_view key) const {
    const GgufValue* value = find(key);
    if (!value) return missing(key);
    if (auto v = as_integer(*value)) return *v;
    return wrong(key, "an integer of at most 63 bits", *value);
}

Result<double> GgufMetadata::number(std::string_view key) const {
    const GgufValue* value = find(key);
    if (!value) return missing(key);
    if (const float* v = std::get_if<float>(value)) return static_cast<double>(*v);
    if (const double* v = std::get_if<double>(value)) return *v;
    return wrong(key, "f32", *value);
}

Result<bool> GgufMetadata::boolean(std::string_view key) const {
    const GgufValue* value = find(key);
    if (!value) return missing(key);
    if (const bool* v = std::get_if<bool>(value)) return *v;
    return wrong(key, "bool", *value);
}

Result<std::string_view> GgufMetadata::string(std::string_view key) const {
    const GgufValue* value = find(key);
    if (!value) return missing(key);
    if (const std::string* v = std::get_if<std::string>(value)) return std::string_view(*v);
    return wrong(key, "string", *value);
}

Result<const GgufArray*> GgufMetadata::array(std::string_view key, GgufValueType type) const {
    const GgufValue* value = find(key);
    if (!value) return missing(key);
    const GgufArray* array = std::get_if<GgufArray>(value);
    if (!array) return wrong(key, fmt::format("array of {}", gguf_type_name(type)), *value);
    if (array->type != type)
        return fail("metadata key {}: expected array of {}, found array of {}", gguf_shown(key), gguf_type_name(type),
                    gguf_type_name(array->type));
    return array;
}

Result<const std::vector<std::string_view>*> GgufMetadata::strings(std::string_view key) const {
    NIBBLE_TRY(const GgufArray* found, array(key, GgufValueType::string));
    return &found->strings;
}

Result<std::vector<int64_t>> GgufMetadata::integers(std::string_view key) const {
    const GgufValue* value = find(key);
    if (!value) return missing(key);
    if (auto v = as_integer(*value)) return std::vector<int64_t>{*v};
    if (const GgufArray* array = std::get_if<GgufArray>(value))
        if (auto list = widen_any(*array)) return *std::move(list);
    return wrong(key, "an integer or an array of integers", *value);
}

Result<int64_t> GgufMetadata::integer_or(std::string_view key, int64_t fallback) const {
    return has(key) ? integer(key) : fallback;
}
Result<double> GgufMetadata::number_or(std::string_view key, double fallback) const {
    return has(key) ? number(key) : fallback;
}
Result<bool> GgufMetadata::boolean_or(std::string_view key, bool fallback) const {
    return has(key) ? boolean(key) : fallback;
}
Result<std::string_view> GgufMetadata::string_or(std::string_view key, std::string_view fallback) const {
    return has(key) ? string(key) : fallback;
}

}  // namespace nibble
