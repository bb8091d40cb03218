// Vectors of 8 lanes for AVX2 with FMA and F16C, with the names of vec_avx512.h. Included by *_avx2.cpp only.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace nibble::avx2 {

constexpr int lanes = 8;
using F = __m256;
using I = __m256i;
struct M {  // all ones or all zeros per lane
    __m256i m;
};

#define NIBBLE_OP [[gnu::always_inline]] inline

NIBBLE_OP F splat(float x) { return _mm256_set1_ps(x); }
NIBBLE_OP I splat(int32_t x) { return _mm256_set1_epi32(x); }
NIBBLE_OP F zero() { return _mm256_setzero_ps(); }
NIBBLE_OP F load(const float* p) { return _mm256_loadu_ps(p); }
NIBBLE_OP void store(float* p, F x) { _mm256_storeu_ps(p, x); }
NIBBLE_OP void stream(float* p, F x) { _mm256_stream_ps(p, x); }

NIBBLE_OP F add(F a, F b) { return _mm256_add_ps(a, b); }
NIBBLE_OP F sub(F a, F b) { return _mm256_sub_ps(a, b); }
NIBBLE_OP F mul(F a, F b) { return _mm256_mul_ps(a, b); }
NIBBLE_OP F div(F a, F b) { return _mm256_div_ps(a, b); }
NIBBLE_OP F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
NIBBLE_OP F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
NIBBLE_OP F min(F a, F b) { return _mm256_min_ps(a, b); }
NIBBLE_OP F max(F a, F b) { return _mm256_max_ps(a, b); }

NIBBLE_OP float reduce_max(F x) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

NIBBLE_OP I bits(F x) { return _mm256_castps_si256(x); }
NIBBLE_OP F as_float(I x) { return _mm256_castsi256_ps(x); }
NIBBLE_OP F abs(F x) { return as_float(_mm256_and_si256(bits(x), splat(0x7FFFFFFF))); }
NIBBLE_OP F to_float(I x) { return _mm256_cvtepi32_ps(x); }

