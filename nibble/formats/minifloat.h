// Small IEEE-like floats. MiniFloat has the exponent bits, mantissa bits and bias of a format. The named functions
// below define the top of its range (NaN, infinity, saturation), because systems differ there.
//
//   type  S-E-M    bias  max     smallest   special                       source
//   E2M1  1-2-1    1     6       0.5        none                          OCP MX 1.0
//   E4M3  1-4-3    7     448     2^-9       NaN = S.1111.111, no infinity OCP OFP8 1.0 ("fn")
//   E5M2  1-5-2    15    57344   2^-16      IEEE infinity and NaN         OCP OFP8 1.0
//   E8M0  0-8-0    127   2^127   2^-127     NaN = 255; no zero, no sign   OCP MX 1.0
//   FP16  1-5-10   15    65504   2^-24      IEEE
//   BF16  1-8-7    127   3.39e38 2^-133     IEEE
//
// All conversions from FP32 round to nearest, ties to even, unless the name says otherwise. Everything is constexpr and
// runs on host and device; no function here reads the floating-point environment or allocates.
#pragma once

#include "base/host_device.h"

#include <bit>
#include <cstdint>

namespace nibble {

NIBBLE_HD constexpr uint32_t float_bits(float x) { return std::bit_cast<uint32_t>(x); }
NIBBLE_HD constexpr float float_from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }
NIBBLE_HD constexpr bool is_nan_bits(uint32_t bits) { return (bits & 0x7FFFFFFFu) > 0x7F800000u; }
NIBBLE_HD constexpr bool is_finite(float x) { return (float_bits(x) & 0x7F800000u) != 0x7F800000u; }
NIBBLE_HD constexpr float magnitude(float x) { return float_from_bits(float_bits(x) & 0x7FFFFFFFu); }

template <int ExponentBits, int MantissaBits>
struct MiniFloat {
    static constexpr int bias = (1 << (ExponentBits - 1)) - 1;
    static constexpr uint32_t sign_bit = 1u << (ExponentBits + MantissaBits);
    // Spacing of the subnormals, 2^(1 - bias - MantissaBits), and the smallest normal.
    static constexpr float step = float_from_bits(uint32_t(127 + 1 - bias - MantissaBits) << 23);
    static constexpr uint32_t min_normal_bits = uint32_t(127 + 1 - bias) << 23;

    // Returns the code of |x| rounded to nearest even, as if exponents had no upper limit; the caller compares it with
    // its largest code. `bits` are those of a finite float with the sign cleared.
    NIBBLE_HD static constexpr uint32_t round_magnitude(uint32_t bits) {
        if (bits < min_normal_bits) {  // adding 2^23 steps makes the FP32 adder round to a whole step
            constexpr float magic = step * 8388608.0f;
            return float_bits(float_from_bits(bits) + magic) - float_bits(magic);
        }
        constexpr int shift = 23 - MantissaBits;
        const uint32_t rounded = bits + ((bits >> shift) & 1u) + ((1u << (shift - 1)) - 1u);
        return (rounded >> shift) - (uint32_t(127 - bias) << MantissaBits);
    }

    // Returns the value of a code without its sign bit. Every exponent is an ordinary one.
    NIBBLE_HD static constexpr float magnitude_value(uint32_t code) {
        if (code < (1u << MantissaBits)) return static_cast<float>(code) * step;
        return float_from_bits((code << (23 - MantissaBits)) + (uint32_t(127 - bias) << 23));
    }
};

// ---- BF16 --------------------------------------------------------------------------------------------------------

NIBBLE_HD constexpr float bf16_to_float(uint16_t code) { return float_from_bits(uint32_t{code} << 16); }

