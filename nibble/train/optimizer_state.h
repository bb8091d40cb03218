// Stores optimizer states as FP32 or BF16, in memory and in checkpoints.
#pragma once

#include "base/dtype.h"
#include "base/error.h"
#include "base/mapped_file.h"

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

namespace nibble {

using StateNumbers = std::variant<std::vector<float>, std::vector<uint16_t>>;

inline DType dtype_of(const StateNumbers& s) { return s.index() == 0 ? DType::f32 : DType::bf16; }
inline Bytes bytes_of(const StateNumbers& s) {
    return std::visit([](const auto& values) -> Bytes { return std::as_bytes(std::span(values)); }, s);
}
inline std::span<std::byte> bytes_of(StateNumbers& s) {
    return std::visit([](auto& values) { return std::as_writable_bytes(std::span(values)); }, s);
}

// The stored form of one parameter's states.
struct OptimizerLayout {
    DType dtype = DType::f32;
    bool second = true;  // true if there is a v in addition to m
};

}  // namespace nibble
