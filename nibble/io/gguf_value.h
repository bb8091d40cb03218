// Metadata values of GGUF files. Scalars are owned. Arrays are views: of the file from which they were read, or of the
// caller's vectors for a writer.
#pragma once

#include "base/error.h"
#include "base/mapped_file.h"

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

namespace nibble {

// Types of values, with the numbers of the file format.
// clang-format off
enum class GgufValueType : uint32_t {
    u8 = 0, i8 = 1, u16 = 2, i16 = 3, u32 = 4, i32 = 5, f32 = 6, boolean = 7, string = 8, array = 9, u64 = 10, i64 = 11, f64 = 12,
};
// clang-format on
std::string_view gguf_type_name(GgufValueType type);

// Returns a key, name or string of a file for a message: quoted, escaped, and shortened.
std::string gguf_shown(std::string_view text);

// Returns the bytes of one value of a fixed-size type; 0 for string and array.
int gguf_type_bytes(GgufValueType type);

template <class T>
constexpr GgufValueType gguf_type_of() {
    if constexpr (std::is_same_v<T, uint8_t>) return GgufValueType::u8;
    if constexpr (std::is_same_v<T, int8_t>) return GgufValueType::i8;
    if constexpr (std::is_same_v<T, uint16_t>) return GgufValueType::u16;
    if constexpr (std::is_same_v<T, int16_t>) return GgufValueType::i16;
    if constexpr (std::is_same_v<T, uint32_t>) return GgufValueType::u32;
    if constexpr (std::is_same_v<T, int32_t>) return GgufValueType::i32;
    if constexpr (std::is_same_v<T, float>) return GgufValueType::f32;
    if constexpr (std::is_same_v<T, bool>) return GgufValueType::boolean;
    if constexpr (std::is_same_v<T, uint64_t>) return GgufValueType::u64;
    if constexpr (std::is_same_v<T, int64_t>) return GgufValueType::i64;
    if constexpr (std::is_same_v<T, double>) return GgufValueType::f64;
}

// A view of an array of one type. Numbers stay little-endian, unaligned bytes. Strings are one view each, so that a
// vocabulary of 150,000 tokens needs 2.4 MB and no copies.
struct GgufArray {
    GgufValueType type = GgufValueType::u32;
    uint64_t count = 0;
    Bytes raw;                              // used for numbers and booleans
    std::vector<std::string_view> strings;  // used for strings

    template <class T>
    static GgufArray of(std::span<const T> values) {
        return {gguf_type_of<T>(), values.size(), std::as_bytes(values), {}};
    }
    static GgufArray of(std::vector<std::string_view> values) {
        const uint64_t count = values.size();
        return {GgufValueType::string, count, {}, std::move(values)};
    }

    // Precondition: type == gguf_type_of<T>(), index < count.
    template <class T>
    T at(uint64_t index) const {
        T value;
        std::memcpy(&value, raw.data() + index * sizeof(T), sizeof(T));
        return value;
    }
};

// The alternatives have the order of GgufValueType.
using GgufValue = std::variant<uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, float, bool, std::string,
                               GgufArray, uint64_t, int64_t, double>;

inline GgufValueType gguf_type(const GgufValue& value) { return static_cast<GgufValueType>(value.index()); }

struct GgufKv {
    std::string key;
    GgufValue value;
};

// Keys in file order, unique. Errors of all getters name the key, the expected type and the actual type.
class GgufMetadata {
public:
    // Returns false, without a change, if the key exists.
    bool add(std::string key, GgufValue value);

    const std::vector<GgufKv>& entries() const { return entries_; }
    const GgufValue* find(std::string_view key) const;
    bool has(std::string_view key) const { return find(key) != nullptr; }

    // Accepts any integer type whose value fits into int64, because converters use different widths.
    Result<int64_t> integer(std::string_view key) const;
    Result<double> number(std::string_view key) const;  // accepts f32 or f64
    Result<bool> boolean(std::string_view key) const;
    Result<std::string_view> string(std::string_view key) const;
    Result<const GgufArray*> array(std::string_view key, GgufValueType type) const;
    Result<const std::vector<std::string_view>*> strings(std::string_view key) const;
    // Accepts an array of integers of any width, or one scalar as a single entry.
    Result<std::vector<int64_t>> integers(std::string_view key) const;

    // The same for keys that may be absent. A key with another type is still an error.
    Result<int64_t> integer_or(std::string_view key, int64_t fallback) const;
    Result<double> number_or(std::string_view key, double fallback) const;
    Result<bool> boolean_or(std::string_view key, bool fallback) const;
    Result<std::string_view> string_or(std::string_view key, std::string_view fallback) const;

private:
    std::vector<GgufKv> entries_;
    std::unordered_map<std::string, size_t> index_;
};

}  // namespace nibble
