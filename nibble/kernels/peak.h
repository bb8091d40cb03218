// Two limits of this machine, measured: what it reads from memory and what it multiplies and adds. Speeds of the engine
// are told as fractions of them.
#pragma once

#include "base/thread_pool.h"

#include <cstdint>
#include <span>
#include <string_view>

namespace nibble {

// Independent chains of fused multiply-adds in the widest registers, no memory.
struct PeakKernel {
    std::string_view name;  // "avx512", "avx2", "plain"
    bool (*supported)();
    int64_t multiply_adds;         // FP32, of one round
    float (*run)(int64_t rounds);  // the value only keeps the compiler honest
};
// Fastest first.
std::span<const PeakKernel> peak_kernels();

// FP32 multiply-adds per second of all threads of the pool together: the best of a few runs of about `seconds`.
double measure_multiply_adds(const PeakKernel& kernel, ThreadPool& pool, double seconds = 0.05);

// Bytes per second that all threads together read from `bytes` of memory, far more than caches hold: the median of a
// few passes.
double measure_read_bandwidth(ThreadPool& pool, int64_t bytes = int64_t{512} << 20);

}  // namespace nibble
