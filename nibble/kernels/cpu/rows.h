// Functions of the instruction-set files: loops over runs of elements or blocks. Values computed once per tensor or row
// are passed as numbers. Plain data only: this header must not bring inline functions into those files.
#pragma once

#include <cstdint>

namespace nibble::cpu {

// Division by a constant in the arithmetic profile: x * value (multiply) or x / value.
struct ConstDivisor {
    float value;
    bool multiply;
};

// How the block scales of NVFP4 are computed and searched.
struct Nvfp4Plan {
    enum class Mode : uint8_t { dynamic, maximum, multiples, sweep } mode;
    float tensor_scale;
    float dynamic_divisor;  // dynamic: 6 * tensor_scale
    ConstDivisor six;       // static: division by 6
    float normalization;    // static: 448 or 256
    float group_scale;      // static: g / 6 of the stored scale; the scale is 448 if it is not positive
    float fake_up, fake_down;
    const float* multipliers;
    int multiplier_count;
    // [128], index = candidate byte 1..126; entry 127 of `sweep_scales` is infinity. Doubling a candidate doubles its
    // scale exactly (entry 2i = 2 * entry i below 8, entry i + 8 = 2 * entry i from 8 on).
    const float* sweep_scales;
    const float* sweep_amaxes;
};

// Dynamic NVFP4 inside a per-tensor search: s = amax / divisor, then e4m3(s) * group_scale.
struct FakeDynamic {
    float divisor, group_scale;
};

// The rounding of a quotient before it is encoded.
enum class Quotient : uint8_t { f32, bf16, f16 };

struct FakeFp8 {
    float up, down;
};

// Sums of squares of one row, element j in lane j % 16.
struct RowSum {
    double lane[16];
};

struct MeasureTally {
    RowSum error, weight;
    int64_t zeros, saturated, sign_flips;
    uint32_t max_error_bits;  // bits of |w - decoded|; order of unsigned numbers, NaN is largest
    // Occurrences of each code byte, in four parts, so that equal neighbours do not wait for each other. Counted inside
    // the measuring loop, where the increments fill idle cycles (a second loop took 40 % longer).
    int64_t code_bytes[4][256];
};

// Loops over weights of one type. `blocks` counts blocks from the start of a row; blocks may span rows.
struct WeightRows {
    uint32_t (*max_magnitude_bits)(const void* w, int64_t n);
    void (*fp8)(const void* w, int64_t n, float divisor, Quotient quotient, uint8_t* codes);
    void (*fp8_loss)(const void* w, int64_t n, FakeFp8 fake, RowSum& sum);
    void (*mxfp4)(const void* w, int64_t blocks, uint8_t* codes, uint8_t* scales);
    void (*mxfp8)(const void* w, int64_t blocks, uint8_t* codes, uint8_t* scales);
    // Returns the number of blocks that chose a multiplier above 1.
    int64_t (*nvfp4)(const void* w, int64_t blocks, const Nvfp4Plan& plan, uint8_t* codes, uint8_t* scales);
    void (*nvfp4_bs32)(const void* w, int64_t blocks, const Nvfp4Plan& plan, uint8_t* codes, uint8_t* scales);
    // Encodes n weights of one group; n is a multiple of 16.
    void (*int4)(const void* w, int64_t n, float scale, Quotient quotient, uint8_t* codes);
    void (*nvfp4_dynamic_loss)(const void* w, int64_t blocks, FakeDynamic fake, RowSum& sum);
    // Compare n weights with codes: E2M1 with one scale per 16 or 32 (segment), E4M3 with one per 32 or one for all
    // (0), or INT4 with one for all.
    void (*measure_e2m1)(const void* w, const uint8_t* codes, const float* scales, int segment, int64_t n,
                         MeasureTally& tally);
    void (*measure_e4m3)(const void* w, const uint8_t* codes, const float* scales, int segment, int64_t n,
                         MeasureTally& tally);
    void (*measure_int4)(const void* w, const uint8_t* codes, const float* scales, int segment, int64_t n,
                         MeasureTally& tally);
};

struct RowKernels {
    WeightRows bf16, f32, f32_kept;  // f32: encodes weights rounded to BF16; f32_kept: encodes them unchanged
    void (*mxfp4_inputs)(const void* x, int64_t blocks, uint8_t* codes, uint8_t* scales);  // input type as in f32
    void (*decode_e2m1)(const uint8_t* codes, const float* scales, int segment, int64_t n, float* out);
    void (*decode_e4m3)(const uint8_t* codes, const float* scales, int segment, int64_t n, float* out);
    void (*decode_int4)(const uint8_t* codes, const float* scales, int segment, int64_t n, float* out);
};

extern const RowKernels rows_avx2, rows_avx512;

}  // namespace nibble::cpu
