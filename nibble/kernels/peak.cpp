#include "kernels/peak.h"

#include "base/large_pages.h"
#include "kernels/cpu/features.h"
#include "kernels/cpu/peak_cpu.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <new>
#include <vector>

namespace nibble {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

float peak_plain(int64_t rounds) {
    volatile float half = 0.5f;
    const float a = half, b = half + half;
    float x[cpu::peak_chains] = {};
    for (int64_t r = 0; r < rounds; ++r)
        for (float& v : x) v = v * a + b;
    return x[0];
}

#if defined(__x86_64__)
const PeakKernel kernels[] = {
    {"avx512", cpu::has_avx512, cpu::peak_chains * 16, cpu::peak_avx512},
    {"avx2", cpu::has_avx2, cpu::peak_chains * 8, cpu::peak_avx2},
    {"plain", cpu::always, cpu::peak_chains, peak_plain},
};
#else
const PeakKernel kernels[] = {{"plain", [] { return true; }, cpu::peak_chains, peak_plain}};
#endif

}  // namespace

std::span<const PeakKernel> peak_kernels() { return kernels; }

double measure_multiply_adds(const PeakKernel& kernel, ThreadPool& pool, double seconds) {
    std::atomic<float> sink{0};
    const auto run = [&](int64_t rounds) {
        const double start = now();
        pool.parallel_for(pool.threads(), [&](int64_t) { sink = kernel.run(rounds); });
        return now() - start;
    };
    int64_t rounds = 1 << 16;
    while (run(rounds) < seconds / 4) rounds *= 2;
    double best = 0;
    for (int i = 0; i < 5; ++i) {
        const double rate = double(rounds * 4) * double(kernel.multiply_adds) * pool.threads() / run(rounds * 4);
        best = std::max(best, rate);
    }
    return best;
}

double measure_read_bandwidth(ThreadPool& pool, int64_t bytes) {
    const std::shared_ptr<std::byte> pages = large_pages(bytes);
    if (!pages) throw std::bad_alloc();
    auto* const memory = reinterpret_cast<uint64_t*>(pages.get());
    std::fill_n(memory, bytes / 8, uint64_t{1});
    constexpr int64_t piece = 1 << 17;  // words
    const int64_t pieces = bytes / 8 / piece;
    std::atomic<uint64_t> sink{0};
    std::vector<double> rates;
    for (int pass = 0; pass < 7; ++pass) {
        const double start = now();
        pool.parallel_for(pieces, [&](int64_t i) {
            const uint64_t* at = memory + i * piece;
            uint64_t sums[16] = {};
            for (int64_t j = 0; j < piece; j += 16)
                for (int k = 0; k < 16; ++k) sums[k] += at[j + k];
            uint64_t total = 0;
            for (const uint64_t s : sums) total += s;
            sink += total;
        });
        rates.push_back(double(pieces * piece * 8) / (now() - start));
    }
    std::ranges::nth_element(rates, rates.begin() + 3);
    return rates[3];
}

}  // namespace nibble