NIBBLE_OP F round_to_fp16(F x) {
    return _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

NIBBLE_OP I add(I a, I b) { return _mm256_add_epi32(a, b); }
NIBBLE_OP I sub(I a, I b) { return _mm256_sub_epi32(a, b); }
NIBBLE_OP I both(I a, I b) { return _mm256_and_si256(a, b); }
NIBBLE_OP I either(I a, I b) { return _mm256_or_si256(a, b); }
NIBBLE_OP I differ(I a, I b) { return _mm256_xor_si256(a, b); }
template <int n>
NIBBLE_OP I shift_left(I a) {
    return _mm256_slli_epi32(a, n);
}
template <int n>
NIBBLE_OP I shift_right(I a) {
    return _mm256_srli_epi32(a, n);
}
NIBBLE_OP I min_unsigned(I a, I b) { return _mm256_min_epu32(a, b); }
NIBBLE_OP I max_unsigned(I a, I b) { return _mm256_max_epu32(a, b); }
NIBBLE_OP I min_signed(I a, I b) { return _mm256_min_epi32(a, b); }
NIBBLE_OP I max_signed(I a, I b) { return _mm256_max_epi32(a, b); }

NIBBLE_OP M less(F a, F b) { return {bits(_mm256_cmp_ps(a, b, _CMP_LT_OQ))}; }
NIBBLE_OP M equal(F a, F b) { return {bits(_mm256_cmp_ps(a, b, _CMP_EQ_OQ))}; }
NIBBLE_OP M unequal(F a, F b) { return {bits(_mm256_cmp_ps(a, b, _CMP_NEQ_OQ))}; }
NIBBLE_OP M less(I a, I b) { return {_mm256_cmpgt_epi32(b, a)}; }
NIBBLE_OP M equal(I a, I b) { return {_mm256_cmpeq_epi32(a, b)}; }
NIBBLE_OP M negative(I a) { return {_mm256_srai_epi32(a, 31)}; }
NIBBLE_OP M all_of(M a, M b) { return {both(a.m, b.m)}; }
NIBBLE_OP M any_of(M a, M b) { return {either(a.m, b.m)}; }
NIBBLE_OP M none_of(M a) { return {differ(a.m, splat(-1))}; }
NIBBLE_OP bool any(M m) { return !_mm256_testz_si256(m.m, m.m); }
NIBBLE_OP int count(M m) { return __builtin_popcount(static_cast<unsigned>(_mm256_movemask_ps(as_float(m.m)))); }
NIBBLE_OP F select(M m, F yes, F no) { return _mm256_blendv_ps(no, yes, as_float(m.m)); }
NIBBLE_OP I select(M m, I yes, I no) { return _mm256_blendv_epi8(no, yes, m.m); }
NIBBLE_OP I where(M m, I x) { return both(m.m, x); }
NIBBLE_OP I add_where(M m, I a, I b) { return add(a, both(m.m, b)); }  // a + b, or a

NIBBLE_OP F gather(const float* table, I index) { return _mm256_i32gather_ps(table, index, 4); }

// ---- Consecutive elements ----------------------------------------------------------------------------------------

NIBBLE_OP F load_weights(const float* p) { return load(p); }
NIBBLE_OP F load_weights(const uint16_t* p) {
    return as_float(shift_left<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))));
}
NIBBLE_OP I load_bytes(const uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
NIBBLE_OP void store_bytes(uint8_t* p, I x) {
    const __m256i pick = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                          -1, -1, -1, -1, 0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i picked = _mm256_shuffle_epi8(x, pick);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p),
                     _mm_or_si128(_mm256_castsi256_si128(picked), _mm256_extracti128_si256(picked, 1)));
}
// Loads 8 codes from 4 bytes, low nibble first.
NIBBLE_OP I load_nibbles(const uint8_t* p) {
    int32_t four;
    std::memcpy(&four, p, 4);
    const __m128i wide = _mm_cvtepu8_epi16(_mm_cvtsi32_si128(four));
    return _mm256_cvtepu8_epi32(_mm_and_si128(_mm_or_si128(wide, _mm_slli_epi16(wide, 4)), _mm_set1_epi8(0x0F)));
}
NIBBLE_OP F e2m1_magnitudes(I codes) {
    return _mm256_permutevar8x32_ps(_mm256_setr_ps(0.f, .5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f), codes);
}
NIBBLE_OP F e2m1_values(I codes) {
    return as_float(differ(bits(e2m1_magnitudes(codes)), shift_left<31>(shift_right<3>(codes))));
}
NIBBLE_OP F load_e4m3(const uint8_t* p) {
    const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const __m128i rest = _mm_slli_epi16(_mm_and_si128(wide, _mm_set1_epi16(0x7F)), 7);
    const __m128i sign = _mm_and_si128(wide, _mm_set1_epi16(static_cast<int16_t>(0x8000)));
    const F value = mul(_mm256_cvtph_ps(_mm_or_si128(rest, sign)), splat(256.0f));
    const M nan{_mm256_cvtepi16_epi32(_mm_cmpeq_epi16(rest, _mm_set1_epi16(0x7F << 7)))};
    return as_float(select(nan, either(both(bits(value), splat(INT32_MIN)), splat(0x7FC00000)), bits(value)));
}

