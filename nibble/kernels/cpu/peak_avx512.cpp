#include "kernels/cpu/peak_cpu.h"

#include <immintrin.h>

namespace nibble::cpu {

float peak_avx512(int64_t rounds) {
    volatile float half = 0.5f;  // the compiler must not know what converges
    const __m512 a = _mm512_set1_ps(half), b = _mm512_set1_ps(half + half);
    __m512 x[peak_chains];
    for (int i = 0; i < peak_chains; ++i) x[i] = _mm512_set1_ps(static_cast<float>(i));
    for (int64_t r = 0; r < rounds; ++r)
        for (int i = 0; i < peak_chains; ++i) x[i] = _mm512_fmadd_ps(x[i], a, b);
    for (int i = 1; i < peak_chains; ++i) x[0] = _mm512_add_ps(x[0], x[i]);
    float lanes[16];
    _mm512_storeu_ps(lanes, x[0]);
    return lanes[0];
}

}  // namespace nibble::cpu
