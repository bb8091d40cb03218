// Measures two limits of this machine, memory bandwidth and arithmetic throughput, for comparison in `nibble bench`.
// Not used by any product.
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
    // Runs independent multiply-adds in registers (FP32; amx: BF16) `rounds` times. Returns the number of
    // floating-point operations.
    int64_t (*multiply_add)(int64_t rounds);
    // Reads every byte of [p, p + n), n a multiple of 512. The result depends on all bytes.
    uint64_t (*read)(const std::byte* p, int64_t n);
};

std::span<const MachineLimits> machine_limits();  // fastest first
// Returns the entry with that name. Errors: an unknown name, an entry that this CPU does not support.
Result<const MachineLimits*> select_machine_limits(std::string_view name);

// Returns floating-point operations per second of all threads together: the best of a few runs of about `seconds`.
double measure_operations(const MachineLimits& limits, ThreadPool& pool, double seconds = 0.05);
// Returns bytes per second that all threads together read from `bytes` of memory, far more than caches hold: the median
// of a few passes.
double measure_reading(const MachineLimits& limits, ThreadPool& pool, int64_t bytes = int64_t{512} << 20);

}  // namespace nibble
