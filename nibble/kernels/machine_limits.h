// The most that this machine does: what `nibble bench` divides by. Not part of any product.
#pragma once

#include "base/error.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace nibble {

struct MachineLimits {
    std::string_view name;  // as in matmul_kernels()
    bool (*supported)();
    // Independent FP32 multiply-adds in registers, `rounds` times; returns how many floating-point operations.
    int64_t (*multiply_add)(int64_t rounds);
    // Reads every byte of [p, p + n), n a multiple of 512; the result depends on all of them.
    uint64_t (*read)(const std::byte* p, int64_t n);
};

std::span<const MachineLimits> machine_limits();  // fastest first
// The entry of that name; an error when this CPU lacks it.
Result<const MachineLimits*> select_machine_limits(std::string_view name);

}  // namespace nibble
