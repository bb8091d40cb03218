#include "quant/panels.h"

#include "checkpoint/text_config.h"
#include "formats/minifloat.h"

#include <cstring>

namespace nibble {
namespace {

void reshape(Matrix& matrix, DType dtype, int64_t rows, int64_t cols) {
    matrix.dtype = dtype;
    matrix.rows = rows;
    matrix.cols = cols;
    matrix.data.resize(static_cast<size_t>(rows * cols * dtype_bytes(dtype)));
}

template <class From, class Convert>
MatrixView converted(const MatrixView& in, DType dtype, Matrix& out, Convert convert) {
    reshape(out, dtype, in.rows, in.cols);
    const int64_t n = in.rows * in.cols;
    // Local restricted pointers: byte pointers may alias everything, which would prevent vectorization.
    const std::byte* __restrict from = in.data;
    std::byte* __restrict to = out.data.data();
    for (int64_t i = 0; i < n; ++i) {
        From value;
        std::memcpy(&value, from + i * static_cast<int64_t>(sizeof value), sizeof value);
        const auto result = convert(value);
        std::memcpy(to + i * static_cast<int64_t>(sizeof result), &result, sizeof result);
    }
    return out.view();
}

// Converts like fp16_to_float, but without branches, so that the loop above is vectorized (ten times as fast). The
// exponent is changed by an exact multiplication, which also normalizes subnormals.
float widen_fp16(uint16_t code) {
    const uint32_t rest = uint32_t{code & 0x7FFFu} << 13;
    const uint32_t special = rest >= 0x0F800000u ? 0x7F800000u : 0u;  // infinity, and NaN with its mantissa
    return float_from_bits(float_bits(float_from_bits(rest) * 0x1p112f) | special | uint32_t{code & 0x8000u} << 16);
}

// Converts F64 to F32. Error: a value that F32 cannot represent exactly; rounding it would store an amax that is not
// that of the weights.
Result<MatrixView> narrow_f64(const MatrixView& in, Matrix& out) {
    bool exact = true;
    const MatrixView view = converted<double>(in, DType::f32, out, [&](double v) {
        const auto f = static_cast<float>(v);
        exact &= static_cast<double>(f) == v || v != v;
        return f;
    });
    if (!exact) return fail("F64 weights that do not fit F32; convert the checkpoint to F32 or BF16 first");
    return view;
}

}  // namespace

QuantSpan reshape(QuantMatrix& matrix, Format format, int64_t rows, int64_t cols) {
    matrix.format = format;
    matrix.rows = rows;
    matrix.cols = cols;
    matrix.tensor_scale = 1.0f;
    matrix.codes.resize(static_cast<size_t>(code_bytes(format, rows, cols)));
    matrix.block_scales.resize(static_cast<size_t>(block_scale_bytes(format, rows, cols)));
    matrix.float_scales.resize(static_cast<size_t>(float_scale_count(format, rows, cols)));
    return matrix.span();
}

DType weight_dtype(const CheckpointTensor& tensor, const Json& config) {
    const DType stored = tensor.dtype == DType::f64 ? DType::f32 : tensor.dtype;
    return declared_dtype(config).value_or(stored);
}

namespace {

// Rounds F32 values to a narrower dtype. Error: overflow; a loader would read infinity.
Result<MatrixView> round_panel(const MatrixView& in, DType dtype, Matrix& out) {
    bool overflow = false;
    const auto checked = [&](float x, float y) {
        overflow |= is_finite(x) && !is_finite(y);
        return y;
    };
    const MatrixView view = dtype == DType::bf16 ? converted<float>(in, DType::bf16, out,
                                                                    [&](float x) {
                                                                        const uint16_t code = bf16_from_float(x);
                                                                        checked(x, bf16_to_float(code));
                                                                        return code;
                                                                    })
                                                 : converted<float>(in, DType::f32, out, [&](float x) {
                                                       return checked(x, fp16_to_float(fp16_from_float(x)));
                                                   });
    if (overflow)
        return fail("a weight is beyond the range of {}, which config.json declares", dtype_torch_name(dtype));
    return view;
}

Result<MatrixView> widen(const MatrixView& plain, Matrix& out) {
    switch (plain.dtype) {
        case DType::f32:
            return plain;
        case DType::bf16:
            return converted<uint16_t>(plain, DType::f32, out, bf16_to_float);
        case DType::f16:
            return converted<uint16_t>(plain, DType::f32, out, widen_fp16);
        case DType::f64:
            return narrow_f64(plain, out);
        default:
            return fail("{} is not a type of weights (BF16, F16, F32)", dtype_name(plain.dtype));
    }
}

}  // namespace

Result<MatrixView> read_weights(const Checkpoint& source, size_t index, int64_t begin, int64_t count,
                                const QuantizeKernels& kernels, PanelScratch& scratch, DecodedTo decoded_to) {
    const CheckpointTensor& tensor = source.tensors()[index];
    const DType dtype = decoded_to == DecodedTo::fp32 ? DType::f32 : weight_dtype(tensor, source.config());
    MatrixView wide;
    if (tensor.quantized()) {
        NIBBLE_TRY(const QuantView quant, source.read_quant(index, begin, count, scratch.read_quant));
        Matrix& decoded = dtype == DType::f32 ? scratch.wide : scratch.read;
        reshape(decoded, DType::f32, quant.rows, quant.cols);
        kernels.decode(quant, reinterpret_cast<float*>(decoded.data.data()));
        wide = decoded.view();
    } else {
        NIBBLE_TRY(const MatrixView plain, source.read_plain(index, begin, count, scratch.read));
        if (plain.dtype == DType::bf16 && (dtype == DType::bf16 || decoded_to == DecodedTo::fp32)) return plain;
        const bool rounds = dtype != DType::f32 && plain.dtype != dtype;
        NIBBLE_TRY(wide, widen(plain, rounds ? scratch.unrounded : scratch.wide));
        if (!rounds) return wide;
    }
    if (dtype == DType::f32) return wide;
    return round_panel(wide, dtype, scratch.wide);
}

}  // namespace nibble
