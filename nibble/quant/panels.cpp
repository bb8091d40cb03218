#include "quant/panels.h"

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
    // Restricted and without members: bytes may alias anything, which would keep the compiler from using vectors.
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

// fp16_to_float without branches, so that the loop above becomes vector code (a tenth of the time): the exponent is
// moved by an exact multiplication, which also makes subnormals normal.
float widen_fp16(uint16_t code) {
    const uint32_t rest = uint32_t{code & 0x7FFFu} << 13;
    const uint32_t special = rest >= 0x0F800000u ? 0x7F800000u : 0u;  // infinity and NaN keep their mantissa
    return float_from_bits(float_bits(float_from_bits(rest) * 0x1p112f) | special | uint32_t{code & 0x8000u} << 16);
}

// F64 that does not fit is refused rather than rounded: the stored amax would not be that of the weights.
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

Result<MatrixView> read_weights(const Checkpoint& source, size_t index, int64_t begin, int64_t count,
                                const QuantizeKernels& kernels, PanelScratch& scratch, DecodedTo decoded_to) {
    const CheckpointTensor& tensor = source.tensors()[index];
    if (tensor.quantized()) {
        NIBBLE_TRY(const QuantView quant, source.read_quant(index, begin, count, scratch.read_quant));
        const bool round = tensor.dtype == DType::bf16 && decoded_to == DecodedTo::own_dtype;
        Matrix& decoded = round ? scratch.read : scratch.wide;
        reshape(decoded, DType::f32, quant.rows, quant.cols);
        kernels.decode(quant, reinterpret_cast<float*>(decoded.data.data()));
        if (!round) return decoded.view();
        return converted<float>(decoded.view(), DType::bf16, scratch.wide, bf16_from_float);
    }
    NIBBLE_TRY(const MatrixView plain, source.read_plain(index, begin, count, scratch.read));
    switch (plain.dtype) {
        case DType::bf16:
        case DType::f32:
            return plain;
        case DType::f16:
            return converted<uint16_t>(plain, DType::f32, scratch.wide, widen_fp16);
        case DType::f64:
            return narrow_f64(plain, scratch.wide);
        default:
            return fail("{} is not a type of weights (BF16, F16, F32)", dtype_name(plain.dtype));
    }
}

}  // namespace nibble
