// The type of one element in a file: the storage types of safetensors. Higher folders know the meaning of a byte of U8
// (two E2M1 codes, an E8M0 exponent).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace nibble {

enum class DType : uint8_t {
    boolean,
    u8,
    i8,
    f8_e4m3,
    f8_e5m2,
    f8_e8m0,
    i16,
    u16,
    f16,
    bf16,
    i32,
    u32,
    f32,
    i64,
    u64,
    f64
};

// Bytes per element.
int dtype_bytes(DType dtype);

// Names in safetensors: "BF16", "F8_E4M3", "U8" ...
std::string_view dtype_name(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);

// Names in torch, used by config.json's torch_dtype or dtype: "bfloat16", "float8_e4m3fn", "uint8" ...
std::string_view dtype_torch_name(DType dtype);
std::optional<DType> dtype_from_torch_name(std::string_view name);

// Returns true if the type is BF16, F16, F32 or F64, the types of weights before quantization.
bool is_plain_float(DType dtype);

}  // namespace nibble
