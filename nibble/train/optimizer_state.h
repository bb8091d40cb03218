// The numbers of an optimizer's state as they are kept in memory and in checkpoints: FP32, or BF16.
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

// The states of one parameter.
struct OptimizerLayout {
    DType dtype = DType::f32;
    bool second = true;  // whether there is a v beside m
};

}  // namespace nibble
