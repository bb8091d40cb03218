#include "io/safetensors_writer.h"

#include "base/checked.h"
#include "io/json_events.h"
#include "io/safetensors.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace nibble {
namespace {

// Returns the position of `dtype` in the enumeration Dtype of the reference library (safetensors in Rust), whose writer
// sorts tensors by it, highest first.
int reference_rank(DType dtype) {
    switch (dtype) {
        case DType::boolean:
            return 0;
        case DType::u8:
            return 1;
        case DType::i8:
            return 2;
        case DType::f8_e5m2:
            return 3;
        case DType::f8_e4m3:
            return 4;
        case DType::f8_e8m0:
            return 5;
        case DType::i16:
            return 6;
        case DType::u16:
            return 7;
        case DType::f16:
            return 8;
        case DType::bf16:
            return 9;
        case DType::i32:
            return 10;
        case DType::u32:
            return 11;
        case DType::f32:
            return 12;
        case DType::f64:
            return 13;
        case DType::i64:
            return 14;
        case DType::u64:
            return 15;
    }
    __builtin_unreachable();
}

// Returns a JSON string with the reference library's escapes: only quotes, backslashes and control characters.
Result<std::string> json_string(const std::string& text) {
    try {
        return nlohmann::json(text).dump();
    } catch (const nlohmann::json::exception&) {
        return fail("{} is not UTF-8", show_name(text));
    }
}

Result<std::string> metadata_member(const SafetensorsLayout::Metadata& metadata) {
    std::string out = fmt::format("\"{}\":{{", safetensors_metadata_key);
    for (const char* comma = ""; const auto& [key, value] : metadata) {
        NIBBLE_TRY(const auto key_text, json_string(key).within("metadata key"));
        NIBBLE_TRY(const auto value_text, json_string(value).within("metadata value"));
        out += fmt::format("{}{}:{}", comma, key_text, value_text);
        comma = ",";
    }
    out += '}';
    return out;
}

Result<int64_t> tensor_bytes(const TensorSpec& spec) {
    const auto elements = checked_elements(spec.shape);
    const auto bytes = elements ? checked_mul<int64_t>(*elements, dtype_bytes(spec.dtype)) : std::nullopt;
    if (!bytes) return fail("tensor {}: negative dimension, or a size beyond 63 bits", show_name(spec.name));
    return *bytes;
}

// Returns indices in the file order of the reference library. Error: a duplicate name.
Result<std::vector<size_t>> file_order(const std::vector<TensorSpec>& tensors) {
    std::vector<size_t> order(tensors.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto name = [&](size_t i) -> const std::string& { return tensors[i].name; };
    std::ranges::sort(order, {}, name);
    if (const auto twice = std::ranges::adjacent_find(order, {}, name); twice != order.end())
        return fail("duplicate tensor name {}", show_name(name(*twice)));
    std::ranges::stable_sort(order, std::greater{}, [&](size_t i) { return reference_rank(tensors[i].dtype); });
    return order;
}

}  // namespace

Result<SafetensorsLayout> SafetensorsLayout::make(std::vector<TensorSpec> tensors, const Metadata& metadata) {
    NIBBLE_TRY(const auto order, file_order(tensors));
    SafetensorsLayout layout;
    layout.places_.resize(tensors.size());
    std::string json = "{";
    if (!metadata.empty()) {
        NIBBLE_TRY(const auto member, metadata_member(metadata));
        json += member;
    }
    int64_t end = 0;  // end of the data so far
    for (const size_t i : order) {
        const TensorSpec& spec = tensors[i];
        if (spec.name == safetensors_metadata_key)
            return fail("a tensor cannot be named {}: the format reserves that name", show_name(spec.name));
        NIBBLE_TRY(const auto name, json_string(spec.name).within("tensor name"));
        NIBBLE_TRY(const int64_t bytes, tensor_bytes(spec));
        const auto next = checked_add(end, bytes);
        if (!next) return fail("tensor {}: the file would pass 63 bits of size", show_name(spec.name));
        layout.places_[i] = {.offset = end, .bytes = bytes};
        fmt::format_to(std::back_inserter(json), R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                       json.size() > 1 ? "," : "", name, dtype_name(spec.dtype), fmt::join(spec.shape, ","), end,
                       *next);
        end = *next;
    }
    json += '}';
    json.resize(round_up<size_t>(json.size(), 8), ' ');
    if (json.size() > static_cast<size_t>(safetensors_header_limit))
        return fail("the header of {} tensors needs {} bytes, over the format's limit of {}", tensors.size(),
                    json.size(), safetensors_header_limit);

    const uint64_t length = json.size();
    layout.header_.resize(sizeof length);
    std::memcpy(layout.header_.data(), &length, sizeof length);
    layout.header_ += json;
    const auto header_bytes = static_cast<int64_t>(layout.header_.size());
    const auto file_bytes = checked_add(header_bytes, end);
    if (!file_bytes) return fail("the file would pass 63 bits of size");
    for (Place& place : layout.places_) place.offset += header_bytes;
    layout.file_bytes_ = *file_bytes;
    layout.tensors_ = std::move(tensors);
    return layout;
}

}  // namespace nibble
