// Two limits of this machine, what it reads from memory and what it multiplies and adds: what `nibble bench` divides
// by. Not part of any product.
#pragma once

#include "base/error.h"
#include "base/thread_pool.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace nibble {

struct MachineLimits {
    std::string_view name;  // as in matmul_kernels()
    bool (*supported)();
    // Independent multiply-adds in registers (FP32; amx: of BF16), `rounds` times; returns how many floating-point
    // operations.
    int64_t (*multiply_add)(int64_t rounds);
    // Reads every byte of [p, p + n), n a multiple of 512; the result depends on all of them.
    uint64_t (*read)(const std::byte* p, int64_t n);
};

std::span<const MachineLimits> machine_limits();  // fastest first
// The entry of that name; an error when this CPU lacks it.
Result<const MachineLimits*> select_machine_limits(std::string_view name);

// Floating-point operations per second of all threads together: the best of a few runs of about `seconds`.
double measure_operations(const MachineLimits& limits, ThreadPool& pool, double seconds = 0.05);
// Bytes per second that all threads together read from `bytes` of memory, far more than caches hold: the median of a
// few passes.
double measure_reading(const MachineLimits& limits, ThreadPool& pool, int64_t bytes = int64_t{512} << 20);

}  // namespace nibble