NIBBLE_OP uint32_t reduce_max_unsigned(I x) {
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    m = _mm_max_epu32(m, _mm_unpackhi_epi64(m, m));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}
NIBBLE_OP uint32_t max_magnitude_bits(const uint16_t* p, int64_t n) {
    const I mask = _mm256_set1_epi16(0x7FFF);
    I m[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
    int64_t i = 0;
    for (; i + 64 <= n; i += 64)
        for (int k = 0; k < 4; ++k)
            m[k] = _mm256_max_epu16(m[k], both(_mm256_loadu_si256(reinterpret_cast<const I*>(p + i + 16 * k)), mask));
    for (; i < n; ++i) m[0] = _mm256_max_epu16(m[0], _mm256_set1_epi16(static_cast<int16_t>(p[i] & 0x7FFF)));
    const I all = _mm256_max_epu16(_mm256_max_epu16(m[0], m[1]), _mm256_max_epu16(m[2], m[3]));
    return reduce_max_unsigned(max_unsigned(shift_left<16>(all), both(all, splat(static_cast<int32_t>(0xFFFF0000)))));
}
NIBBLE_OP uint32_t max_magnitude_bits(const float* p, int64_t n) {
    I m[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int k = 0; k < 2; ++k) m[k] = max_unsigned(m[k], bits(abs(load(p + i + 8 * k))));
    for (; i < n; ++i) m[0] = max_unsigned(m[0], bits(abs(splat(p[i]))));
    return reduce_max_unsigned(max_unsigned(m[0], m[1]));
}

// ---- 16 double lanes ---------------------------------------------------------------------------------------------

struct Sum16 {
    __m256d quarter[4];

    NIBBLE_OP explicit Sum16(const double (&lane)[16]) {
        for (int k = 0; k < 4; ++k) quarter[k] = _mm256_loadu_pd(lane + 4 * k);
    }
    NIBBLE_OP void store(double (&lane)[16]) const {
        for (int k = 0; k < 4; ++k) _mm256_storeu_pd(lane + 4 * k, quarter[k]);
    }
    // Adds x² to lanes [at, at + 8).
    NIBBLE_OP void add_squares(F x, int at) {
        const __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
        const __m256d b = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
        quarter[at / 4] = _mm256_fmadd_pd(a, a, quarter[at / 4]);
        quarter[at / 4 + 1] = _mm256_fmadd_pd(b, b, quarter[at / 4 + 1]);
    }
};

// ---- One lane per block ------------------------------------------------------------------------------------------

NIBBLE_OP void transpose8(const uint8_t* base, ptrdiff_t stride, I (&out)[8]) {
    I r[8], t[8], u[8];
    for (int j = 0; j < 8; ++j) r[j] = _mm256_loadu_si256(reinterpret_cast<const I*>(base + j * stride));
    for (int j = 0; j < 8; j += 2) {
        t[j] = _mm256_unpacklo_epi32(r[j], r[j + 1]);
        t[j + 1] = _mm256_unpackhi_epi32(r[j], r[j + 1]);
    }
    for (int j = 0; j < 8; j += 4) {
        u[j] = _mm256_unpacklo_epi64(t[j], t[j + 2]);
        u[j + 1] = _mm256_unpackhi_epi64(t[j], t[j + 2]);
        u[j + 2] = _mm256_unpacklo_epi64(t[j + 1], t[j + 3]);
        u[j + 3] = _mm256_unpackhi_epi64(t[j + 1], t[j + 3]);
    }
    for (int k = 0; k < 4; ++k) {
        out[k] = _mm256_permute2x128_si256(u[k], u[k + 4], 0x20);
        out[k + 4] = _mm256_permute2x128_si256(u[k], u[k + 4], 0x31);
    }
}

NIBBLE_OP void store_pairs(uint8_t* dst, I first, I second) {
    const I low = _mm256_unpacklo_epi32(first, second), high = _mm256_unpackhi_epi32(first, second);
    _mm256_storeu_si256(reinterpret_cast<I*>(dst), _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_storeu_si256(reinterpret_cast<I*>(dst + 32), _mm256_permute2x128_si256(low, high, 0x31));
}

NIBBLE_OP void store_quads(uint8_t* dst, ptrdiff_t stride, const I (&w)[4]) {
    const I a = _mm256_unpacklo_epi32(w[0], w[1]), b = _mm256_unpackhi_epi32(w[0], w[1]);
    const I c = _mm256_unpacklo_epi32(w[2], w[3]), d = _mm256_unpackhi_epi32(w[2], w[3]);
    const I q[4] = {_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c), _mm256_unpacklo_epi64(b, d),
                    _mm256_unpackhi_epi64(b, d)};
    for (int j = 0; j < 4; ++j) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + j * stride), _mm256_castsi256_si128(q[j]));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + (4 + j) * stride), _mm256_extracti128_si256(q[j], 1));
    }
}

#undef NIBBLE_OP

}  // namespace nibble::avx2
