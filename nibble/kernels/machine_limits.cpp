#include "kernels/machine_limits.h"

#include "base/large_pages.h"
#include "kernels/cpu/features.h"
#include "kernels/cpu/limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <new>
#include <vector>

namespace nibble {
namespace {

int64_t scalar_multiply_add(int64_t rounds) {
    constexpr int accumulators = 8;
    float sum[accumulators] = {};
    for (int64_t i = 0; i < rounds; ++i)
        for (float& s : sum) s = std::fma(0.5f, 0.25f, s);
    volatile float keep = 0;
    for (const float s : sum) keep = keep + s;
    return rounds * accumulators * 2;
}

uint64_t scalar_read(const std::byte* p, int64_t n) {
    uint64_t all = 0;
    for (int64_t i = 0; i < n; i += 8) {
        uint64_t word;
        std::memcpy(&word, p + i, sizeof word);
        all ^= word;
    }
    return all;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

constexpr MachineLimits entries[] = {
#if defined(__x86_64__)
    {"amx", cpu::has_amx, [](int64_t rounds) { return cpu::limits_amx.multiply_add(rounds); },
     [](const std::byte* p, int64_t n) { return cpu::limits_amx.read(p, n); }},
    {"avx512", cpu::has_avx512, [](int64_t rounds) { return cpu::limits_avx512.multiply_add(rounds); },
     [](const std::byte* p, int64_t n) { return cpu::limits_avx512.read(p, n); }},
    {"avx2", cpu::has_avx2, [](int64_t rounds) { return cpu::limits_avx2.multiply_add(rounds); },
     [](const std::byte* p, int64_t n) { return cpu::limits_avx2.read(p, n); }},
#endif
    {"ref", [] { return true; }, scalar_multiply_add, scalar_read},
};

}  // namespace

std::span<const MachineLimits> machine_limits() { return entries; }

Result<const MachineLimits*> select_machine_limits(std::string_view name) {
    for (const MachineLimits& m : entries)
        if (m.name == name && m.supported()) return &m;
    return fail("machine limits '{}': unknown or not supported by this CPU", name);
}

double measure_operations(const MachineLimits& limits, ThreadPool& pool, double seconds) {
    std::atomic<int64_t> operations;
    const auto run = [&](int64_t rounds) {
        operations = 0;
        const double start = now();
        pool.parallel_for(pool.threads(), [&](int64_t) { operations += limits.multiply_add(rounds); });
        return now() - start;
    };
    int64_t rounds = 1 << 10;
    while (run(rounds) < seconds / 2) rounds *= 2;
    double best = 0;
    for (int i = 0; i < 5; ++i) {
        const double time = run(rounds);
        best = std::max(best, static_cast<double>(operations) / time);
    }
    return best;
}

double measure_reading(const MachineLimits& limits, ThreadPool& pool, int64_t bytes) {
    const std::shared_ptr<std::byte> memory = large_pages(bytes);
    if (!memory) throw std::bad_alloc();
    std::fill_n(memory.get(), bytes, std::byte{1});
    constexpr int64_t piece = 1 << 20;
    const int64_t pieces = bytes / piece;
    std::atomic<uint64_t> sink{0};
    std::vector<double> rates;
    for (int pass = 0; pass < 7; ++pass) {
        const double start = now();
        pool.parallel_for(pieces, [&](int64_t i) { sink += limits.read(memory.get() + i * piece, piece); });
        rates.push_back(static_cast<double>(pieces * piece) / (now() - start));
    }
    std::ranges::nth_element(rates, rates.begin() + 3);
    return rates[3];
}

}  // namespace nibble
