#include "kernels/cpu/vec_avx512.h"
#include "kernels/ssm_rows.h"

namespace nibble::avx512 {
namespace {

// 32 x 32 -> 64 bits, unsigned.
void multiply_wide(I a, I b, I& high, I& low) {
    const I even = _mm512_mul_epu32(a, b);
    const I odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), _mm512_srli_epi64(b, 32));
    high = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
    low = _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
}
I truncate(F x) { return _mm512_cvttps_epi32(x); }
I iota() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
void store_u16(uint16_t* p, I x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x)); }
void store_f16(uint16_t* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
F load_f16(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }

}  // namespace
}  // namespace nibble::avx512

#define NIBBLE_ISA avx512
#include "kernels/cpu/exp.inc"

#include "kernels/cpu/ssm.inc"

namespace nibble::cpu {

void ssm_scan_avx512(const SsmHead& head) { avx512::scan(head); }
void ssm_round_avx512(const SsmNarrow& narrow) { avx512::round_state(narrow); }
void ssm_widen_avx512(const SsmNarrow& narrow) { avx512::widen(narrow); }
void ssm_convolve_avx512(const float* const* taps, int conv, const float* weight, const float* bias, int64_t channels,
                         float* out) {
    avx512::convolve(taps, conv, weight, bias, channels, out);
}

}  // namespace nibble::cpu
