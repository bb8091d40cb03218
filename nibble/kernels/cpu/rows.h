// What the instruction-set files offer: loops over runs of elements or blocks, with everything that is computed once
// per tensor or row handed in as numbers. Plain data only: this header must bring no inline function into those files.
#pragma once

#include <cstdint>

namespace nibble::cpu {

// x / c in the profile's way: x * value (multiply) or x / value.
struct ConstDivisor {
    float value;
    bool multiply;
};

// How the block scales of NVFP4 are made and searched.
struct Nvfp4Plan {
    enum class Mode : uint8_t { dynamic, maximum, multiples, sweep } mode;
    float tensor_scale;
    float dynamic_divisor;  // dynamic: 6 * tensor_scale
    ConstDivisor six;       // static: division by 6
    float normalization;    // static: 448 or 256
    float group_scale;      // static: g / 6 of the stored scale; the scale is 448 when it is not positive
    float fake_up, fake_down;
    const float* multipliers;
    int multiplier_count;
    // [128], index = candidate byte 1..126; entry 127 of `sweep_scales` is infinity. Doubling a candidate doubles its
    // scale exactly (entry 2i = 2 * entry i below 8, entry i + 8 = 2 * entry i from 8 on).
    const float* sweep_scales;
    const float* sweep_amaxes;
};

// The rule of dynamic NVFP4 inside a per-tensor search: s = amax / divisor, then e4m3(s) * group_scale.
struct FakeDynamic {
    float divisor, group_scale;
};

// What a quotient is rounded to before it becomes a code.
enum class Quotient : uint8_t { f32, bf16, f16 };

struct FakeFp8 {
    float up, down;
};

// One row's running sums of squares, element j in lane j % 16.
struct RowSum {
    double lane[16];
};

struct MeasureTally {
    RowSum error, weight;
    int64_t zeros, saturated, sign_flips;
    uint32_t max_error_bits;  // of |w - decoded|, ordered as unsigned numbers: NaN is above all
    // How often each code byte occurs, in four parts, so that equal neighbours do not wait for each other. Counted
    // inside the measuring loop: the increments fill the time that the vector instructions leave (a second loop took 40
    // % more).
    int64_t code_bytes[4][256];
};

// Loops over weights of one type. `blocks` counts blocks from the start of a row on; blocks may run across rows.
struct WeightRows {
    uint32_t (*max_magnitude_bits)(const void* w, int64_t n);
    void (*fp8)(const void* w, int64_t n, float divisor, Quotient quotient, uint8_t* codes);
    void (*fp8_loss)(const void* w, int64_t n, FakeFp8 fake, RowSum& sum);
    void (*mxfp4)(const void* w, int64_t blocks, uint8_t* codes, uint8_t* scales);
    void (*mxfp8)(const void* w, int64_t blocks, uint8_t* codes, uint8_t* scales);
    // Returns how many blocks chose a multiplier above 1.
    int64_t (*nvfp4)(const void* w, int64_t blocks, const Nvfp4Plan& plan, uint8_t* codes, uint8_t* scales);
    void (*nvfp4_bs32)(const void* w, int64_t blocks, const Nvfp4Plan& plan, uint8_t* codes, uint8_t* scales);
    void (*nvfp4_dynamic_loss)(const void* w, int64_t blocks, FakeDynamic fake, RowSum& sum);
    // n weights against codes: E2M1 with one scale per 16 or 32 (segment), or E4M3 with one per 32 or for all (0).
    void (*measure_e2m1)(const void* w, const uint8_t* codes, const float* scales, int segment, int64_t n,
                         MeasureTally& tally);
    void (*measure_e4m3)(const void* w, const uint8_t* codes, const float* scales, int segment, int64_t n,
                         MeasureTally& tally);
};

struct RowKernels {
    WeightRows bf16, f32, f32_kept;  // f32: codes from weights rounded to BF16; f32_kept: as they are
    void (*mxfp4_inputs)(const void* x, int64_t blocks, uint8_t* codes, uint8_t* scales);  // as f32
    void (*decode_e2m1)(const uint8_t* codes, const float* scales, int segment, int64_t n, float* out);
    void (*decode_e4m3)(const uint8_t* codes, const float* scales, int segment, int64_t n, float* out);
};

extern const RowKernels rows_avx2, rows_avx512;

}  // namespace nibble::cpu