// NaN becomes quiet and keeps its sign and upper payload; overflow gives infinity.
NIBBLE_HD constexpr uint16_t bf16_from_float(float x) {
    const uint32_t bits = float_bits(x);
    if (is_nan_bits(bits)) return static_cast<uint16_t>((bits >> 16) | 0x40u);
    return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

NIBBLE_HD constexpr float round_to_bf16(float x) { return bf16_to_float(bf16_from_float(x)); }

// ---- FP16 --------------------------------------------------------------------------------------------------------

NIBBLE_HD constexpr float fp16_to_float(uint16_t code) {
    using F = MiniFloat<5, 10>;
    const uint32_t sign = uint32_t{code} >> 15 << 31, rest = code & 0x7FFFu;
    const uint32_t bits = rest >= 0x7C00u ? 0x7F800000u | (rest & 0x3FFu) << 13 : float_bits(F::magnitude_value(rest));
    return float_from_bits(sign | bits);
}

NIBBLE_HD constexpr uint16_t fp16_from_float(float x) {
    const uint32_t bits = float_bits(x), rest = bits & 0x7FFFFFFFu;
    const uint32_t sign = bits >> 31 << 15;
    if (is_nan_bits(bits)) return static_cast<uint16_t>(sign | 0x7E00u | (rest >> 13 & 0x3FFu));
    if (rest >= 0x7F800000u) return static_cast<uint16_t>(sign | 0x7C00u);
    const uint32_t code = MiniFloat<5, 10>::round_magnitude(rest);
    return static_cast<uint16_t>(sign | (code > 0x7C00u ? 0x7C00u : code));
}

// ---- E4M3 --------------------------------------------------------------------------------------------------------

inline constexpr float e4m3_max = 448.0f;
inline constexpr uint8_t e4m3_max_code = 0x7E, e4m3_nan_code = 0x7F;

NIBBLE_HD constexpr float e4m3_to_float(uint8_t code) {
    const uint32_t sign = uint32_t{code} >> 7 << 31, rest = code & 0x7Fu;
    const uint32_t bits = rest == e4m3_nan_code ? 0x7FC00000u : float_bits(MiniFloat<4, 3>::magnitude_value(rest));
    return float_from_bits(sign | bits);
}

// Casts like PyTorch and ml_dtypes. |x| <= 464 rounds (464 is a tie and goes to 448); larger values, infinity and NaN
// give NaN.
NIBBLE_HD constexpr uint8_t e4m3_from_float(float x) {
    const uint32_t bits = float_bits(x), rest = bits & 0x7FFFFFFFu;
    const uint32_t sign = bits >> 31 << 7;
    if (rest >= 0x7F800000u) return static_cast<uint8_t>(sign | e4m3_nan_code);
    const uint32_t code = MiniFloat<4, 3>::round_magnitude(rest);
    return static_cast<uint8_t>(sign | (code > e4m3_max_code ? uint32_t{e4m3_nan_code} : code));
}

// Clamps to +-448; NaN stays NaN.
NIBBLE_HD constexpr uint8_t e4m3_from_float_saturating(float x) {
    const uint32_t bits = float_bits(x), rest = bits & 0x7FFFFFFFu;
    const uint32_t sign = bits >> 31 << 7;
    if (is_nan_bits(bits)) return static_cast<uint8_t>(sign | e4m3_nan_code);
    if (rest >= float_bits(e4m3_max)) return static_cast<uint8_t>(sign | e4m3_max_code);
    return static_cast<uint8_t>(sign | MiniFloat<4, 3>::round_magnitude(rest));
}

// ---- E5M2 --------------------------------------------------------------------------------------------------------

inline constexpr float e5m2_max = 57344.0f;

NIBBLE_HD constexpr float e5m2_to_float(uint8_t code) { return fp16_to_float(static_cast<uint16_t>(code << 8)); }

// Overflow gives infinity, as in IEEE and ml_dtypes.
NIBBLE_HD constexpr uint8_t e5m2_from_float(float x) {
    const uint32_t bits = float_bits(x), rest = bits & 0x7FFFFFFFu;
    const uint32_t sign = bits >> 31 << 7;
    if (is_nan_bits(bits)) return static_cast<uint8_t>(sign | 0x7Eu);
    if (rest >= 0x7F800000u) return static_cast<uint8_t>(sign | 0x7Cu);
    const uint32_t code = MiniFloat<5, 2>::round_magnitude(rest);
    return static_cast<uint8_t>(sign | (code > 0x7Cu ? 0x7Cu : code));
}

// ---- E8M0 --------------------------------------------------------------------------------------------------------

NIBBLE_HD constexpr float e8m0_to_float(uint8_t code) {
    if (code == 255) return float_from_bits(0x7FC00000u);
    return code == 0 ? float_from_bits(0x00400000u) : float_from_bits(uint32_t{code} << 23);
}

// Casts like ml_dtypes: to the nearest power of two, a mantissa of 1.5 or more rounds up. Zero, negatives, infinity,
// NaN and overflow give NaN (255). Quantizers choose exponents by the rules of mx.h instead.
NIBBLE_HD constexpr uint8_t e8m0_from_float(float x) {
    const uint32_t bits = float_bits(x);
    if (bits == 0 || bits >= 0x7F800000u) return 255;           // the second test also catches every set sign bit
    if (bits < 0x00800000u) return bits > 0x00400000u ? 1 : 0;  // subnormals: all above 2^-127 go up to 2^-126
    return static_cast<uint8_t>((bits + 0x00400000u) >> 23);
}

// ---- E2M1 --------------------------------------------------------------------------------------------------------
// Codes 0..7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign.

inline constexpr float e2m1_max = 6.0f;

NIBBLE_HD constexpr float e2m1_to_float(uint8_t code) {
    const float value = MiniFloat<2, 1>::magnitude_value(code & 7u);
    return code & 8u ? -value : value;
}

// Magnitude code, ties to even (0.25 -> 0, 0.75 -> 1, 5 -> 4), saturating; NaN -> 7.
NIBBLE_HD constexpr uint8_t e2m1_magnitude(float x) {
    const float a = magnitude(x);
    if (!(a <= 5.0f)) return 7;
    return static_cast<uint8_t>(MiniFloat<2, 1>::round_magnitude(float_bits(a)));
}

// The cast of NVFP4 export (Model Optimizer). The sign bit is x < 0: -0.0 and NaN lose their sign, and a small negative
// number that rounds to zero keeps it (code 8).
NIBBLE_HD constexpr uint8_t e2m1_from_float(float x) {
    return static_cast<uint8_t>(e2m1_magnitude(x) | (x < 0.0f ? 8u : 0u));
}

// The cast of MXFP4 export (Model Optimizer). Ties go to the smaller magnitude. Zero has the sign bit set: the sign is
// plus only if x > 0.
NIBBLE_HD constexpr uint8_t e2m1_from_float_ties_down(float x) {
    const float a = magnitude(x);
    const unsigned code = (a > 0.25f) + (a > 0.75f) + (a > 1.25f) + (a > 1.75f) + (a > 2.5f) + (a > 3.5f) + (a > 5.0f);
    return static_cast<uint8_t>(code | (x > 0.0f ? 0u : 8u));
}

}  // namespace nibble
