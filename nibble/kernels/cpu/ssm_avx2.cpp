#include "kernels/cpu/vec_avx2.h"
#include "kernels/ssm_rows.h"

namespace nibble::avx2 {
namespace {

// 32 x 32 -> 64 bits, unsigned.
void multiply_wide(I a, I b, I& high, I& low) {
    const I even = _mm256_mul_epu32(a, b);
    const I odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
    high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
    low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
}
I truncate(F x) { return _mm256_cvttps_epi32(x); }
I iota() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
void store_u16(uint16_t* p, I x) {
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}
void store_f16(uint16_t* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
F load_f16(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }

}  // namespace
}  // namespace nibble::avx2

#define NIBBLE_ISA avx2
#include "kernels/cpu/exp.inc"

#include "kernels/cpu/ssm.inc"

namespace nibble::cpu {

void ssm_scan_avx2(const SsmHead& head) { avx2::scan(head); }
void ssm_round_avx2(const SsmNarrow& narrow) { avx2::round_state(narrow); }
void ssm_widen_avx2(const SsmNarrow& narrow) { avx2::widen(narrow); }
void ssm_convolve_avx2(const float* const* taps, int conv, const float* weight, const float* bias, int64_t channels,
                       float* out) {
    avx2::convolve(taps, conv, weight, bias, channels, out);
}

}  // namespace nibble::cpu
