// Vectors of 16 lanes for AVX-512 (F, BW, VL, DQ). vec_avx2.h has the same names for 8 lanes; the loops in *.inc use
// them. Included by *_avx512.cpp only. Everything is in a namespace of this instruction set, so that the linker cannot
// give such code to a caller that has not checked the CPU.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace nibble::avx512 {

constexpr int lanes = 16;
using F = __m512;
using I = __m512i;
using M = __mmask16;

#define NIBBLE_OP [[gnu::always_inline]] inline

NIBBLE_OP F splat(float x) { return _mm512_set1_ps(x); }
NIBBLE_OP I splat(int32_t x) { return _mm512_set1_epi32(x); }
NIBBLE_OP F zero() { return _mm512_setzero_ps(); }
NIBBLE_OP F load(const float* p) { return _mm512_loadu_ps(p); }
NIBBLE_OP void store(float* p, F x) { _mm512_storeu_ps(p, x); }
NIBBLE_OP void stream(float* p, F x) { _mm512_stream_ps(p, x); }

NIBBLE_OP F add(F a, F b) { return _mm512_add_ps(a, b); }
NIBBLE_OP F sub(F a, F b) { return _mm512_sub_ps(a, b); }
NIBBLE_OP F mul(F a, F b) { return _mm512_mul_ps(a, b); }
NIBBLE_OP F div(F a, F b) { return _mm512_div_ps(a, b); }
NIBBLE_OP F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }    // a*b + c, rounded once
NIBBLE_OP F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a*b, rounded once
// Return `b` if either is NaN.
NIBBLE_OP F min(F a, F b) { return _mm512_min_ps(a, b); }
NIBBLE_OP F max(F a, F b) { return _mm512_max_ps(a, b); }

NIBBLE_OP float reduce_max(F x) { return _mm512_reduce_max_ps(x); }  // no NaN

NIBBLE_OP I bits(F x) { return _mm512_castps_si512(x); }
NIBBLE_OP F as_float(I x) { return _mm512_castsi512_ps(x); }
NIBBLE_OP F abs(F x) { return as_float(_mm512_and_si512(bits(x), splat(0x7FFFFFFF))); }
NIBBLE_OP F to_float(I x) { return _mm512_cvtepi32_ps(x); }

