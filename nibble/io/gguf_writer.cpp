#include "io/gguf_writer.h"

#include "base/checked.h"

#include <algorithm>
#include <bit>
#include <unordered_set>

namespace nibble {
namespace {

// Appends values in the byte order of the file.
class HeaderBuilder {
public:
    template <class T>
    void put(T value) {
        char bytes[sizeof(T)];
        std::memcpy(bytes, &value, sizeof(T));
        text_.append(bytes, sizeof(T));
    }
    void put_string(std::string_view text) {
        put<uint64_t>(text.size());
        text_ += text;
    }
    void put_value(const GgufValue& value) {
        put(static_cast<uint32_t>(gguf_type(value)));
        std::visit([&](const auto& v) { put_payload(v); }, value);
    }
    void pad(uint64_t alignment) { text_.resize(round_up<uint64_t>(text_.size(), alignment)); }
    std::string take() && { return std::move(text_); }

private:
    template <class T>
    void put_payload(const T& value) {
        if constexpr (std::is_same_v<T, std::string>) {
            put_string(value);
        } else if constexpr (std::is_same_v<T, GgufArray>) {
            put(static_cast<uint32_t>(value.type));
            put(value.count);
            text_.append(reinterpret_cast<const char*>(value.raw.data()), value.raw.size());
            for (const std::string_view text : value.strings) put_string(text);
        } else if constexpr (std::is_same_v<T, bool>) {
            put<uint8_t>(value ? 1 : 0);
        } else {
            put(value);
        }
    }

    std::string text_;
};

Result<uint64_t> alignment_of(const GgufMetadata& metadata) {
    const GgufValue* value = metadata.find("general.alignment");
    if (!value) return gguf_default_alignment;
    const uint32_t* alignment = std::get_if<uint32_t>(value);
    if (!alignment || !std::has_single_bit(*alignment))
        return fail("metadata key 'general.alignment' must be a u32 power of two");
    return *alignment;
}

Status check_spec(const GgufTensorSpec& spec) {
    if (spec.name.empty() || spec.name.size() > gguf_max_name_bytes)
        return fail("tensor '{}': a GGUF tensor name has 1 to {} bytes", spec.name, gguf_max_name_bytes);
    if (spec.shape.empty() || spec.shape.size() > gguf_max_dims)
        return fail("tensor '{}' has {} dimensions: 1 to {} are allowed", spec.name, spec.shape.size(), gguf_max_dims);
    for (int64_t extent : spec.shape)
        if (extent < 1) return fail("tensor '{}' has a dimension of {}", spec.name, extent);
    return Ok{};
}

Status check_metadata(const GgufMetadata& metadata) {
    for (const GgufKv& kv : metadata.entries()) {
        if (kv.key.empty()) return fail("a metadata key is empty");
        const GgufArray* array = std::get_if<GgufArray>(&kv.value);
        if (!array) continue;
        const bool strings = array->type == GgufValueType::string;
        if (array->count > gguf_max_count || array->type == GgufValueType::array ||
            array->strings.size() != (strings ? array->count : 0) ||
            array->raw.size() != array->count * gguf_type_bytes(array->type))
            return fail("metadata key {}: array of {} with {} elements does not match its data", gguf_shown(kv.key),
                        gguf_type_name(array->type), array->count);
    }
    return Ok{};
}

}  // namespace

Result<GgufLayout> GgufLayout::make(const GgufMetadata& metadata, std::vector<GgufTensorSpec> tensors) {
    NIBBLE_CHECK(check_metadata(metadata));
    NIBBLE_TRY(const uint64_t alignment, alignment_of(metadata));
    HeaderBuilder header;
    header.put<uint32_t>(0x46554747u);  // "GGUF"
    header.put<uint32_t>(3);
    header.put<int64_t>(tensors.size());
    header.put<int64_t>(metadata.entries().size());
    for (const GgufKv& kv : metadata.entries()) {
        header.put_string(kv.key);
        header.put_value(kv.value);
    }

    GgufLayout layout;
    std::unordered_set<std::string_view> names;
    int64_t data_bytes = 0;
    for (const GgufTensorSpec& spec : tensors) {
        NIBBLE_CHECK(check_spec(spec));
        if (!names.insert(spec.name).second) return fail("tensor '{}' appears twice", spec.name);
        NIBBLE_TRY(const int64_t bytes, ggml_tensor_bytes(spec.type, spec.shape).within(spec.name));
        // ggml omits dimensions after the last one above 1.
        const auto first = std::find_if(spec.shape.begin(), spec.shape.end() - 1, [](int64_t d) { return d != 1; });
        header.put_string(spec.name);
        header.put<uint32_t>(spec.shape.end() - first);
        for (auto d = spec.shape.end(); d != first;) header.put<int64_t>(*--d);
        header.put(static_cast<uint32_t>(spec.type));
        header.put<uint64_t>(data_bytes);
        layout.places_.push_back({data_bytes, bytes});
        const auto end = checked_add(data_bytes, bytes);
        const auto padded = end ? checked_add<int64_t>(*end, alignment - 1) : end;
        if (!padded) return fail("tensor '{}' ends beyond 2^63 bytes", spec.name);
        data_bytes = *padded / alignment * alignment;
    }
    header.pad(alignment);
    layout.header_ = std::move(header).take();
    const auto file_bytes = checked_add<int64_t>(data_bytes, layout.header_.size());
    if (!file_bytes) return fail("the file would have more than 2^63 bytes");
    layout.file_bytes_ = *file_bytes;
    for (Place& place : layout.places_) place.offset += layout.header_.size();
    layout.tensors_ = std::move(tensors);
    return layout;
}

}  // namespace nibble
