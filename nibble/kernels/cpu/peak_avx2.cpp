#include "kernels/cpu/peak_cpu.h"

#include <immintrin.h>

namespace nibble::cpu {

float peak_avx2(int64_t rounds) {
    volatile float half = 0.5f;  // the compiler must not know what converges
    const __m256 a = _mm256_set1_ps(half), b = _mm256_set1_ps(half + half);
    __m256 x[peak_chains];
    for (int i = 0; i < peak_chains; ++i) x[i] = _mm256_set1_ps(static_cast<float>(i));
    for (int64_t r = 0; r < rounds; ++r)
        for (int i = 0; i < peak_chains; ++i) x[i] = _mm256_fmadd_ps(x[i], a, b);
    for (int i = 1; i < peak_chains; ++i) x[0] = _mm256_add_ps(x[0], x[i]);
    float lanes[8];
    _mm256_storeu_ps(lanes, x[0]);
    return lanes[0];
}

}  // namespace nibble::cpu