NIBBLE_OP F round_to_fp16(F x) {
    return _mm512_cvtph_ps(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

NIBBLE_OP I add(I a, I b) { return _mm512_add_epi32(a, b); }
NIBBLE_OP I sub(I a, I b) { return _mm512_sub_epi32(a, b); }
NIBBLE_OP I both(I a, I b) { return _mm512_and_si512(a, b); }
NIBBLE_OP I either(I a, I b) { return _mm512_or_si512(a, b); }
NIBBLE_OP I differ(I a, I b) { return _mm512_xor_si512(a, b); }
template <int n>
NIBBLE_OP I shift_left(I a) {
    return _mm512_slli_epi32(a, n);
}
template <int n>
NIBBLE_OP I shift_right(I a) {
    return _mm512_srli_epi32(a, n);
}
NIBBLE_OP I min_unsigned(I a, I b) { return _mm512_min_epu32(a, b); }
NIBBLE_OP I max_unsigned(I a, I b) { return _mm512_max_epu32(a, b); }
NIBBLE_OP I min_signed(I a, I b) { return _mm512_min_epi32(a, b); }
NIBBLE_OP I max_signed(I a, I b) { return _mm512_max_epi32(a, b); }

// Comparisons return false if either is NaN.
NIBBLE_OP M less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
NIBBLE_OP M equal(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
NIBBLE_OP M unequal(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_OQ); }
NIBBLE_OP M less(I a, I b) { return _mm512_cmplt_epi32_mask(a, b); }
NIBBLE_OP M equal(I a, I b) { return _mm512_cmpeq_epi32_mask(a, b); }
NIBBLE_OP M negative(I a) { return _mm512_movepi32_mask(a); }
NIBBLE_OP M all_of(M a, M b) { return static_cast<M>(a & b); }
NIBBLE_OP M any_of(M a, M b) { return static_cast<M>(a | b); }
NIBBLE_OP M none_of(M a) { return static_cast<M>(~a); }
NIBBLE_OP bool any(M m) { return m != 0; }
NIBBLE_OP int count(M m) { return __builtin_popcount(m); }
NIBBLE_OP F select(M m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }
NIBBLE_OP I select(M m, I yes, I no) { return _mm512_mask_blend_epi32(m, no, yes); }
NIBBLE_OP I where(M m, I x) { return _mm512_maskz_mov_epi32(m, x); }                // x, or 0
NIBBLE_OP I add_where(M m, I a, I b) { return _mm512_mask_add_epi32(a, m, a, b); }  // a + b, or a

// a + four products of unsigned bytes u and signed bytes s per lane. Inline assembly, because GCC 12 copies the sum
// twice around the intrinsic (a tile of 8 x 32 then runs at half the speed).
NIBBLE_OP I dot4_bytes(I a, I u, I s) {
    asm("vpdpbusd %2, %1, %0" : "+v"(a) : "v"(u), "v"(s));
    return a;
}
// The same with four signed bytes shared by all lanes.
NIBBLE_OP I dot4_bytes(I a, I u, const uint32_t* s) {
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(a) : "v"(u), "m"(*s));
    return a;
}

NIBBLE_OP F gather(const float* table, I index) { return _mm512_i32gather_ps(index, table, 4); }

// ---- Consecutive elements ----------------------------------------------------------------------------------------

NIBBLE_OP F load_weights(const float* p) { return load(p); }
NIBBLE_OP F load_weights(const uint16_t* p) {
    return as_float(shift_left<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))));
}
NIBBLE_OP I load_bytes(const uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
NIBBLE_OP void store_bytes(uint8_t* p, I x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x));
}
// Loads 16 codes from 8 bytes, low nibble first.
NIBBLE_OP I load_nibbles(const uint8_t* p) {
    const __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const __m128i split = _mm_and_si128(_mm_or_si128(wide, _mm_slli_epi16(wide, 4)), _mm_set1_epi8(0x0F));
    return _mm512_cvtepu8_epi32(split);
}
// Returns the values of E2M1 codes 0..15.
NIBBLE_OP F e2m1_values(I codes) {
    const F table =
        _mm512_setr_ps(0.f, .5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f, -0.f, -.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f);
    return _mm512_permutexvar_ps(codes, table);
}
// Returns the values of the magnitude codes in the low 3 bits; other bits are ignored.
NIBBLE_OP F e2m1_magnitudes(I codes) {
    const F table = _mm512_setr_ps(0.f, .5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f, 0.f, .5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f);
    return _mm512_permutexvar_ps(codes, table);
}
// Returns the values of 16 E4M3 codes: read as FP16 they are too small by 2^-8; 0x7F and 0xFF are NaN.
NIBBLE_OP F load_e4m3(const uint8_t* p) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m256i wide = _mm256_cvtepi8_epi16(codes);
    const __m256i rest = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x7F)), 7);
    const __m256i sign = _mm256_and_si256(wide, _mm256_set1_epi16(static_cast<int16_t>(0x8000)));
    const F value = mul(_mm512_cvtph_ps(_mm256_or_si256(rest, sign)), splat(256.0f));
    const M nan = _mm256_cmpeq_epi16_mask(rest, _mm256_set1_epi16(0x7F << 7));
    return as_float(select(nan, either(both(bits(value), splat(INT32_MIN)), splat(0x7FC00000)), bits(value)));
}

