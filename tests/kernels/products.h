// Weights and inputs for tests of the product, and ways to run it.
#pragma once

#include "formats/fp8.h"
#include "formats/mx.h"
#include "formats/nvfp4.h"
#include "kernels/inputs.h"
#include "kernels/matmul.h"

#include <gtest/gtest.h>

namespace nibble::test {

inline std::vector<float> bell_rows(int64_t rows, int64_t cols, uint32_t seed, bool bf16 = true) {
    std::mt19937 random(seed);
    std::vector<float> x(static_cast<size_t>(rows * cols));
    for (float& v : x) v = bf16 ? round_to_bf16(bell(random)) : bell(random);
    return x;
}

// A weight in any format, or plain (Format::none) in a dtype.
struct Weight {
    Format format = Format::none;
    Matrix plain;
    QuantMatrix quantized;

    Result<PackedMatrix> pack(ThreadPool& pool) const {
        return format == Format::none ? prepack(plain.view(), pool) : prepack(quantized.view(), pool);
    }
    // Returns the decoded values [rows, cols].
    std::vector<float> values() const {
        std::vector<float> v(static_cast<size_t>(plain.rows * plain.cols));
        if (format != Format::none) {
            quantize_kernels().back().decode(quantized.view(), v.data());
        } else {
            for (size_t i = 0; i < v.size(); ++i) {
                const std::byte* at = plain.data.data() + i * static_cast<size_t>(dtype_bytes(plain.dtype));
                uint16_t code;
                std::memcpy(&code, at, 2);
                if (plain.dtype == DType::f32)
                    std::memcpy(&v[i], at, 4);
                else
                    v[i] = plain.dtype == DType::bf16 ? bf16_to_float(code) : fp16_to_float(code);
            }
        }
        return v;
    }
};

inline Weight make_weight(Format format, DType dtype, int64_t rows, int64_t cols, uint32_t seed) {
    const Input heavy = designed_inputs()[1];
    Weight w{format, make_matrix(heavy, dtype == DType::f32 ? DType::f32 : DType::bf16, rows, cols, seed), {}};
    if (dtype == DType::f16) {
        w.plain.dtype = dtype;
        for (size_t i = 0; i < w.plain.data.size(); i += 2) {
            uint16_t code;
            std::memcpy(&code, w.plain.data.data() + i, 2);
            code = fp16_from_float(bf16_to_float(code));
            std::memcpy(w.plain.data.data() + i, &code, 2);
        }
    }
    if (format != Format::none)
        w.quantized = quantize_whole(quantize_kernels().back(), w.plain.view(), {format}).matrix;
    return w;
}

struct WeightKind {
    std::string name;
    Format format;
    DType dtype;
};
inline std::vector<WeightKind> weight_kinds() {
    std::vector<WeightKind> kinds{
        {"bf16", Format::none, DType::bf16}, {"f16", Format::none, DType::f16}, {"f32", Format::none, DType::f32}};
    for (Format f : all_formats()) kinds.push_back({std::string(format_name(f)), f, DType::bf16});
    return kinds;
}
inline std::vector<ActivationFormat> activation_formats() {
    using enum ActivationFormat;
    return {none, nvfp4, fp8, fp8_token, fp8_group128, mxfp8, mxfp4};
}

// Returns one row after quantization and decoding.
inline std::vector<float> activation_values(const float* x, int64_t cols, ActivationFormat f, float input_scale) {
    std::vector<float> v(x, x + cols);
    if (f == ActivationFormat::none) return v;
    std::vector<uint8_t> codes(static_cast<size_t>(activation_code_bytes(f, cols)));
    std::vector<uint8_t> scales(static_cast<size_t>(activation_block_scales(f, cols)));
    std::vector<float> floats(static_cast<size_t>(activation_float_scales(f, cols)));
    matmul_kernels().back().quantize_row(x, cols, f, input_scale, {codes.data(), scales.data(), floats.data()});
    for (size_t k = 0; k < v.size(); ++k) {
        const uint8_t nibble = k / 2 < codes.size() ? codes[k / 2] >> (k % 2 * 4) & 15 : 0;
        if (f == ActivationFormat::nvfp4) v[k] = e2m1_to_float(nibble) * (e4m3_to_float(scales[k / 16]) * input_scale);
        if (f == ActivationFormat::mxfp4) v[k] = e2m1_to_float(nibble) * e8m0_to_float(scales[k / 32]);
        if (f == ActivationFormat::mxfp8) v[k] = e4m3_to_float(codes[k]) * e8m0_to_float(scales[k / 32]);
        if (f == ActivationFormat::fp8) v[k] = e4m3_to_float(codes[k]) * input_scale;
        if (f == ActivationFormat::fp8_token) v[k] = e4m3_to_float(codes[k]) * floats[0];
        if (f == ActivationFormat::fp8_group128) v[k] = e4m3_to_float(codes[k]) * floats[k / 128];
    }
    return v;
}

inline float input_scale_for(ActivationFormat f) {
    return f == ActivationFormat::nvfp4 ? 4.0f / 2688 : f == ActivationFormat::fp8 ? 4.0f / 448 : 1.0f;
}

inline std::vector<float> product(const MatmulKernels& kernels, const PackedMatrix& w, const std::vector<float>& x,
                                  int64_t rows, ActivationFormat activation, ThreadPool& pool) {
    std::vector<float> y(static_cast<size_t>(rows * w.rows()), -1.0f);
    const MatmulInput in{x.data(), rows, w.cols(), activation, input_scale_for(activation)};
    kernels.matmul(w, in, {y.data(), w.rows()}, pool);
    return y;
}

}  // namespace nibble::test
