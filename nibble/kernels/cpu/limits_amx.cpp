#include "kernels/cpu/amx.h"
#include "kernels/cpu/limits.h"

#include <immintrin.h>

namespace nibble::cpu {
namespace {

// Four tiles of sums, like the products.
int64_t multiply_add(int64_t rounds) {
    constexpr int64_t operations = tile_rows * tile_k * 16 * 2;
    amx_kernels.configure(tile_rows);
    for (int64_t i = 0; i < rounds; ++i) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    amx_kernels.release();
    return rounds * 4 * operations;
}

uint64_t read(const std::byte* p, int64_t n) { return limits_avx512.read(p, n); }

}  // namespace

constinit const LimitLoops limits_amx{multiply_add, read};

}  // namespace nibble::cpu