// Returns the largest magnitude bits of n elements, as FP32 bits.
NIBBLE_OP uint32_t max_magnitude_bits(const uint16_t* p, int64_t n) {
    const I mask = _mm512_set1_epi16(0x7FFF);
    I m[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
    int64_t i = 0;
    for (; i + 128 <= n; i += 128)
        for (int k = 0; k < 4; ++k) m[k] = _mm512_max_epu16(m[k], both(_mm512_loadu_si512(p + i + 32 * k), mask));
    for (; i < n; i += 32) {
        const __mmask32 valid = n - i >= 32 ? ~__mmask32{0} : (__mmask32{1} << (n - i)) - 1;
        m[0] = _mm512_max_epu16(m[0], both(_mm512_maskz_loadu_epi16(valid, p + i), mask));
    }
    const I all = _mm512_max_epu16(_mm512_max_epu16(m[0], m[1]), _mm512_max_epu16(m[2], m[3]));
    return static_cast<uint32_t>(
        _mm512_reduce_max_epu32(max_unsigned(shift_left<16>(all), both(all, splat(static_cast<int32_t>(0xFFFF0000))))));
}
NIBBLE_OP uint32_t max_magnitude_bits(const float* p, int64_t n) {
    I m[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    int64_t i = 0;
    for (; i + 32 <= n; i += 32)
        for (int k = 0; k < 2; ++k) m[k] = max_unsigned(m[k], bits(abs(load(p + i + 16 * k))));
    for (; i < n; i += 16) {
        const __mmask16 valid = static_cast<__mmask16>(n - i >= 16 ? 0xFFFF : (1 << (n - i)) - 1);
        m[0] = max_unsigned(m[0], bits(abs(_mm512_maskz_loadu_ps(valid, p + i))));
    }
    return static_cast<uint32_t>(_mm512_reduce_max_epu32(max_unsigned(m[0], m[1])));
}
NIBBLE_OP uint32_t reduce_max_unsigned(I x) { return static_cast<uint32_t>(_mm512_reduce_max_epu32(x)); }

// ---- 16 double lanes ---------------------------------------------------------------------------------------------

// Sums of squares, element j in lane j % 16. The square of an FP32 number is exact in FP64, so a fused multiply-add
// rounds like an addition.
struct Sum16 {
    __m512d low, high;

    NIBBLE_OP explicit Sum16(const double (&lane)[16]) : low(_mm512_loadu_pd(lane)), high(_mm512_loadu_pd(lane + 8)) {}
    NIBBLE_OP void store(double (&lane)[16]) const {
        _mm512_storeu_pd(lane, low);
        _mm512_storeu_pd(lane + 8, high);
    }
    // Adds x² to lanes [at, at + lanes); at is always 0 here.
    NIBBLE_OP void add_squares(F x, int) {
        const __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
        const __m512d b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
        low = _mm512_fmadd_pd(a, a, low);
        high = _mm512_fmadd_pd(b, b, high);
    }
};

// ---- One lane per block ------------------------------------------------------------------------------------------

// Lane b of out[k] = the k-th 32-bit word at base + b * stride.
NIBBLE_OP void transpose8(const uint8_t* base, ptrdiff_t stride, I (&out)[8]) {
    I r[8];
    // r[j]: blocks j and j + 8, 8 words each.
    for (int j = 0; j < 8; ++j) {
        const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(base + j * stride));
        const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(base + (j + 8) * stride));
        r[j] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }
    I t[8], u[8];
    for (int j = 0; j < 8; j += 2) {
        t[j] = _mm512_unpacklo_epi32(r[j], r[j + 1]);
        t[j + 1] = _mm512_unpackhi_epi32(r[j], r[j + 1]);
    }
    for (int j = 0; j < 8; j += 4) {
        u[j] = _mm512_unpacklo_epi64(t[j], t[j + 2]);
        u[j + 1] = _mm512_unpackhi_epi64(t[j], t[j + 2]);
        u[j + 2] = _mm512_unpacklo_epi64(t[j + 1], t[j + 3]);
        u[j + 3] = _mm512_unpackhi_epi64(t[j + 1], t[j + 3]);
    }
    // u[k] holds words k (quarters 0, 2) and k + 4 (quarters 1, 3) of blocks 0-3 | 8-11; u[k + 4] of blocks 4-7 |
    // 12-15.
    const I first = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13), second = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    for (int k = 0; k < 4; ++k) {
        out[k] = _mm512_permutex2var_epi64(u[k], first, u[k + 4]);
        out[k + 4] = _mm512_permutex2var_epi64(u[k], second, u[k + 4]);
    }
}

// Writes block b's two words to dst + 8 b.
NIBBLE_OP void store_pairs(uint8_t* dst, I first, I second) {
    const I low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const I high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    _mm512_storeu_si512(dst, _mm512_permutex2var_epi32(first, low, second));
    _mm512_storeu_si512(dst + 64, _mm512_permutex2var_epi32(first, high, second));
}

// Writes block b's four words to dst + b * stride.
NIBBLE_OP void store_quads(uint8_t* dst, ptrdiff_t stride, const I (&w)[4]) {
    const I a = _mm512_unpacklo_epi32(w[0], w[1]), b = _mm512_unpackhi_epi32(w[0], w[1]);
    const I c = _mm512_unpacklo_epi32(w[2], w[3]), d = _mm512_unpackhi_epi32(w[2], w[3]);
    const I q[4] = {_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c), _mm512_unpacklo_epi64(b, d),
                    _mm512_unpackhi_epi64(b, d)};
    for (int j = 0; j < 4; ++j) {
        const auto put = [&](int block, __m128i x) {
            _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + block * stride), x);
        };
        put(j, _mm512_castsi512_si128(q[j]));
        put(4 + j, _mm512_extracti32x4_epi32(q[j], 1));
        put(8 + j, _mm512_extracti32x4_epi32(q[j], 2));
        put(12 + j, _mm512_extracti32x4_epi32(q[j], 3));
    }
}

#undef NIBBLE_OP

}  // namespace nibble::avx512
